"""Collectives of the CPU device: a ring of worker processes over shared memory, sums by NumPy. No GPU takes part.

Each rank has one block of shared memory. It holds a word that says "given up", and for each sender a mailbox: two
counters of pieces (written by the sender, taken by the owner) and room for two pieces. Every wait has a deadline, so
that a rank that is dead or stopped ends an operation and never blocks it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.nccl.operations import (
    KINDS,
    MOST_RANKS,
    MOST_RECORDED,
    POISON_BYTE,
    Operation,
    Outcome,
    Wrong,
    blocks,
    expected_bits,
    part_of,
    sent_bits,
)
from gpu_burnin.checks.nccl.port import NcclFailed, NcclTimeout, Route, Transports
from gpu_burnin.device import shared_memory
from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.types import JSON

Bytes = NDArray[np.uint8]

# A piece stays in a core's cache; with two, a sender writes one while the owner takes the other.
_PIECE_BYTES = 32 << 10
_PIECES = 2
_PAGE = 4096
# Words of a block: 0 says "given up", then two counters for each sender, each pair in a cache line of its own.
_WORDS_PER_SENDER = 8
# While a rank waits it gives way that often before it sleeps between two looks: workers may outnumber cores.
_YIELDS = 64
_NAP_S = 0.0002
_VIA = "shared memory"


@dataclass
class _Block:
    """The shared memory of one rank."""

    memory: mmap.mmap
    words: NDArray[np.uint64]
    room: NDArray[np.uint8]

    @classmethod
    def map(cls, offered: Mapping[str, JSON], ranks: int) -> _Block:
        """Map a block for `ranks` senders. Raises OSError or ValueError where it is gone."""
        memory = shared_memory.attach(offered, block_bytes(ranks))
        whole = np.frombuffer(memory, dtype=np.uint8)
        return cls(memory, whole[:_PAGE].view(np.uint64), whole[_PAGE:].reshape(ranks, _PIECES, _PIECE_BYTES))

    def close(self) -> None:
        """Give the mapping back; what an error's frames still look into goes when they do."""
        self.words = np.empty(0, dtype=np.uint64)
        self.room = np.empty(0, dtype=np.uint8)
        with contextlib.suppress(BufferError):
            self.memory.close()


def block_bytes(ranks: int) -> int:
    """Size of the block of one rank."""
    return _PAGE + ranks * _PIECES * _PIECE_BYTES


def make_port(_: Device) -> CpuNccl:
    """See Device.port."""
    return CpuNccl()


