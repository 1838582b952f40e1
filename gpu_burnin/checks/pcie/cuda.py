"""The link of one GPU: pinned host memory, copies in streams of their own, timed by events, verified by a kernel.

Without a GPU, tests drive it against a recording stand-in for CuPy that also runs the kernels, compiled for
the host. Copies in one direction are in one stream, so they arrive in order; a duplex batch starts both by one event.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_burnin.checks.pcie.ledger import Flip, Ledger, SlotComparer, SlotComparison, Steps
from gpu_burnin.checks.pcie.numa import Place, near_device
from gpu_burnin.checks.pcie.port import (
    POISON_BYTE,
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
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.cuda_errors import DeviceErrors, all_compared
from gpu_burnin.device.cuda_source import THREADS, cuda_source
from gpu_burnin.device.kernels import Loader
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.operands import MASK64, U64, stream_key
from gpu_burnin.telemetry.pci import normal_bus_id

SOURCE = cuda_source(__package__, "kernels.cu")
# Values of the parameter `old` of pcie_look.
_OLD_NONE, _OLD_WORDS, _OLD_POISON = 0, 1, 2
# cudaError_t (driver_types.h): cudaErrorMemoryAllocation, cudaErrorOperatingSystem ("OS call failed").
_REFUSED = (2, 304)
# cudaMemcpyKind (driver_types.h).
_KIND = {"h2d": 1, "d2h": 2}


@dataclass
class _Pinned:
    """Page-locked host memory as words; `address` is what cudaFreeHost takes."""

    address: int
    words: U64


@dataclass
class _Batch:
    """Copies under way: bytes of the batch, its start, the end of each stream, bits to flip when it is over."""

    size_bytes: int
    start: Any
    ends: tuple[Any, ...]
    flips: tuple[tuple[str, Flip], ...]


def make_port(device: CudaDevice) -> CudaPcie:
    """See Device.port."""
    return CudaPcie(device.cupy, device.errors, device.loader, device.blocks)


class CudaPcie:
    """The PciePort protocol on the current device. `blocks` is how many blocks of a kernel fill the device."""

    simulated = False

    def __init__(self, cupy: Any, errors: DeviceErrors, loader: Loader, blocks: int) -> None:
        self._cupy, self._errors, self._loader, self._blocks = cupy, errors, loader, blocks
        self._geometry: Geometry | None = None
        self._place = Place(None)
        self._pinned: list[_Pinned] = []
        self._device: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
        self._kernels: dict[str, Any] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._batch: _Batch | None = None
        self._key = 0

    def open(self, size_bytes: int) -> Geometry:
        made = geometry(size_bytes)
        try:
            with self._errors("looking for the GPU's place"):
                address = normal_bus_id(str(self._cupy.cuda.runtime.deviceGetPCIBusId(0)))
            with near_device(address) as self._place:
                for wanted in (made.source_bytes, made.ring_bytes):
                    self._pin(wanted)
            with self._errors(f"allocating device memory for copies of {size_bytes} bytes"):
                for name, wanted in (("source", made.source_bytes), ("ring", made.ring_bytes), ("out", 3 * WORD_BYTES)):
                    self._device[name] = self._cupy.empty(wanted // WORD_BYTES, dtype=np.uint64)
                for way in WAYS["duplex"]:
                    self._streams[way] = self._cupy.cuda.Stream(non_blocking=True)
                self._kernels = self._loader.load(SOURCE, ("pcie_fill", "pcie_look"))
        except DeviceError:
            self.close()
            raise
        self._ledgers = {way: Ledger(way, made) for way in WAYS["duplex"]}
        self._geometry = made
        return made

    def close(self) -> None:
        try:
            if self._batch is not None:
                self.finish()
        finally:
            self._give_back()

    def pinned(self) -> PinnedMemory:
        size_bytes = sum(memory.words.nbytes for memory in self._pinned)
        return PinnedMemory(self._place.node, self._place.note or None, size_bytes)

    def fill(self, seed: int) -> None:
        self._key = stream_key(seed, STREAM)
        made, source = self._opened(), self._device["source"]
        fill_words(self._pinned[0].words, self._key)
        self._pinned[1].words.fill(np.uint64(POISON_WORD))
        with self._errors("filling the memory of copies"):
            self._launch("pcie_fill", source, np.uint64(made.source_bytes // WORD_BYTES), np.uint64(self._key))
            self._device["ring"].data.memset_async(POISON_BYTE, made.ring_bytes)
            self._cupy.cuda.runtime.deviceSynchronize()  # streams of copies do not wait for this one
        for ledger in self._ledgers.values():
            ledger.start(self._key)

    def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
        made, ways = self._opened(), WAYS[direction]
        if self._batch is not None:
            raise DeviceError("a batch of copies is under way: this is a fault of the caller")
        planned = [(way, self._ledgers[way].batch(copies, load)) for way in ways]
        with self._errors(f"starting {direction} copies"):
            start, ends = self._cupy.cuda.Event(), []
            start.record(self._streams[ways[0]])
            for way in ways[1:]:
                self._streams[way].wait_event(start)
            for pair in _alternating(planned):
                self._copy(*pair)
            for way in ways:
                ends.append(self._cupy.cuda.Event())
                ends[-1].record(self._streams[way])
        flips = tuple((way, steps.flip) for way, steps in planned if steps.flip is not None)
        self._batch = _Batch(len(ways) * copies * made.size_bytes, start, tuple(ends), flips)

    def finish(self) -> Moved:
        if self._batch is None:
            raise DeviceError("no batch of copies is under way: this is a fault of the caller")
        batch, self._batch = self._batch, None
        with self._errors("waiting for copies"):
            for end in batch.ends:
                end.synchronize()
            times = [float(self._cupy.cuda.get_elapsed_time(batch.start, end)) for end in batch.ends]
            for way, flip in batch.flips:
                self._flip(way, flip)
        return Moved(batch.size_bytes, max(times) / 1000.0)

    def verify(self) -> Verified:
        words = self._opened().size_bytes // WORD_BYTES
        with self._errors("verifying copies"):
            found = self._ledgers["h2d"].judge(self._device_comparer(words))
        return found + self._ledgers["d2h"].judge(slot_comparer(self._pinned[1].words, self._pinned[0].words, words))

    def inject(self, fault: Kind, seed: int) -> None:
        for ledger in self._ledgers.values():
            ledger.inject(fault, seed)

    def planted(self) -> tuple[Planted, ...]:
        return tuple(one for ledger in self._ledgers.values() for one in ledger.planted)

    def _opened(self) -> Geometry:
        if self._geometry is None:
            raise DeviceError("the link is not open: this is a fault of the caller")
        return self._geometry

    def _pin(self, size_bytes: int) -> None:
        runtime = self._cupy.cuda.runtime
        with self._errors("pinning host memory"):
            try:
                address = int(runtime.hostAlloc(size_bytes, 0))
            except runtime.CUDARuntimeError as error:
                if getattr(error, "status", None) not in _REFUSED:
                    raise
                raise DeviceError(refused(size_bytes, error)) from error
        memory = (ctypes.c_uint64 * (size_bytes // WORD_BYTES)).from_address(address)
        self._pinned.append(_Pinned(address, np.ctypeslib.as_array(memory)))

    def _give_back(self) -> None:
        self._device.clear()
        self._streams.clear()
        self._kernels.clear()
        self._ledgers.clear()
        self._geometry = None
        while self._pinned:
            memory = self._pinned.pop()
            # A device that fails here has failed before; the end of the process frees its memory.
            with contextlib.suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                self._cupy.cuda.runtime.freeHost(memory.address)
        with self._errors("giving back the memory of copies"):
            self._cupy.get_default_memory_pool().free_all_blocks()

    def _copy(self, way: str, slot: int, offset_bytes: int, size_bytes: int) -> None:
        host, device = self._pinned, self._device
        at = slot * self._opened().size_bytes
        if way == "h2d":
            to, origin = device["ring"].data.ptr + at, host[0].address + offset_bytes
        else:
            to, origin = host[1].address + at, device["source"].data.ptr + offset_bytes
        self._cupy.cuda.runtime.memcpyAsync(to, origin, size_bytes, _KIND[way], self._streams[way].ptr)

    def _flip(self, way: str, flip: Flip) -> None:
        words = self._opened().size_bytes // WORD_BYTES
        if way == "d2h":
            flip_bit(self._pinned[1].words, words, flip)
            return
        at = flip.slot * words + flip.word
        word = self._device["ring"][at : at + 1]
        word.set(word.get() ^ np.uint64(flip.mask))

    def _device_comparer(self, words: int) -> SlotComparer:
        # The kernel counts all words in the time that it takes to find one: `brief` saves nothing.
        def compare(
            slot: int, offset_bytes: int, old_offset_bytes: int | None, poison: bool, brief: bool = False
        ) -> SlotComparison:
            held, out = self._device["ring"][slot * words : (slot + 1) * words], self._device["out"]
            out.set(np.array([0, MASK64, 0], dtype=np.uint64))
            old = _OLD_POISON if poison else _OLD_NONE if old_offset_bytes is None else _OLD_WORDS
            self._launch(
                "pcie_look",
                held,
                np.uint64(words),
                np.uint64(self._key),
                np.uint64(offset_bytes // WORD_BYTES),
                np.int32(old),
                np.uint64((old_offset_bytes or 0) // WORD_BYTES),
                np.uint64(POISON_WORD),
                out,
            )
            wrong, first, looked = (int(word) for word in out.get())
            all_compared("a copy", looked, words)
            return SlotComparison(wrong, first, int(held[first : first + 1].get()[0])) if wrong else SlotComparison(0)

        return compare

    def _launch(self, kernel: str, *arguments: Any) -> None:
        self._kernels[kernel]((self._blocks,), (THREADS,), arguments)


def _alternating(planned: Sequence[tuple[str, Steps]]) -> list[tuple[str, int, int, int]]:
    """The copies of both ways in turns, so that neither stream waits until the other is filled."""
    longest = max((len(steps.copies) for _, steps in planned), default=0)
    return [
        (way, step.slot, step.offset_bytes, step.size_bytes)
        for i in range(longest)
        for way, steps in planned
        for step in steps.copies[i : i + 1]
    ]
