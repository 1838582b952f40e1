"""A stand-in for CuPy with device memory of its own, and the memory kernels compiled for the host. It proves the
kernels' logic and the host side; only a GPU proves a GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gpu_burnin.checks.hbm.kernels import SOURCE
from tests.support.cuda_fakes import LAUNCH, SHIM, CudaError, FakeArray, FakeCupy
from tests.support.host_kernels import SANITIZED, THREADED, compile_for_host, with_host_threads

_MORE = """
template <class T> static T atomicOr(T* to, T value) { return __atomic_fetch_or(to, value, __ATOMIC_SEQ_CST); }
#undef __launch_bounds__
#undef __noinline__
#define __launch_bounds__(...)
#define __forceinline__
#define __noinline__
"""
# Multiples of 16 bytes that no number of threads divides; each a multiple of the last.
PIECES = (16 * 7 * 40, 16 * 7 * 5, 16 * 7)


def compile_hbm_kernels() -> ctypes.CDLL:
    """The kernels as a host library; skips without g++."""
    return compile_for_host(SHIM + _MORE + with_host_threads(SOURCE) + LAUNCH, *THREADED, *SANITIZED)


class HbmCupy(FakeCupy):
    """FakeCupy with memory of its own: `free_bytes` of it, and no piece larger than `largest_bytes`."""

    def __init__(self, kernels: ctypes.CDLL | None = None, free_bytes: int = 1 << 20) -> None:
        super().__init__(kernels)
        self.free_bytes, self.largest_bytes, self.total_bytes = free_bytes, 1 << 62, 1 << 21
        self.live: dict[int, np.ndarray[Any, Any]] = {}
        self.properties["l2CacheSize"] = 4096
        self.runtime.malloc, self.runtime.free = self._malloc, self._free
        self.runtime.memGetInfo = lambda: self._do("memGetInfo", (self.free_bytes, self.total_bytes))
        self.runtime.memcpy = self._memcpy

    def zeros(self, shape: Any, dtype: Any) -> FakeArray:
        self.note("zeros", shape)
        return super().zeros(shape, dtype)

    def sizes(self) -> list[int]:
        """Sizes of the live allocations, in the order in which they were made."""
        return [buffer.nbytes for buffer in self.live.values()]

    def _malloc(self, size_bytes: int) -> int:
        self.note("malloc", size_bytes)
        if size_bytes > min(self.free_bytes, self.largest_bytes):
            raise CudaError(2, "cudaErrorMemoryAllocation: out of memory")
        self.free_bytes -= size_bytes
        # Aligned as the device does it; poisoned, so that nothing counts on zeros.
        buffer = np.full(size_bytes // 8 + 32, 0xA5A5A5A5A5A5A5A5, dtype=np.uint64)
        skip = -buffer.ctypes.data % 256 // 8
        buffer = buffer[skip : skip + size_bytes // 8]
        self.live[buffer.ctypes.data] = buffer
        return int(buffer.ctypes.data)

    def _free(self, pointer: int) -> None:
        self.free_bytes += self.live.pop(pointer).nbytes
        self.note("free", pointer)

    def _memcpy(self, to: int, source: int, size_bytes: int, kind: int) -> None:
        device = {1: to, 2: source}[kind]
        assert any(start <= device and device + size_bytes <= start + b.nbytes for start, b in self.live.items())
        ctypes.memmove(to, source, size_bytes)