class CpuNccl:
    """The NcclPort protocol on host memory and host processes."""

    algorithms: tuple[str, ...] = ("ring",)

    def __init__(self) -> None:
        self._send: Bytes = np.empty(0, dtype=np.uint8)
        self._recv: Bytes = np.empty(0, dtype=np.uint8)
        self._fd = -1
        self._blocks: list[_Block] = []
        self._rank = 0
        self._pending: tuple[Operation, int] | None = None
        self._found: Outcome | None = None  # of the comparisons that verify has not reported yet

    def version(self) -> str:
        return np.__version__

    def expected_version(self) -> str | None:
        return None

    def room_bytes(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4

    def open(self, size_bytes: int) -> None:
        try:
            self._send, self._recv = (np.zeros(size_bytes, dtype=np.uint8) for _ in range(2))
        except MemoryError:
            raise DeviceError(f"no memory for {size_bytes} bytes: lower shapes.collective_bytes") from None

    def offer(self, rank: int, ranks: int) -> JSON:
        if ranks > MOST_RANKS:
            raise DeviceError(f"{ranks} ranks are more than the {MOST_RANKS} that one node can have here")
        try:
            self._fd = shared_memory.create("nccl-ring", block_bytes(ranks))
        except OSError as error:
            raise DeviceError(f"no memory for a ring of {ranks} ranks ({error.strerror}): free memory") from error
        return shared_memory.handle(self._fd)

    def join(self, offers: Sequence[JSON], rank: int, algorithm: str, timeout_s: float) -> None:
        self._rank = rank
        for offered in offers:
            assert isinstance(offered, Mapping)
            try:
                self._blocks.append(_Block.map(offered, len(offers)))
            except (OSError, ValueError) as error:
                raise NcclFailed(f"the memory of process {offered['pid']} is gone ({error})") from None
        # Nobody may close its block before all have opened it.
        self._meet(time.monotonic() + timeout_s)

    def fill(self, op: Operation) -> None:
        out = self._send_array(op)
        for start, count in blocks(op.send_elements):
            out[start : start + count] = sent_bits(op, op.rank, start, count)
        self.forget(op)
        self._found = None

    def begin(self, op: Operation, times: int, timeout_s: float) -> None:
        self._pending = (op, times)

    def finish(self, timeout_s: float) -> float:
        assert self._pending is not None
        (op, times), self._pending = self._pending, None
        deadline_s = time.monotonic() + timeout_s
        seconds = 0.0
        for number in range(times):
            if number:
                self._found = self._compared(op)
                self.forget(op)
            started = time.perf_counter()
            getattr(self, f"_{op.collective}")(op, deadline_s)
            seconds += time.perf_counter() - started
        return seconds

    def loop(self, op: Operation) -> None:
        self._recv[: op.recv_bytes] = self._send[: op.send_bytes]

    def verify(self, op: Operation) -> Outcome:
        found, self._found = self._compared(op), None
        return found

    def _compared(self, op: Operation) -> Outcome:
        """What was received against what is right, with what earlier comparisons have found."""
        got, wrong = self._recv_array(op), 0
        recorded: list[Wrong] = []
        by_source = np.zeros(0 if op.adds else op.ranks, dtype=np.int64)
        for start, count in blocks(op.recv_elements):
            part = got[start : start + count]
            bad = np.flatnonzero(part != expected_bits(op, start, count))
            wrong += bad.size
            recorded += [Wrong(start + int(i), int(part[i])) for i in bad[: MOST_RECORDED - len(recorded)]]
            if by_source.size:
                by_source += np.bincount((start + bad) // op.chunk, minlength=op.ranks)
        found = Outcome(wrong, tuple(recorded), op.recv_elements, tuple(by_source.tolist()))
        return found if self._found is None else self._found + found

    def flip(self, op: Operation, position: int, mask: int) -> None:
        received = self._recv_array(op)
        received[position] ^= received.dtype.type(mask)

    def forget(self, op: Operation) -> None:
        self._recv[: op.recv_bytes] = POISON_BYTE

    def transports(self) -> Transports:
        ranks = len(self._blocks)
        routes = (Route(self._rank, (self._rank + 1) % ranks, _VIA),) if ranks > 1 else ()
        return Transports(routes, None, {}, read=True)

    def leave(self, timeout_s: float) -> None:
        self._meet(time.monotonic() + timeout_s)
        self._drop()

    def abort(self) -> None:
        for block in self._blocks:
            block.words[0] = 1
        self._drop()

    def close(self) -> None:
        self.abort()
        self._send = self._recv = np.empty(0, dtype=np.uint8)

    # --- the algorithms ---

    def _all_reduce(self, op: Operation, deadline_s: float) -> None:
        """Ring: each chunk goes once around and is added up, then once around as it is."""
        out = self._recv_array(op)
        out[...] = self._send_array(op)
        self._reduce_around(op, out, op.rank, deadline_s)
        self._pass_around(op, out, op.rank + 1, deadline_s)

    def _reduce_scatter(self, op: Operation, deadline_s: float) -> None:
        work = self._send_array(op).copy()
        # One chunk further back, so that it is its own chunk that a rank ends with.
        self._reduce_around(op, work, op.rank - 1, deadline_s)
        self._recv_array(op)[...] = part_of(op, work, op.rank)

    def _all_gather(self, op: Operation, deadline_s: float) -> None:
        out = self._recv_array(op)
        part_of(op, out, op.rank)[...] = self._send_array(op)
        self._pass_around(op, out, op.rank, deadline_s)

    def _all_to_all(self, op: Operation, deadline_s: float) -> None:
        """Each pair directly: in step s a rank sends to the one s places ahead."""
        given, out = self._send_array(op), self._recv_array(op)
        part_of(op, out, op.rank)[...] = part_of(op, given, op.rank)
        for step in range(1, op.ranks):
            ahead, behind = (op.rank + step) % op.ranks, (op.rank - step) % op.ranks
            self._exchange(ahead, behind, part_of(op, given, ahead), _writer(part_of(op, out, behind)), deadline_s)

    def _reduce_around(self, op: Operation, work: NDArray[Any], first: int, deadline_s: float) -> None:
        """n - 1 steps: give chunk `first` - s to the next rank, add what comes to the chunk before it."""
        for step in range(op.ranks - 1):
            given, taken = part_of(op, work, first - step), part_of(op, work, first - step - 1)
            self._exchange(op.rank + 1, op.rank - 1, given, _adder(taken, op.kind), deadline_s)

    def _pass_around(self, op: Operation, work: NDArray[Any], first: int, deadline_s: float) -> None:
        """n - 1 steps: give chunk `first` - s to the next rank, replace the chunk before it by what comes."""
        for step in range(op.ranks - 1):
            given, taken = part_of(op, work, first - step), part_of(op, work, first - step - 1)
            self._exchange(op.rank + 1, op.rank - 1, given, _writer(taken), deadline_s)

    # --- mailboxes ---

    def _exchange(
        self, to: int, source: int, given: NDArray[Any], take: Callable[[int, Bytes], None], deadline_s: float
    ) -> None:
        """Send an array to one rank while as many bytes come from another, piece by piece."""
        ranks, me = len(self._blocks), self._rank
        theirs, mine = self._blocks[to % ranks], self._blocks[me]
        outgoing, incoming = theirs.words[_counters(me)], mine.words[_counters(source % ranks)]
        data = given.reshape(-1).view(np.uint8)
        pieces = -(-data.size // _PIECE_BYTES)
        sent = taken = 0
        while sent < pieces or taken < pieces:
            moved = False
            if sent < pieces and int(outgoing[0]) - int(outgoing[1]) < _PIECES:
                piece = data[sent * _PIECE_BYTES : (sent + 1) * _PIECE_BYTES]
                self._put(to % ranks, theirs.room[me, int(outgoing[0]) % _PIECES, : piece.size], piece, sent)
                outgoing[0] += np.uint64(1)
                sent, moved = sent + 1, True
            if taken < pieces and incoming[0] > incoming[1]:
                start = taken * _PIECE_BYTES
                length = min(_PIECE_BYTES, data.size - start)
                take(start, mine.room[source % ranks, int(incoming[1]) % _PIECES, :length])
                incoming[1] += np.uint64(1)
                taken, moved = taken + 1, True
            if not moved:
                awaited = source % ranks if taken < pieces else to % ranks
                ready = partial(_ready, outgoing, incoming, sent < pieces, taken < pieces)
                self._wait(ready, awaited, deadline_s)

    def _put(self, peer: int, destination: Bytes, source: Bytes, piece: int) -> None:
        """Write a piece into the memory of another rank: the one place where that is done."""
        destination[...] = source

    def _meet(self, deadline_s: float) -> None:
        """All ranks have come here when a token of each has been around the ring."""
        token = np.zeros(1, dtype=np.uint8)
        for _ in range(len(self._blocks) - 1):
            self._exchange(self._rank + 1, self._rank - 1, token, lambda start, piece: None, deadline_s)

    def _wait(self, ready: Callable[[], bool], awaited: int, deadline_s: float) -> None:
        """Look again and again, more and more seldom. Raises NcclTimeout."""
        mine, looks = self._blocks[self._rank], 0
        while not ready():
            if mine.words[0]:
                raise NcclTimeout("another rank gave up the operation")
            if time.monotonic() > deadline_s:
                raise NcclTimeout(f"rank {awaited} did not do its part before the deadline")
            looks += 1
            if looks < _YIELDS:
                os.sched_yield()
            else:
                time.sleep(_NAP_S)

    def _send_array(self, op: Operation) -> NDArray[Any]:
        return self._send[: op.send_bytes].view(f"u{KINDS[op.kind].size_bytes}")

    def _recv_array(self, op: Operation) -> NDArray[Any]:
        return self._recv[: op.recv_bytes].view(f"u{KINDS[op.kind].size_bytes}")

    def _drop(self) -> None:
        for block in self._blocks:
            block.close()
        self._blocks = []
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _ready(outgoing: NDArray[Any], incoming: NDArray[Any], to_send: bool, to_take: bool) -> bool:
    """Whether there is room for another piece, or one has come."""
    return (to_send and int(outgoing[0]) - int(outgoing[1]) < _PIECES) or (to_take and bool(incoming[0] > incoming[1]))


def _counters(sender: int) -> slice:
    """Words of the counters (written, taken) of one sender."""
    start = (1 + sender) * _WORDS_PER_SENDER
    return slice(start, start + 2)


def _writer(out: NDArray[Any]) -> Callable[[int, Bytes], None]:
    """Puts pieces into an array."""
    data = out.view(np.uint8)

    def take(start: int, piece: Bytes) -> None:
        data[start : start + piece.size] = piece

    return take


def _adder(out: NDArray[Any], kind: str) -> Callable[[int, Bytes], None]:
    """Adds pieces to an array in the arithmetic of the type."""
    data = out.view(np.uint8)

    def take(start: int, piece: Bytes) -> None:
        mine = data[start : start + piece.size].view(out.dtype)
        mine[...] = added(mine, piece.view(out.dtype), kind)

    return take


def added(left: NDArray[Any], right: NDArray[Any], kind: str) -> NDArray[Any]:
    """Sums of element bits; BF16 through FP32, rounded to nearest even as far as finite numbers go."""
    if kind in ("int32", "int64"):
        whole: NDArray[Any] = left + right
        return whole
    if kind == "fp32":
        with np.errstate(all="ignore"):  # what was corrupted may be anything
            total: NDArray[Any] = (left.view(np.float32) + right.view(np.float32)).view(np.uint32)
        return total
    with np.errstate(all="ignore"):
        wide = [(x.astype(np.uint32) << np.uint32(16)).view(np.float32) for x in (left, right)]
        bits = (wide[0] + wide[1]).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    narrow: NDArray[Any] = (rounded >> np.uint32(16)).astype(np.uint16)
    return narrow
