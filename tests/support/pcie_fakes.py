"""What CudaPcie uses of CuPy, on host memory: streams, events, pinned memory, copies; kernels compiled for the
host. None of it replaces a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from gpu_burnin.checks.pcie.cuda import SOURCE
from tests.support.cuda_fakes import LAUNCH, SHIM, CudaError, FakeCupy
from tests.support.host_kernels import THREADED, compile_for_host, with_host_threads

_MIN = """
template <class T> static T link_min(T* to, T value) {
    T seen = __atomic_load_n(to, __ATOMIC_SEQ_CST);
    while (value < seen && !__atomic_compare_exchange_n(to, &seen, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return seen;
}
#define atomicMin link_min
"""


def compile_pcie_kernels() -> ctypes.CDLL:
    """The link's kernels as a host library with real threads."""
    return compile_for_host(SHIM + _MIN + with_host_threads(SOURCE) + LAUNCH, *THREADED)


class FakeStream:
    """A stream: it only has a number."""

    def __init__(self, cupy: FakePcieCupy, non_blocking: bool) -> None:
        assert non_blocking
        self._cupy = cupy
        self.ptr = cupy.next_stream = cupy.next_stream + 1

    def wait_event(self, event: FakeLinkEvent) -> None:
        self._cupy.note("wait_event", self.ptr, event)


class FakeLinkEvent:
    """An event recorded in a stream; times are the order of recording, in milliseconds."""

    def __init__(self, cupy: FakePcieCupy) -> None:
        self._cupy = cupy
        self.time_ms = 0.0

    def record(self, stream: FakeStream) -> None:
        self._cupy.note("record", stream.ptr, self)
        self._cupy.now_ms += 1.0
        self.time_ms = self._cupy.now_ms

    def synchronize(self) -> None:
        self._cupy.note("wait", self)


class FakePcieCupy(FakeCupy):
    """FakeCupy with what a link needs; memory that was given back is no longer there."""

    def __init__(self, kernels: ctypes.CDLL | None = None) -> None:
        super().__init__(kernels)
        self.next_stream = 0x100
        self.host: dict[int, Any] = {}
        self.cuda.Stream = lambda non_blocking: FakeStream(self, non_blocking)
        self.cuda.Event = lambda: FakeLinkEvent(self)
        self.runtime.hostAlloc = self._host_alloc
        self.runtime.freeHost = self._free_host
        self.runtime.memcpyAsync = self._copy

    def _host_alloc(self, size_bytes: int, flags: int) -> int:
        self.note("hostAlloc", size_bytes, flags)
        memory = np.zeros(size_bytes // 8, dtype=np.uint64)
        self.host[memory.ctypes.data] = memory
        return memory.ctypes.data

    def _free_host(self, address: int) -> None:
        self.note("freeHost", address)
        del self.host[address]

    def _copy(self, to: int, origin: int, size_bytes: int, kind: int, stream: int) -> None:
        self.note("memcpyAsync", to, origin, size_bytes, kind, stream)
        ctypes.memmove(to, origin, size_bytes)


__all__ = ["CudaError", "FakePcieCupy", "compile_pcie_kernels"]
