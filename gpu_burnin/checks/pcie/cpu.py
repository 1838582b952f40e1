"""The CPU device's link: copies between two parts of host memory, with the logic of a real one. Simulated."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from gpu_burnin.checks.pcie.ledger import Ledger
from gpu_burnin.checks.pcie.port import (
    POISON_WORD,
    STREAM,
    WAYS,
    WORD_BYTES,
    Direction,
    Geometry,
    Kind,
    Moved,
    Planted,
    Verified,
    geometry,
)
from gpu_burnin.checks.pcie.result import PinnedMemory
from gpu_burnin.checks.pcie.slots import fill_words, flip_bit, refused, slot_comparer
from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.exact.operands import U64, stream_key


@dataclass
class _Way:
    """One direction: the source at its beginning, the ring at its end."""

    ledger: Ledger
    source: U64
    ring: U64


def make_port(_: Device) -> CpuPcie:
    """See Device.port."""
    return CpuPcie()


class CpuPcie:
    """The PciePort protocol without a device: "device memory" is host memory, and begin copies before it returns."""

    simulated = True

    def __init__(self) -> None:
        self._words = 0
        self._ways: dict[str, _Way] = {}
        self._batch: Moved | None = None

    def open(self, size_bytes: int) -> Geometry:
        made = geometry(size_bytes)
        self._words = size_bytes // WORD_BYTES
        try:
            for way in WAYS["duplex"]:
                source, ring = self._pin(made.source_bytes), self._pin(made.ring_bytes)
                self._ways[way] = _Way(Ledger(way, made), source, ring)
        except OSError as error:
            self.close()
            raise DeviceError(refused(made.ring_bytes, error)) from error
        except MemoryError:
            self.close()
            raise DeviceError(
                f"no memory for copies of {size_bytes} bytes: lower shapes.transfer_bytes or free memory"
            ) from None
        return made

    def close(self) -> None:
        self._ways.clear()
        self._batch = None

    def pinned(self) -> PinnedMemory:
        return PinnedMemory(numa_note="simulated: no GPU to be near")

    def fill(self, seed: int) -> None:
        key = stream_key(seed, STREAM)
        for way in self._ways.values():
            fill_words(way.source, key)
            way.ring.fill(np.uint64(POISON_WORD))
            way.ledger.start(key)

    def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
        if self._batch is not None:
            raise DeviceError("a batch of copies is under way: this is a fault of the caller")
        ways = [self._way(name) for name in WAYS[direction]]
        planned = [(way, way.ledger.batch(copies, load)) for way in ways]
        started = time.perf_counter()
        for way, steps in planned:
            for step in steps.copies:
                at, words = step.offset_bytes // WORD_BYTES, step.size_bytes // WORD_BYTES
                to = way.ring[step.slot * self._words :][:words]
                self._copy(way.ledger.way, step.copy, to, way.source[at : at + words])
        seconds = time.perf_counter() - started
        for way, steps in planned:
            if steps.flip is not None:
                flip_bit(way.ring, self._words, steps.flip)
        self._batch = Moved(len(ways) * copies * self._words * WORD_BYTES, seconds)

    def finish(self) -> Moved:
        if self._batch is None:
            raise DeviceError("no batch of copies is under way: this is a fault of the caller")
        moved, self._batch = self._batch, None
        return moved

    def verify(self) -> Verified:
        found = Verified()
        for way in self._ways.values():
            # What was sent is in the host's source: both are filled with the same words.
            found += way.ledger.judge(slot_comparer(way.ring, self._way("h2d").source, self._words))
        return found

    def inject(self, fault: Kind, seed: int) -> None:
        for way in self._ways.values():
            way.ledger.inject(fault, seed)

    def planted(self) -> tuple[Planted, ...]:
        return tuple(one for way in self._ways.values() for one in way.ledger.planted)

    def _pin(self, size_bytes: int) -> U64:
        """Memory of either end; a subclass may refuse it with an OSError, as a driver does."""
        return np.zeros(size_bytes // WORD_BYTES, dtype=np.uint64)

    def _copy(self, way: str, copy: int, destination: U64, source: U64) -> None:
        """Every copy is made here; a subclass can spoil one, below the verification."""
        np.copyto(destination, source)

    def _way(self, name: str) -> _Way:
        if name not in self._ways:
            raise DeviceError("the link is not open: this is a fault of the caller")
        return self._ways[name]
