"""Collective operations between the GPUs of a node: their payload, what is right, and what a wrong element shows.

Payload. Element j of the send buffer of rank r is made of word j of the stream rank_key(key, r) (splitmix64 by
counter, exact.random_words), so any rank can make what any other one sent. An operation that only moves data
(all_gather, all_to_all) sends all bits of the type. One that adds (all_reduce, reduce_scatter) sends integers
v = word >> shift (arithmetic) with -2^k <= v < 2^k, k = 63 - shift. For n ranks k is chosen so that n 2^k <= 2^p,
with 2^p the bound up to which the type holds every integer: p = 31 (int32), 63 (int64), 24 (fp32), 8 (bf16, IEEE 754
formats with 24 and 8 bits of significand). Then every partial sum in any order is exact, and there is one right
result bit for bit, whatever the algorithm.

An element that was never written shows, because the receive buffer is filled with POISON_BYTE before each operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.operands import I64, MASK64, U64, random_words

# NaN in the floating point types, -1 in the integers.
POISON_BYTE = 0xFF
# Wrong elements of one operation that are reported one by one; all are counted.
MOST_RECORDED = 8
# Ranks of one node at most.
MOST_RANKS = 62
# Sizes are multiples of this many bytes a rank: full vector loads of every type.
_ALIGN_BYTES = 16
_BLOCK = 1 << 15


@dataclass(frozen=True)
class ElementType:
    """A type of element: its size, and p with every integer of magnitude up to 2^p held exactly."""

    name: str
    size_bytes: int
    exact_bits: int


KINDS: dict[str, ElementType] = {
    kind.name: kind
    for kind in (
        ElementType("int32", 4, 31), ElementType("int64", 8, 63), ElementType("fp32", 4, 24), ElementType("bf16", 2, 8),
    )
}  # fmt: skip
COLLECTIVES: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_ADDS = frozenset({"all_reduce", "reduce_scatter"})


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as NVIDIA/nccl-tests doc/PERFORMANCE.md defines it; 0 for one rank.

    all_reduce 2 (n - 1) / n; all_gather, reduce_scatter and all_to_all (n - 1) / n, of the size of the whole array.
    """
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def rank_key(key: int, rank: int) -> int:
    """64-bit key of the stream of one rank."""
    return int(random_words(key, rank, 1)[0])


def value_shift(kind: str, ranks: int) -> int:
    """The right shift that leaves addends of which `ranks` add up exactly. Raises DeviceError when there is none."""
    bits = KINDS[kind].exact_bits - (ranks - 1).bit_length()
    if bits < 0:
        raise DeviceError(f"sums of {ranks} ranks are not exact in {kind}: this is a fault of the caller")
    return 63 - bits


@dataclass(frozen=True)
class Operation:
    """One collective operation as one rank sees it. `chunk` is the number of elements for each rank.

    `older` is the key of the operation before, whose result would be a stale one.
    """

    collective: str
    kind: str
    chunk: int
    ranks: int
    rank: int
    key: int
    older: int = 0

    @property
    def adds(self) -> bool:
        """Whether elements of the ranks are added, and not only moved."""
        return self.collective in _ADDS

    @property
    def size_bytes(self) -> int:
        """Size of the whole array, the S of nccl-tests."""
        return self.chunk * self.ranks * KINDS[self.kind].size_bytes

    @property
    def send_elements(self) -> int:
        """Elements that this rank gives."""
        return self.chunk if self.collective == "all_gather" else self.chunk * self.ranks

    @property
    def recv_elements(self) -> int:
        """Elements that this rank gets."""
        return self.chunk if self.collective == "reduce_scatter" else self.chunk * self.ranks

    @property
    def send_bytes(self) -> int:
        """Size of the send buffer."""
        return self.send_elements * KINDS[self.kind].size_bytes

    @property
    def recv_bytes(self) -> int:
        """Size of the receive buffer."""
        return self.recv_elements * KINDS[self.kind].size_bytes

    @property
    def offset(self) -> int:
        """Where this rank's part starts in the send buffer of the others."""
        return self.rank * self.chunk if self.collective in ("reduce_scatter", "all_to_all") else 0

    @property
    def shift(self) -> int:
        """value_shift of an operation that adds; 0 of one that moves."""
        return value_shift(self.kind, self.ranks) if self.adds else 0

    def source(self, position: int) -> int | None:
        """The rank whose element belongs at a position of the receive buffer; None where all have a part in it."""
        return None if self.adds else position // self.chunk


