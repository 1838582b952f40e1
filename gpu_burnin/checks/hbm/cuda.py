"""The memory test on one NVIDIA GPU. Without a GPU, tests drive it with a stand-in for CuPy that runs the
same kernels compiled for the host.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_burnin.checks.hbm import kernels
from gpu_burnin.checks.hbm.kernels import SOURCE
from gpu_burnin.checks.hbm.patterns import LANES, MAX_KEPT, WORD_BYTES, MemoryFaults, Pattern, WrongWord
from gpu_burnin.checks.hbm.port import Taken
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.cuda_device import few_blocks
from gpu_burnin.device.cuda_errors import DeviceErrors, all_compared
from gpu_burnin.device.cuda_source import THREADS
from gpu_burnin.device.kernels import Loader
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.operands import MASK64, U64

# Left free for what the driver takes while kernels run (local memory, modules).
RESERVE_BYTES = 128 << 20
# Sizes of the pieces, large ones first. The driver hands out pages of 2 MiB (CUDA driver API, cuMemCreate: the
# granularity of device memory), so nothing smaller can be allocated that way.
PIECES_BYTES = (4 << 30, 1 << 30, 256 << 20, 64 << 20, 16 << 20, 2 << 20)
# So many times the cache are read between a pass and one that begins where it ended.
_TOUCHED_CACHES = 4
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation (driver_types.h)
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind (driver_types.h)


@dataclass(frozen=True)
class _Piece:
    """One allocation: where it is, and which offsets of the memory under test lie in it."""

    pointer: int
    offset_bytes: int
    size_bytes: int

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.size_bytes


def make_port(device: CudaDevice) -> CudaHbm:
    """See Device.port."""
    return CudaHbm(device.cupy, device.errors, device.loader, device.multiprocessors())


class CudaHbm:
    """The HbmPort protocol on the current device. Memory comes from cudaMalloc itself, not from CuPy's pool.

    A pass that begins where the last one ended would find its first words in the cache and never ask the memory for
    them: before it, the other end is read.
    """

    def __init__(self, cupy: Any, errors: DeviceErrors, loader: Loader, multiprocessors: int) -> None:
        self.seconds = 0.0
        self._cupy, self._errors, self._runtime = cupy, errors, cupy.cuda.runtime
        self._blocks = multiprocessors * kernels.BLOCKS_PER_SM
        self._pieces: list[_Piece] = []
        self._cache_bytes = 0
        self._at_end = False  # the last pass went upwards: the cache holds the last words
        # What earlier checks have left in CuPy's pool is memory to be tested too. It goes back before anything is
        # allocated here: the pool would cut that out of a large block, and keep the block.
        cupy.get_default_memory_pool().free_all_blocks()
        with errors("loading the memory test"):
            self._kernels = loader.load(SOURCE, kernels.KERNELS)
            self._result = cupy.zeros(kernels.RESULT_WORDS, dtype=np.uint64)

    def take(self, size_bytes: int) -> Taken:
        self.give_back()
        with self._errors("asking for free memory"):
            free, total = (int(number) for number in self._runtime.memGetInfo())
            self._cache_bytes = int(self._runtime.getDeviceProperties(0).get("l2CacheSize", 0))
        wanted = size_bytes or max(0, free - RESERVE_BYTES)
        try:
            self._take_pieces(wanted, exactly=size_bytes > 0)
            taken = sum(piece.size_bytes for piece in self._pieces)
            if taken == 0 or (size_bytes and taken < size_bytes):
                raise DeviceError(
                    f"no GPU memory for the memory test: {taken} of {wanted} bytes could be allocated, {free} of "
                    f"{total} are free; see with nvidia-smi what else uses the GPU, or lower shapes.hbm_bytes"
                )
        except BaseException:
            self.give_back()
            raise
        regions = tuple(piece.size_bytes for piece in self._pieces)
        return Taken(taken, regions, total, 0 if size_bytes else RESERVE_BYTES, self._cache_bytes)

    def write(self, pattern: Pattern) -> None:
        with self._timed(f"writing {pattern.name}"):
            for piece in self._pieces:
                self._launch("write", piece, pattern)
        self._at_end = True

    def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
        with self._timed(f"reading {pattern.name}"):
            self._result.data.memset_async(0, 8 * kernels.FIRST_RECORD)
            if downwards == self._at_end:
                self._touch(_TOUCHED_CACHES * self._cache_bytes, at_end=not self._at_end)
            for piece in reversed(self._pieces) if downwards else self._pieces:
                self._launch("verify", piece, pattern, np.int32(invert), np.int32(downwards), self._result)
        with self._errors("reading the result of the memory test"):
            head: U64 = self._result[: kernels.FIRST_RECORD].get()
            words = sum(piece.size_bytes for piece in self._pieces) // WORD_BYTES
            all_compared(pattern.name, int(head[kernels.COMPARED]), words)
            self._at_end = not downwards
            return MemoryFaults() if head[kernels.FOUND] == 0 else faults_of(self._result.get())

    def hold(self, seconds: float) -> None:
        time.sleep(seconds)  # the device has nothing to do: every call waits for its end

    def peek(self, offset_bytes: int, count: int) -> U64:
        words = np.empty(count, dtype=np.uint64)
        with self._errors("looking into device memory"):
            for pointer, part in self._parts(offset_bytes, words):
                self._runtime.memcpy(part.ctypes.data, pointer, part.nbytes, _TO_HOST)
        return words

    def poke(self, offset_bytes: int, words: U64) -> None:
        held = np.ascontiguousarray(words, dtype=np.uint64)
        with self._errors("changing device memory"):
            for pointer, part in self._parts(offset_bytes, held):
                self._runtime.memcpy(pointer, part.ctypes.data, part.nbytes, _TO_DEVICE)

    def give_back(self) -> None:
        while self._pieces:
            piece = self._pieces.pop()
            # A device that fails here has failed before; the end of the process frees its memory.
            with contextlib.suppress(self._runtime.CUDARuntimeError):
                self._runtime.free(piece.pointer)

    def _take_pieces(self, wanted: int, exactly: bool) -> None:
        """Pieces of up to `wanted` bytes in all, as large as there are; `exactly` also a last one of an odd size."""
        left, offset = wanted, 0
        sizes = [*PIECES_BYTES, *([wanted % PIECES_BYTES[-1]] if exactly and wanted % PIECES_BYTES[-1] else [])]
        for size in sizes:
            while left >= size and (pointer := self._malloc(size)) is not None:
                self._pieces.append(_Piece(pointer, offset, size))
                left, offset = left - size, offset + size

    def _malloc(self, size_bytes: int) -> int | None:
        """An allocation, or None when there is no such piece of memory left."""
        try:
            return int(self._runtime.malloc(size_bytes))
        except self._runtime.CUDARuntimeError as error:
            if getattr(error, "status", None) == _OUT_OF_MEMORY:
                return None
            with self._errors("taking memory for the memory test"):
                raise

    def _launch(self, action: str, piece: _Piece, pattern: Pattern, *more: Any) -> None:
        units = piece.size_bytes // kernels.ACCESS_BYTES
        arguments = (
            np.uint64(piece.pointer),
            np.uint64(units),
            np.uint64(piece.offset_bytes // WORD_BYTES),
            np.uint64(pattern.parameter & MASK64),
            np.uint64(MASK64 if pattern.inverted else 0),
            *more,
        )
        blocks = min(self._blocks, few_blocks(units, THREADS, kernels.UNROLL))
        self._kernels[f"{action}_{pattern.kind}"]((blocks,), (THREADS,), arguments)

    def _touch(self, size_bytes: int, at_end: bool) -> None:
        """Read so much of the first or of the last words."""
        for piece in reversed(self._pieces) if at_end else self._pieces:
            part = min(size_bytes, piece.size_bytes)
            size_bytes -= part
            if units := part // kernels.ACCESS_BYTES:
                pointer = piece.pointer + (piece.size_bytes - part if at_end else 0)
                arguments = (np.uint64(pointer), np.uint64(units), self._result)
                self._kernels["touch"]((self._blocks,), (THREADS,), arguments)

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Add the device time of what is launched, and wait for it."""
        with self._errors(what):
            start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            start.record()
            yield
            end.record()
            end.synchronize()
            self.seconds += float(self._cupy.cuda.get_elapsed_time(start, end)) / 1000.0

    def _parts(self, offset_bytes: int, words: U64) -> Iterator[tuple[int, U64]]:
        """Device pointer and words of each piece that holds some of the words from an offset on."""
        end = offset_bytes + words.nbytes
        for piece in self._pieces:
            low, high = max(offset_bytes, piece.offset_bytes), min(end, piece.end_bytes)
            if low < high:
                part = words[(low - offset_bytes) // WORD_BYTES : (high - offset_bytes) // WORD_BYTES]
                yield piece.pointer + low - piece.offset_bytes, part


def faults_of(result: U64) -> MemoryFaults:
    """The kernels' results in words; the records come in no order."""
    kept = min(int(result[kernels.RECORDS]), MAX_KEPT)
    end = kernels.FIRST_RECORD + kernels.RECORD_WORDS * kept
    rows = result[kernels.FIRST_RECORD : end].reshape(kept, kernels.RECORD_WORDS).tolist()
    return MemoryFaults(
        count=int(result[kernels.FOUND]),
        words=tuple(sorted(WrongWord(*row) for row in rows)),
        bits=int(result[kernels.BITS]),
        lanes=tuple(result[kernels.FIRST_LANE : kernels.FIRST_LANE + LANES].tolist()),
        lane_words=int(result[kernels.LANE_WORDS]),
    )
