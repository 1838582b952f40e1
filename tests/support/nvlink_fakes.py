"""Stand-ins for the copies between GPUs: the part of CuPy that they use on host memory, which two of them share as two
GPUs would by handles, and their kernels compiled for the host. None of it replaces a GPU.
"""

from __future__ import annotations

import ctypes
import json
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu_burnin.checks.nvlink.cuda import SOURCE, CudaNvlink
from gpu_burnin.checks.nvlink.port import LinkFaults, NvlinkPort, transfer_key
from gpu_burnin.device.cuda_errors import DeviceErrors
from gpu_burnin.device.cuda_source import THREADS
from tests.support.host_kernels import THREADED, compile_for_host, with_host_threads

SIZE = 4096
A, B = "GPU-a", "GPU-b"


class Host:
    """The part of CuPy that the copies use, on host memory: two of them share it as two GPUs would by handles."""

    class Error(Exception):
        def __init__(self, status: int, text: str = "an error") -> None:
            super().__init__(text)
            self.status = status

    def __init__(self, kernels: ctypes.CDLL, shared: dict[bytes, Any]) -> None:
        self._library, self._shared = kernels, shared
        self._arrays: dict[int, Any] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.failures: dict[str, int] = {}
        self.now_ms = 0.0
        self._events: dict[int, float] = {}
        none = type("None_", (Exception,), {})
        self.runtime = types.SimpleNamespace(
            CUDARuntimeError=Host.Error, malloc=self._malloc, free=self._free, memset=self._memset,
            memcpyAsync=lambda to, fro, size, kind, stream: self._copy(to, fro, size, kind, stream),
            memcpy=lambda to, fro, size, kind: self._copy(to, fro, size, kind, None),
            ipcGetMemHandle=self._get, ipcOpenMemHandle=self._open, ipcCloseMemHandle=lambda p: self._note("close", p),
            streamCreateWithFlags=self._stream, streamDestroy=lambda s: self._note("streamDestroy", s),
            eventCreate=self._event, eventRecord=self._record, eventSynchronize=lambda e: self._note("wait", e),
            eventElapsedTime=lambda start, end: self._events[end] - self._events[start],
            eventDestroy=lambda e: self._note("eventDestroy", e), deviceSynchronize=lambda: self._note("synchronize"),
        )  # fmt: skip
        self.cuda = types.SimpleNamespace(
            runtime=self.runtime,
            memory=types.SimpleNamespace(OutOfMemoryError=none),
            driver=types.SimpleNamespace(CUDADriverError=none),
            compiler=types.SimpleNamespace(CompileException=none),
        )

    def _note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if name in self.failures:
            raise Host.Error(self.failures[name])

    def _malloc(self, size: int) -> int:
        self._note("malloc", size)
        array = np.full(size, 0xA5, dtype=np.uint8)
        self._arrays[array.ctypes.data] = array
        return int(array.ctypes.data)

    def _free(self, pointer: int) -> None:
        self._note("free", pointer)
        del self._arrays[pointer]

    def _memset(self, pointer: int, value: int, size: int) -> None:
        ctypes.memset(pointer, value, size)

    def _copy(self, to: int, fro: int, size: int, kind: int, stream: int | None) -> None:
        self._note("copy", to, fro, size, kind, stream)
        self.now_ms += 1.0
        ctypes.memmove(to, fro, size)

    def _get(self, pointer: int) -> bytes:
        self._note("ipcGetMemHandle", pointer)
        handle = pointer.to_bytes(64, "little")
        self._shared[handle] = self._arrays[pointer]
        return handle

    def _open(self, handle: bytes) -> int:
        self._note("ipcOpenMemHandle", handle)
        return int(self._shared[handle].ctypes.data)

    def _stream(self, flags: int) -> int:
        self._note("streamCreate", flags)
        return 100 + len(self.calls)

    def _event(self) -> int:
        self._events[len(self._events)] = 0.0
        return len(self._events) - 1

    def _record(self, event: int, stream: int) -> None:
        self._note("record", event, stream)
        self._events[event] = self.now_ms

    def load(self, source: str, names: Sequence[str], shared_bytes: int = 0) -> dict[str, Any]:
        assert source == SOURCE

        def function(name: str) -> Callable[..., None]:
            def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
                assert block == (THREADS,)
                words = [int(a.ctypes.data) if isinstance(a, Row) else int(a) for a in arguments]
                words += [0] * (4 - len(words))
                self._library.launch(
                    ctypes.cast(getattr(self._library, name), ctypes.c_void_p), grid[0],
                    *(ctypes.c_uint64(word) for word in words),
                )  # fmt: skip

            return launch

        return {name: function(name) for name in names}

    @staticmethod
    def asarray(values: Any) -> Any:
        return Array(values)


class Row:
    def __init__(self, values: Any) -> None:
        self.ctypes = values.ctypes


class Array:
    def __init__(self, values: Any) -> None:
        self._values = values.copy()

    def __getitem__(self, index: int) -> Row:
        return Row(self._values[index])

    def get(self) -> Any:
        return self._values


_SHIM = """
#include <barrier>
#include <memory>
#include <thread>
#include <vector>
struct Dim { unsigned x; };
static Dim gridDim;
static thread_local Dim blockIdx, threadIdx;
template <class T> static T atomicAdd(T* to, T value) { return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST); }
template <class T> static T atomicMin(T* to, T value) {
    T old = __atomic_load_n(to, __ATOMIC_SEQ_CST);
    while (value < old && !__atomic_compare_exchange_n(to, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return old;
}
static std::unique_ptr<std::barrier<>> everyone;
#define __device__
#define __global__
#define __shared__ static
#define __syncthreads() everyone->arrive_and_wait()
"""
_LAUNCH = """
extern "C" void launch(void* kernel, unsigned grid, u64 a, u64 b, u64 c, u64 d) {
    auto run = (void (*)(u64, u64, u64, u64))kernel;
    gridDim.x = grid;
    for (unsigned block = 0; block < grid; block++) {
        everyone = std::make_unique<std::barrier<>>(THREADS);
        std::vector<std::thread> team;
        for (unsigned t = 0; t < THREADS; t++) team.emplace_back([=] {
            blockIdx.x = block; threadIdx.x = t;
            run(a, b, c, d);
        });
        for (auto& thread : team) thread.join();
    }
}
"""


def compile_nvlink_kernels() -> ctypes.CDLL:
    """The kernels as a host library."""
    return compile_for_host(_SHIM + with_host_threads(SOURCE) + _LAUNCH, *THREADED)


def make_cuda(kernels: ctypes.CDLL, shared: dict[bytes, Any]) -> tuple[Host, CudaNvlink]:
    host = Host(kernels, shared)
    return host, CudaNvlink(host, DeviceErrors(host), host, blocks=2)


def join(ends: tuple[NvlinkPort, NvlinkPort], faults: LinkFaults | None = None) -> None:
    """Export and attach both, with new data for each other and nothing where it arrives."""
    names = (A, B)
    handles = [end.export(names[i], [names[1 - i]], SIZE, faults if i == 0 else None) for i, end in enumerate(ends)]
    for i, end in enumerate(ends):
        end.attach(names[1 - i], json.loads(json.dumps(handles[1 - i])))
        end.fill(names[1 - i], transfer_key(7, names[i], names[1 - i], 1))
        end.clear(names[1 - i])
