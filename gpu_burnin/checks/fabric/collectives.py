"""Collectives of one member over its links: rings and a direct exchange, with every element of a result compared.

The payload, what is right and how to say what is wrong are those of the nccl check (operations.py). A message is cut
into one stripe for each rail in use. Of a sum, what came at each step is kept: so the source of a wrong one is found.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.fabric.audit import Facts
from gpu_burnin.checks.fabric.link import Bytes, Frame
from gpu_burnin.checks.fabric.meeting import Fault
from gpu_burnin.checks.fabric.mesh import Mesh
from gpu_burnin.checks.nccl.cpu import added
from gpu_burnin.checks.nccl.operations import (
    KINDS,
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
from gpu_burnin.device.port import DeviceError

_ALIGN_BYTES = 16
# The byte that a fault on purpose changes, from the start of a message, and how.
_SPOILED_BYTE, _SPOILED_BITS = 2, 0x10


@dataclass(frozen=True)
class Compared:
    """What the comparison of one result has shown; `by_chunk`: wrong elements of each chunk."""

    outcome: Outcome
    by_chunk: dict[int, int] = field(default_factory=dict)


def stripes(size_bytes: int, rails: Sequence[int]) -> list[tuple[int, slice]]:
    """The part of a message that goes over each rail, in whole vectors; rails without a part are left out."""
    each = -(-size_bytes // len(rails) // _ALIGN_BYTES) * _ALIGN_BYTES
    parts = [(rail, slice(i * each, min((i + 1) * each, size_bytes))) for i, rail in enumerate(rails)]
    return [(rail, part) for rail, part in parts if part.start < part.stop]


class Collectives:
    """The operations; all members make the same calls in the same order."""

    def __init__(self, mesh: Mesh, faults: Sequence[Fault]) -> None:
        self._mesh, self._faults = mesh, [*faults]
        self._rank, self._ranks = mesh.meeting.rank, mesh.meeting.ranks
        self._tag = 0
        self._running = ""
        self.rails: Sequence[int] = mesh.meeting.together
        self.peer_rates: dict[int, float] = {}  # of the last direct exchange: bytes/s from each member
        self._send = self._recv = self._hops = np.empty(0, dtype=np.uint8)

    def open(self, size_bytes: int) -> None:
        """Memory for results of up to so many bytes. Raises DeviceError."""
        room = max(size_bytes, self._ranks * _ALIGN_BYTES)
        try:
            self._send, self._recv, self._hops = (np.zeros(room, dtype=np.uint8) for _ in range(3))
        except MemoryError:
            raise DeviceError(f"no memory for three times {room} bytes: test with a smaller size_bytes") from None

    # --- one operation: fill, run, compare ---

    async def fill(self, op: Operation) -> None:
        """What this member sends, and poison where the result will be."""
        out = self._view(self._send, op.send_bytes, op)
        for start, count in blocks(op.send_elements):
            out[start : start + count] = sent_bits(op, op.rank, start, count)
            await asyncio.sleep(0)
        self._recv[: op.recv_bytes] = POISON_BYTE
        self._hops[: op.recv_bytes] = POISON_BYTE

    async def run(self, op: Operation) -> float:
        """Seconds that it took. Raises Ended."""
        self._running = op.collective
        given, out = self._view(self._send, op.send_bytes, op), self._view(self._recv, op.recv_bytes, op)
        began_s = time.perf_counter()
        if op.collective == "all_reduce":
            await self._all_reduce(op, given, out)
        elif op.collective == "all_gather":
            part_of(op, out, op.rank)[...] = given
            await self._pass_around(op, out, op.rank)
        else:
            await self._exchange_all(op, given, out)
        return time.perf_counter() - began_s

    async def compare(self, op: Operation) -> Compared:
        """Every element of the result with what is right."""
        return await compared(op, self._view(self._recv, op.recv_bytes, op))

    async def facts(self, op: Operation, result: Compared) -> Facts:
        """Of a wrong operation: where what came to this member was wrong."""
        partial: list[int] = []
        for step in range(op.ranks - 1 if op.collective == "all_reduce" else 0):
            chunk = (op.rank - step - 1) % op.ranks
            if await self._partial_is_wrong(op, chunk, [(chunk + i) % op.ranks for i in range(step + 1)]):
                partial.append(chunk)
        return Facts(tuple(partial), tuple(result.by_chunk))

    async def _partial_is_wrong(self, op: Operation, chunk: int, ranks: Sequence[int]) -> bool:
        """Whether what came of a chunk is not the sum of these ranks' parts."""
        got = part_of(op, self._view(self._hops, op.recv_bytes, op), chunk)
        for start, count in blocks(op.chunk):
            right = sent_bits(op, ranks[0], chunk * op.chunk + start, count)
            for rank in ranks[1:]:
                right = added(right, sent_bits(op, rank, chunk * op.chunk + start, count), op.kind)
            if not np.array_equal(got[start : start + count], right):
                return True
            await asyncio.sleep(0)
        return False

    # --- algorithms ---

    async def _all_reduce(self, op: Operation, given: NDArray[Any], out: NDArray[Any]) -> None:
        """Ring: each chunk goes once around and is added up, then once around as it is."""
        out[...] = given
        hops = self._view(self._hops, op.recv_bytes, op)
        for step in range(op.ranks - 1):
            came = part_of(op, hops, op.rank - step - 1)
            await self._exchange(op.rank + 1, op.rank - 1, part_of(op, out, op.rank - step), came)
            self._strike()
            mine = part_of(op, out, op.rank - step - 1)
            for start, count in blocks(op.chunk):
                piece = slice(start, start + count)
                mine[piece] = added(mine[piece], came[piece], op.kind)
                await asyncio.sleep(0)
        await self._pass_around(op, out, op.rank + 1)

    async def _pass_around(self, op: Operation, out: NDArray[Any], first: int) -> None:
        for step in range(op.ranks - 1):
            given, taken = part_of(op, out, first - step), part_of(op, out, first - step - 1)
            await self._exchange(op.rank + 1, op.rank - 1, given, taken)

    async def _exchange_all(self, op: Operation, given: NDArray[Any], out: NDArray[Any]) -> None:
        """Each pair directly: in step s a member sends to the one s places ahead."""
        part_of(op, out, op.rank)[...] = part_of(op, given, op.rank)
        for step in range(1, op.ranks):
            ahead, behind = (op.rank + step) % op.ranks, (op.rank - step) % op.ranks
            taken = part_of(op, out, behind)
            seconds = await self._exchange(ahead, behind, part_of(op, given, ahead), taken)
            self.peer_rates[behind] = taken.nbytes / max(seconds, 1e-9)

    async def _exchange(self, to: int, source: int, given: NDArray[Any], taken: NDArray[Any]) -> float:
        """Send to one member while as much comes from another: seconds that its coming took. Raises Ended."""
        self._tag += 1
        to, source, tag = to % self._ranks, source % self._ranks, self._tag
        outgoing, incoming = self._spoiled(to, given.view(np.uint8)), taken.view(np.uint8)
        parts = stripes(outgoing.size, self.rails)
        links = self._mesh.links
        came = [links[rail, source].expect(tag, incoming[part]) for rail, part in parts]
        sent = [links[rail, to].post(Frame.DATA, outgoing[part], tag) for rail, part in parts]
        times = await self._mesh.all(came)
        await self._mesh.all(sent)
        return float(max(times))

    @staticmethod
    def _view(memory: Bytes, size_bytes: int, op: Operation) -> NDArray[Any]:
        return memory[:size_bytes].view(f"u{KINDS[op.kind].size_bytes}")

    # --- faults on purpose ---

    def _spoiled(self, to: int, given: Bytes) -> Bytes:
        """What is sent: the same, but for a fault on purpose, which strikes once."""
        for fault in self._faults:
            if fault.kind == "wrong_byte" and (fault.to, fault.collective) == (to, self._running):
                self._faults.remove(fault)
                given = given.copy()
                given[_SPOILED_BYTE] ^= _SPOILED_BITS
                break
        return given

    def _strike(self) -> None:
        kinds = {fault.kind for fault in self._faults}
        if "dead_rank" in kinds:
            os.kill(os.getpid(), signal.SIGKILL)
        if "stopped_rank" in kinds:
            self._faults = []
            os.kill(os.getpid(), signal.SIGSTOP)


async def compared(op: Operation, got: NDArray[Any]) -> Compared:
    """Every element of a result with what is right, giving way between blocks."""
    wrong, recorded = 0, list[Wrong]()
    by_chunk = np.zeros(op.ranks, dtype=np.int64)
    for start, count in blocks(op.recv_elements):
        part = got[start : start + count]
        bad = np.flatnonzero(part != expected_bits(op, start, count))
        if bad.size:
            wrong += bad.size
            recorded += [Wrong(start + int(i), int(part[i])) for i in bad[: MOST_RECORDED - len(recorded)]]
            by_chunk += np.bincount((start + bad) // op.chunk, minlength=op.ranks)
        await asyncio.sleep(0)
    outcome = Outcome(wrong, tuple(recorded), op.recv_elements)
    return Compared(outcome, {chunk: int(count) for chunk, count in enumerate(by_chunk) if count})
