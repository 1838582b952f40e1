"""Ranks of the CPU device's ring that are faulty: what they send, keep or do is wrong, below the nccl check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.nccl.cpu import CpuNccl
from gpu_burnin.checks.nccl.operations import Operation
from gpu_burnin.checks.nccl.port import NcclMissing, NcclPort
from gpu_burnin.exact.operands import mix
from tests.support.devices import DeviceWith

# Operations that pass before a single fault comes: the first ones connect and warm up.
FIRST_INJECTED = 3
# What an operation of a rank takes, and by how much a late rank comes later than the others.
WORK_S, LATE_S = 0.001, 0.004


class FaultyCollectives(CpuNccl):
    """A healthy rank; the faulty ones change one step of it."""

    def __init__(self, seed: int, once: bool = True) -> None:
        super().__init__()
        self.seed, self.once = seed, once
        self.operations = self.injected = 0

    def finish(self, timeout_s: float) -> float:
        assert self._pending is not None
        operation = self._pending[0]
        self.operations += 1
        inject = self.operations == FIRST_INJECTED if self.once else self.operations >= FIRST_INJECTED
        if inject:
            self.before(operation)
        seconds = super().finish(timeout_s)
        if inject:
            self.injected += 1
            self.after(operation)
        return seconds

    def place(self, size: int) -> int:
        """An element, another one for each operation."""
        return int(mix(self.seed + self.operations) % size)

    def before(self, operation: Operation) -> None:
        """The operation is about to run."""

    def after(self, operation: Operation) -> None:
        """Its result lies in memory."""


class WrongElement(FaultyCollectives):
    """One bit of one element of the result turns over in this GPU's memory."""

    def after(self, operation: Operation) -> None:
        received = self._recv_array(operation)
        received[self.place(received.size)] ^= received.dtype.type(1 << self.seed % (8 * received.itemsize))


class WrongInRow(FaultyCollectives):
    """One bit of the result of one all_reduce of a row: the next one would bring what is right to its place."""

    _left = _inject_at = 0

    def finish(self, timeout_s: float) -> float:
        assert self._pending is not None
        self._left = self._pending[1]
        self._inject_at = 1 + self.seed % (self._left - 1) if self._left > 1 and not self.injected else 0
        return CpuNccl.finish(self, timeout_s)

    def _all_reduce(self, op: Operation, deadline_s: float) -> None:
        super()._all_reduce(op, deadline_s)
        self._left -= 1
        if self._left and self._left == self._inject_at:
            self.injected += 1
            received = self._recv_array(op)
            received[self.place(received.size)] ^= 1


class LowBit(FaultyCollectives):
    """The lowest bit of one element turns over: the smallest error there can be."""

    def after(self, operation: Operation) -> None:
        self._recv_array(operation)[self.place(operation.recv_elements)] ^= 1


class LostResult(FaultyCollectives):
    """The operation ran, and nothing of it came into memory."""

    _kept: NDArray[Any] | None = None

    def before(self, operation: Operation) -> None:
        self._kept = self._recv_array(operation).copy()

    def after(self, operation: Operation) -> None:
        self._recv_array(operation)[...] = self._kept


class StaleResult(FaultyCollectives):
    """The result of the operation before lies there still."""

    _last: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

    def finish(self, timeout_s: float) -> float:
        seconds = super().finish(timeout_s)
        self._last = self._recv.copy()
        return seconds

    def after(self, operation: Operation) -> None:
        size = operation.recv_bytes
        self._recv[:size] = self._last[:size]


class ShiftedResult(FaultyCollectives):
    """All elements lie one place further on."""

    def after(self, operation: Operation) -> None:
        received = self._recv_array(operation)
        received[...] = np.roll(received, 1)


def _high_bit(array: NDArray[Any]) -> Any:
    """A bit that no sum of floating point numbers rounds away: the highest of the fraction, and one of an integer."""
    return array.dtype.type(1 << (8 * array.itemsize - (10 if array.itemsize < 8 else 4)))


class WrongSource(FaultyCollectives):
    """What this rank gives is wrong from the start: one bit in its send buffer."""

    def before(self, operation: Operation) -> None:
        sent = self._send_array(operation)
        sent[self.place(sent.size)] ^= _high_bit(sent)


class CorruptedSend(FaultyCollectives):
    """What this rank sends to the next one comes wrong: one bit of each message."""

    _faulty = False

    def before(self, operation: Operation) -> None:
        self._faulty = True

    def after(self, operation: Operation) -> None:
        self._faulty = False

    def _exchange(
        self, to: int, source: int, given: NDArray[Any], take: Callable[[int, Any], None], deadline_s: float
    ) -> None:
        sent = given
        if self._faulty and given.size > 1:
            sent = given.copy()
            sent.reshape(-1)[self.place(sent.size)] ^= _high_bit(sent)
        super()._exchange(to, source, sent, take, deadline_s)


class ToldTimes(CpuNccl):
    """A healthy rank that tells made-up times: every operation waits for the late one, which waits for nobody.

    What this machine is busy with is as large as any lateness that a test can wait for.
    """

    def __init__(self, late: bool) -> None:
        super().__init__()
        self._told_s = WORK_S + (0.0 if late else LATE_S)

    def finish(self, timeout_s: float) -> float:
        assert self._pending is not None
        times = self._pending[1]
        super().finish(timeout_s)
        return times * self._told_s


class OtherVersion(FaultyCollectives):
    """This worker finds another library than the others."""

    def version(self) -> str:
        return "2.18.3"


class OldPackage(FaultyCollectives):
    """The library is another one than its package says."""

    def expected_version(self) -> str | None:
        return "999.0.0"


class NoLibrary(FaultyCollectives):
    """This worker finds no library."""

    def version(self) -> str:
        raise NcclMissing("libnccl.so.2 was not found: install nvidia-nccl-cu13 or add it to the library path")


class FaultyCollectivesDevice(DeviceWith):
    """A device whose collectives are these."""

    def __init__(self, ring: NcclPort) -> None:
        super().__init__(nccl=lambda: ring)


@dataclass(frozen=True)
class RingFault:
    """One faulty rank. `alone`: only its own result is wrong; otherwise what it gives to others is."""

    name: str
    make: Callable[[int, bool], FaultyCollectives]
    once: bool
    alone: bool = True


_KINDS = {
    "wrong element": WrongElement,
    "lowest bit of an element": LowBit,
    "result never came": LostResult,
    "result of the operation before": StaleResult,
    "result shifted by one": ShiftedResult,
}
_GIVEN = {
    "wrong in the send buffer": WrongSource,
    "wrong on the way to the next": CorruptedSend,
}
RING_FAULTS = {
    fault.name: fault
    for once, word in ((True, "once"), (False, "always"))
    for fault in (
        *(RingFault(f"{name}, {word}", make, once) for name, make in _KINDS.items()),
        *(RingFault(f"{name}, {word}", make, once, alone=False) for name, make in _GIVEN.items()),
    )
}
