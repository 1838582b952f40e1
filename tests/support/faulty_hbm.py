"""A CPU device whose memory is faulty, as broken hardware would be: below the checks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.hbm.cpu import CpuHbm
from gpu_burnin.checks.hbm.patterns import MemoryFaults, Pattern
from tests.support.devices import DeviceWith


class FaultyHbm(DeviceWith):
    """Memory with one hardware fault, applied after every write."""

    KINDS = ("stuck at 0", "stuck at 1", "address line", "joined data lines", "neighbour disturb")

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__(hbm=lambda: _Faulty(kind, seed))


class _Faulty(CpuHbm):
    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        self._kind, self._seed = kind, seed

    def write(self, pattern: Pattern) -> None:
        super().write(pattern)
        self._spoil(self._words)

    def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
        faults = super().verify(pattern, invert, downwards)
        self._spoil(self._words)
        return faults

    def _spoil(self, memory: NDArray[np.uint64]) -> None:
        word, bit = self._seed % (memory.size - 1), np.uint64(self._seed >> 32 & 63)
        one, half = np.uint64(1), memory.size // 2
        if self._kind == "stuck at 0":
            memory[word] &= ~(one << bit)
        elif self._kind == "stuck at 1":
            memory[word] |= one << bit
        elif self._kind == "address line":  # writes to the upper half land in the lower one too
            memory[:half] = memory[half : 2 * half]
        elif self._kind == "joined data lines":
            other = (bit + one) % np.uint64(64)
            memory[...] = (memory & ~(one << other)) | (((memory >> bit) & one) << other)
        else:
            memory[word + 1] = memory[word]
