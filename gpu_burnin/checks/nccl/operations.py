"""Collective operations between the GPUs of a node: their payload, what is right, and what a wrong element shows.

Payload. Element j of the send buffer of rank r is made of word j of the stream rank_key(key, r) (splitmix64 by
counter, exact.random_words), so any rank can make what any other one sent. An operation that only moves data
(all_gather, all_to_all) sends all bits of the type. One that adds (all_reduce, reduce_scatter) sends integers
v = word >> shift (arithmetic) with -2^k <= v < 2^k, k = 63 - shift. 2^p is the bound up to which a type holds every
integer, with p the bits of its significand or, of an integer type, those without the sign. k is chosen so that
n 2^k <= 2^p for n summands: then every partial sum in any order is exact, and there is one right result bit for bit,
whatever the algorithm.

More than 2^p ranks (256 in bf16, 2^24 in fp32) cannot all give to one element. They are divided into
g = ceil(ranks / 2^p) groups: rank r gives a number to element j of the whole array where g divides r + j, and 0 to the
others. So an element has at most 2^p summands, and every rank has a part in each row of g elements.

An element that was never written shows, because the receive buffer is filled with POISON_BYTE before each operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.exact.operands import FORMATS, I64, MASK64, U64, random_rows, random_words

# NaN in the floating point types, -1 in the integers.
POISON_BYTE = 0xFF
# Wrong elements of one operation that are kept one by one; all are counted.
MOST_RECORDED = 32
# One rank is named by wrong sums only where chance names one at most once in 2^12 times: of 2^11 summands of one bit,
# as fp16 has in groups, that takes 24 of them.
_SURE_BITS = 12
# Sizes are multiples of this many bytes a rank: full vector loads of every type.
_ALIGN_BYTES = 16
_BLOCK = 1 << 15


@dataclass(frozen=True)
class ElementType:
    """A type of element: its size, and p with every integer of magnitude up to 2^p held exactly."""

    name: str
    size_bytes: int
    exact_bits: int


def element_type(name: str) -> ElementType:
    """The type of a format of exact.operands ("bf16", "fp64"), or of an integer ("int32")."""
    if name in FORMATS:
        exponent_bits, fraction_bits, _ = FORMATS[name]
        return ElementType(name, (1 + exponent_bits + fraction_bits) // 8, 1 + fraction_bits)
    bits = int(name.removeprefix("int"))
    return ElementType(name, bits // 8, bits - 1)


# Types of the check.
KINDS: dict[str, ElementType] = {name: element_type(name) for name in ("int32", "int64", "fp32", "bf16")}
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


def groups_of(kind: str, ranks: int) -> int:
    """The least number of groups of ranks of which each has no more than add up exactly."""
    return -(-ranks >> element_type(kind).exact_bits)


def value_shift(kind: str, summands: int) -> int:
    """The right shift that leaves numbers of which so many add up exactly, for at most 2^p of them."""
    return 63 - element_type(kind).exact_bits + (summands - 1).bit_length()


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
    def groups(self) -> int:
        """groups_of an operation that adds; 1 of one that moves."""
        return groups_of(self.kind, self.ranks) if self.adds else 1

    @property
    def summands(self) -> int:
        """The most ranks that have a part in one element of a sum."""
        return -(-self.ranks // self.groups)

    @property
    def shift(self) -> int:
        """value_shift of an operation that adds; 0 of one that moves."""
        return value_shift(self.kind, self.summands) if self.adds else 0

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
    """The integers that a rank adds, of its words."""
    return words.view(np.int64) >> np.int64(op.shift)


def addends(op: Operation, rank: int, start: int, count: int, key: int | None = None) -> I64:
    """The integers start .. start + count - 1 that a rank gives to an operation that adds."""
    groups, values = op.groups, np.zeros(count, dtype=np.int64)
    first = -(rank + start) % groups
    given = values[first::groups]
    given[...] = _words_as(random_words(_key_of(op, rank, key), start + first, given.size, groups), op)
    return values


def sent_bits(op: Operation, rank: int, start: int, count: int, key: int | None = None) -> NDArray[Any]:
    """Element bits start .. start + count - 1 of the send buffer of `rank`."""
    if op.adds:
        return bits_of(addends(op, rank, start, count, key), op.kind)
    return random_words(_key_of(op, rank, key), start, count).astype(f"u{KINDS[op.kind].size_bytes}")


def sum_of(op: Operation, start: int, count: int, key: int | None = None) -> I64:
    """The right integers at positions start .. of the receive buffer of an operation that adds."""
    groups, total = op.groups, np.zeros(count, dtype=np.int64)
    keys = random_words(op.key if key is None else key, 0, op.ranks)
    for first in range(min(groups, count)):
        place, sums = op.offset + start + first, total[first::groups]
        givers = keys[-place % groups :: groups]
        rows = max(1, _BLOCK // sums.size)
        for row in range(0, givers.size, rows):
            words = random_rows(givers[row : row + rows], place, sums.size, groups)
            sums += _words_as(words, op).sum(axis=0)
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


def _key_of(op: Operation, rank: int, key: int | None) -> int:
    return rank_key(op.key if key is None else key, rank)


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


def explain(op: Operation, found: Sequence[Wrong]) -> list[tuple[str, int | None]]:
    """What wrong elements of one result show: (kind, source rank or None) of each.

    unwritten: the poison is still there. stale: the result of the operation before. missing, doubled: a sum without
    the part of one rank, or with it twice; that rank is the source. corrupted: the rest. The parts of many ranks are so
    small that one of them fits an error by chance; then one element names nobody, and many together do.
    """
    shown = [_moved(op, wrong) for wrong in found]
    if not op.adds:
        return shown
    sums = [wrong for wrong, (kind, _) in zip(found, shown, strict=True) if kind == "corrupted"]
    fits = {wrong: _fitting(op, wrong) for wrong in sums}
    together = _rank_of(op, [*fits.values()])
    return [
        (together or _rank_of(op, [fits[wrong]]) or told) if wrong in fits else told
        for wrong, told in zip(found, shown, strict=True)
    ]


def _moved(op: Operation, wrong: Wrong) -> tuple[str, int | None]:
    """What an element shows that does not take the parts of a sum."""
    position, source = wrong.position, op.source(wrong.position)
    if wrong.got == int.from_bytes(bytes([POISON_BYTE]) * KINDS[op.kind].size_bytes, "little"):
        return "unwritten", source
    if op.older and wrong.got == int(expected_bits(op, position, 1, op.older)[0]):
        return "stale", source
    return "corrupted", source


def _fitting(op: Operation, wrong: Wrong) -> NDArray[np.bool_]:
    """Whether a sum lacks the part of a rank (row 0) or has it twice (row 1), for each rank."""
    place, groups = op.offset + wrong.position, op.groups
    givers = slice(-place % groups, None, groups)
    keys = random_words(op.key, 0, op.ranks)[givers]
    parts = _words_as(random_rows(keys, place, 1)[:, 0], op)
    fits = np.zeros((2, op.ranks), dtype=np.bool_)
    for row, sign in enumerate((-1, 1)):
        fits[row, givers] = (parts != 0) & (bits_of(parts.sum() + sign * parts, op.kind) == wrong.got)
    return fits


def _rank_of(op: Operation, fits: Sequence[NDArray[np.bool_]]) -> tuple[str, int | None] | None:
    """What all these sums show alike; None where no rank explains them, several do, or one may by chance."""
    # The part of a rank has 64 - shift bits: so often it is one certain number.
    if not fits or 2 * op.summands << _SURE_BITS > 1 << (64 - op.shift) * len(fits):
        return None
    found = np.argwhere(np.logical_and.reduce(fits))
    return (("missing", "doubled")[found[0, 0]], int(found[0, 1])) if len(found) == 1 else None
