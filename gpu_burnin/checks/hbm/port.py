"""The memory of a device as the hbm check uses it: taken whole, written, compared, given back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpu_burnin.checks.hbm.patterns import WORD_BYTES, MemoryFaults, Pattern
from gpu_burnin.device.port import Device
from gpu_burnin.exact.operands import U64


@dataclass(frozen=True)
class Taken:
    """The memory under test, one space of offsets from 0 to size_bytes.

    `regions` are the sizes of the pieces it lies in, in order. `total_bytes` is what the device says that it has and
    `reserve_bytes` what was left free on purpose. `cache_bytes` is the size of the cache before the memory: a test of
    little more than that tests the cache.
    """

    size_bytes: int
    regions: tuple[int, ...]
    total_bytes: int
    reserve_bytes: int
    cache_bytes: int


class HbmPort(Protocol):
    """One device's memory. Only one may be in use at a time. Errors of the device are raised as DeviceError.

    All calls wait until they are done.
    """

    @property
    def seconds(self) -> float:
        """Device time (host time on a simulated device) of all writes and comparisons so far."""
        ...

    def take(self, size_bytes: int) -> Taken:
        """Take memory: a multiple of 4096 bytes, or 0 for all that is free but a small reserve.

        Raises DeviceError when there is not as much; what was taken until then is given back.
        """
        ...

    def write(self, pattern: Pattern) -> None:
        """Write a pattern everywhere, upwards."""

    def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
        """Compare with a pattern; `invert` writes its complement behind the comparison, address by address."""
        ...

    def hold(self, seconds: float) -> None:
        """Leave the memory alone for this long: it is refreshed and not touched. Time is the thing tested."""

    def peek(self, offset_bytes: int, count: int) -> U64:
        """`count` words as they lie there (fault injection)."""
        ...

    def poke(self, offset_bytes: int, words: U64) -> None:
        """Put words there, below every comparison (fault injection)."""

    def give_back(self) -> None:
        """Give all memory back. May be called at any time, and again."""


def words_in(size_bytes: int) -> int:
    """64-bit words in so many bytes."""
    return size_bytes // WORD_BYTES


def hbm_port(device: Device) -> HbmPort:
    """The memory of this device as the hbm check tests it."""
    port: HbmPort = device.port(__package__)
    return port