def operation(
    collective: str, kind: str, size_bytes: int, ranks: int, rank: int, key: int, older: int = 0
) -> Operation:
    """An operation of about `size_bytes`, rounded down to whole vectors for each rank, one vector at least."""
    align = _ALIGN_BYTES // KINDS[kind].size_bytes
    chunk = size_bytes // (ranks * _ALIGN_BYTES) * align
    return Operation(collective, kind, max(align, chunk), ranks, rank, key & MASK64, older & MASK64)


def part_of(op: Operation, whole: NDArray[Any], rank: int) -> NDArray[Any]:
    """The chunk of one rank, counted around."""
    start = rank % op.ranks * op.chunk
    return whole[start : start + op.chunk]


# --- values ---


def bits_of(values: I64, kind: str) -> NDArray[Any]:
    """Integers as element bits; exact by the bound of the kind."""
    if kind == "int64":
        return values.view(np.uint64)
    if kind == "int32":
        return values.astype(np.int32).view(np.uint32)
    single: NDArray[Any] = values.astype(np.float32).view(np.uint32)
    return single if kind == "fp32" else (single >> np.uint32(16)).astype(np.uint16)


def _words_as(words: U64, op: Operation) -> I64:
    """The integers that a rank sends, of its words."""
    return words.view(np.int64) >> np.int64(op.shift)


def sent_bits(op: Operation, rank: int, start: int, count: int, key: int | None = None) -> NDArray[Any]:
    """Element bits start .. start + count - 1 of the send buffer of `rank`."""
    words = random_words(rank_key(op.key if key is None else key, rank), start, count)
    if op.adds:
        return bits_of(_words_as(words, op), op.kind)
    return words.astype(f"u{KINDS[op.kind].size_bytes}")


def sum_of(op: Operation, start: int, count: int, key: int | None = None) -> I64:
    """The right integers at positions start .. of the receive buffer of an operation that adds."""
    total = np.zeros(count, dtype=np.int64)
    for rank in range(op.ranks):
        key_of = rank_key(op.key if key is None else key, rank)
        total += _words_as(random_words(key_of, op.offset + start, count), op)
    return total


def expected_bits(op: Operation, start: int, count: int, key: int | None = None) -> NDArray[Any]:
    """Right element bits at positions start .. start + count - 1 of the receive buffer of op.rank."""
    if op.adds:
        return bits_of(sum_of(op, start, count, key), op.kind)
    parts, position, end = [], start, start + count
    while position < end:
        source, inside = divmod(position, op.chunk)
        length = min(end - position, op.chunk - inside)
        parts.append(sent_bits(op, source, op.offset + inside, length, key))
        position += length
    return np.concatenate(parts)


def blocks(count: int) -> Sequence[tuple[int, int]]:
    """Start and length of pieces that stay in a core's cache."""
    return [(start, min(_BLOCK, count - start)) for start in range(0, count, _BLOCK)]


# --- what went wrong ---


@dataclass(frozen=True)
class Wrong:
    """One wrong element: its position in the receive buffer, and the bits found there."""

    position: int
    got: int


@dataclass(frozen=True)
class Outcome:
    """Comparisons of one receive buffer: elements that are wrong, some of them, and elements compared.

    `by_source`: wrong elements by the rank that they came from; empty for an operation that adds.
    """

    wrong: int
    recorded: tuple[Wrong, ...]
    compared: int
    by_source: tuple[int, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        """Both together, of the same operation."""
        recorded = (self.recorded + other.recorded)[:MOST_RECORDED]
        by_source = tuple(map(sum, zip(self.by_source, other.by_source, strict=True)))
        return Outcome(self.wrong + other.wrong, recorded, self.compared + other.compared, by_source)


def explain(op: Operation, found: Wrong) -> tuple[str, int | None]:
    """What an element shows: (kind, source rank or None).

    unwritten: the poison is still there. stale: the result of the operation before. missing, doubled: a sum without
    the part of one rank, or with it twice; that rank is the source where no other explains it. corrupted: the rest.
    """
    position, size = found.position, KINDS[op.kind].size_bytes
    source = op.source(position)
    if found.got == int.from_bytes(bytes([POISON_BYTE]) * size, "little"):
        return "unwritten", source
    if op.older and found.got == int(expected_bits(op, position, 1, op.older)[0]):
        return "stale", source
    if not op.adds:
        return "corrupted", source
    right = sum_of(op, position, 1)
    for kind, sign in (("missing", -1), ("doubled", 1)):
        ranks = [
            rank
            for rank in range(op.ranks)
            if (part := _words_as(random_words(rank_key(op.key, rank), op.offset + position, 1), op))[0] != 0
            and int(bits_of(right + sign * part, op.kind)[0]) == found.got
        ]
        # BF16 has so few values that a part fits by chance.
        if len(ranks) == 1 and KINDS[op.kind].exact_bits > 16:
            return kind, ranks[0]
    return "corrupted", None
