"""Stand-ins for CuPy and libcublasLt. They record every call; with the kernels compiled for the host they also compute,
so that the device's host side and its kernels can be compared with the CPU device. None of it replaces a GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gpu_burnin.device import cuda, cuda_device
from gpu_burnin.device.storage import values_from_raw
from gpu_burnin.exact import cublaslt
from gpu_burnin.exact.cublaslt import CUDA_TYPE, HeuristicResult
from gpu_burnin.exact.cuda import SOURCE
from tests.support.host_kernels import HOST_THREADS, THREADED, compile_for_host, parameters, with_host_threads

STREAM = 0x7
# Of the kernels' parameters; an address may be a number too.
_SCALARS = {"int": np.int32, "u32": np.uint32, "u64": np.uint64, "i64": np.int64, "*": np.uint64}

# --- kernels compiled for the host ---

SHIM = """
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
#ifdef __SSE2__
#include <immintrin.h>
#endif
using std::isfinite; using std::rint; using std::fabs;
struct Dim { unsigned x; };
struct uint4 { unsigned x, y, z, w; };
static Dim gridDim = {1};
static thread_local Dim blockIdx = {0}, threadIdx = {0};
static std::unique_ptr<std::barrier<>> everyone;
template <class T> static T atomicAdd(T* to, T value) { return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST); }
template <class To, class From> static To cast(From from) { To to; std::memcpy(&to, &from, sizeof to); return to; }
static unsigned __float_as_uint(float f) { return cast<unsigned>(f); }
static float __uint_as_float(unsigned u) { return cast<float>(u); }
static long long __double_as_longlong(double d) { return cast<long long>(d); }
static double __longlong_as_double(long long i) { return cast<double>(i); }
// As the GPU converts: NaN is 0, what does not fit becomes the nearest integer that does.
static int __float2int_rz(float f) {
    return f != f ? 0 : f >= 2147483648.0f ? 2147483647 : f < -2147483648.0f ? -2147483647 - 1 : (int)f;
}
static float __int2float_rz(int i) {
    double d = i;
    float f = (float)d;
    return std::fabs((double)f) > std::fabs(d) ? std::nextafterf(f, 0.0f) : f;
}
#define __device__
#define __global__
#define __shared__ static
#define __noinline__
#define __launch_bounds__(threads)
#define __threadfence()
#define __syncthreads() everyone->arrive_and_wait()
"""
# Every parameter is an integer or a pointer, so a kernel can be called with 14 words whatever it takes.
LAUNCH = """
// Set: subnormals are 0 in all arithmetic, as in FP32 on a GPU under -ftz=true; here in FP64 as well.
extern "C" { int flushing = 0; }
static void set_mode() {
#ifdef __SSE2__
    if (flushing) _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zero
#endif
}
extern "C" void launch(void* kernel, unsigned grid, unsigned threads, const u64* a) {
    auto run = (void (*)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64))kernel;
    gridDim.x = grid;
    for (unsigned block = 0; block < grid; block++) {
        everyone = std::make_unique<std::barrier<>>(threads);
        std::vector<std::thread> team;
        for (unsigned t = 0; t < threads; t++) team.emplace_back([=] {
            set_mode();
            blockIdx.x = block; threadIdx.x = t;
            run(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]);
        });
        for (auto& thread : team) thread.join();
    }
}
"""
_ASSEMBLY = 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));'


def compile_product_kernels() -> ctypes.CDLL:
    """The kernels as a host library; the one PTX instruction becomes the compiler's own conversion to FP16."""
    assert SOURCE.count(_ASSEMBLY) == 1
    source = SOURCE.replace(_ASSEMBLY, "_Float16 half = (_Float16)f; std::memcpy(&h, &half, 2);")
    return compile_for_host(SHIM + with_host_threads(source) + LAUNCH, *THREADED)


# --- CuPy ---


class FakePointer:
    """A place in device memory."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._bytes = values.view(np.uint8)
        self.ptr = values.ctypes.data

    def memset_async(self, value: int, size: int) -> None:
        """Fill bytes."""
        self._bytes[:size] = value

    def copy_from_device_async(self, source: FakePointer, size: int) -> None:
        """Copy bytes from another place on the device."""
        self._bytes[:size] = source._bytes[:size]


class FakeArray:
    """A device array: only what the device may touch, on host memory."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    @property
    def data(self) -> FakePointer:
        return FakePointer(self.values.reshape(-1))

    @property
    def size(self) -> int:
        return self.values.size

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def get(self) -> Any:
        return self.values.copy()

    def set(self, bits: Any) -> None:
        self.values[...] = bits

    def __getitem__(self, part: Any) -> FakeArray:
        return FakeArray(self.values[part])


class CudaError(Exception):
    """What CuPy raises for an error of the CUDA runtime."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class FakeEvent:
    """An event; times are the order of recording, in milliseconds."""

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy
        self.time_ms = 0.0

    def record(self) -> None:
        self._cupy.note("record")
        self._cupy.now_ms += 1.0
        self.time_ms = self._cupy.now_ms

    def synchronize(self) -> None:
        self._cupy.note("wait")


def use_fakes(monkeypatch: pytest.MonkeyPatch, cupy: FakeCupy, library: FakeLt | None = None) -> None:
    """A CudaDevice that is opened now gets these: CuPy, which loads kernels too, and libcublasLt."""
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    real = importlib.import_module
    monkeypatch.setattr(cuda_device.importlib, "import_module", lambda name: cupy if name == "cupy" else real(name))
    monkeypatch.setattr(cuda, "open_loader", lambda *_: cupy)
    if library is not None:
        monkeypatch.setattr(cublaslt, "load_library", lambda: library)


class FakeCupy:
    """Records every call as (name, arguments); computes when it is given the kernels compiled for the host."""

    __version__ = "14.2.0"

    def __init__(self, kernels: ctypes.CDLL | None = None, capability: tuple[int, int] = (9, 0)) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.kernels = kernels
        self._parameters: dict[str, tuple[str, ...]] = {}
        self.now_ms = 0.0
        self.failures: dict[str, Exception] = {}
        self.properties: dict[str, Any] = {
            "name": b"NVIDIA Test", "major": capability[0], "minor": capability[1], "multiProcessorCount": 1,
        }  # fmt: skip
        self.runtime = types.SimpleNamespace(
            CUDARuntimeError=CudaError,
            getDeviceCount=lambda: self._do("getDeviceCount", 1),
            getDeviceProperties=lambda device: self._do("getDeviceProperties", self.properties),
            deviceGetPCIBusId=lambda device: "0000:01:00.0",
            deviceGetAttribute=lambda attribute, device: {16: 2, 97: 233472}[attribute],
            deviceSynchronize=lambda: self._do("deviceSynchronize", None),
            runtimeGetVersion=lambda: 13020,
            driverGetVersion=lambda: 13000,
        )
        self.cuda = types.SimpleNamespace(
            runtime=self.runtime,
            driver=types.SimpleNamespace(CUDADriverError=type("CUDADriverError", (Exception,), {})),
            compiler=types.SimpleNamespace(CompileException=type("CompileException", (Exception,), {})),
            memory=types.SimpleNamespace(OutOfMemoryError=type("OutOfMemoryError", (MemoryError,), {})),
            Device=lambda i: types.SimpleNamespace(use=lambda: self.note("use", i)),
            Event=lambda: FakeEvent(self),
            get_elapsed_time=lambda start, end: end.time_ms - start.time_ms,
            get_current_stream=lambda: types.SimpleNamespace(ptr=STREAM),
        )

    def names(self) -> list[str]:
        """Names of the calls so far."""
        return [name for name, _ in self.calls]

    def note(self, name: str, *arguments: Any) -> None:
        """Record a call, and fail it if it is to fail."""
        self.calls.append((name, arguments))
        if name in self.failures:
            raise self.failures[name]

    def _do(self, name: str, answer: Any) -> Any:
        self.note(name)
        return answer

    def load(self, source: str, names: Sequence[str], shared_bytes: int = 0) -> dict[str, Any]:
        """As KernelLoader does."""
        self.note("load", source)
        if self.kernels is not None:
            self._parameters |= parameters(source)

        def function(name: str) -> Callable[..., None]:
            return lambda grid, block, arguments: self._launch(name, grid, block, arguments)

        return {name: function(name) for name in names}

    def facts(self) -> dict[str, Any]:
        """Of the loader."""
        return {"nvrtc": "13.5"}

    def _launch(self, name: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        self.note(name, grid, block, *arguments)
        if self.kernels is None:
            return
        # CuPy hands over the bytes of a NumPy scalar as they are: each has to be as wide as its parameter.
        for declared, value in zip(self._parameters[name], arguments, strict=True):
            assert isinstance(value, FakeArray) or type(value) is _SCALARS[declared], (name, declared, type(value))
        words = np.zeros(14, dtype=np.uint64)
        for i, value in enumerate(arguments):
            number = value.data.ptr if isinstance(value, FakeArray) else int(value)
            words[i] = np.uint64(number & 0xFFFFFFFFFFFFFFFF)
        threads = 1 if block == (1,) else HOST_THREADS
        kernel = ctypes.cast(getattr(self.kernels, name), ctypes.c_void_p)
        self.kernels.launch(kernel, ctypes.c_uint(grid[0]), ctypes.c_uint(threads), ctypes.c_void_p(words.ctypes.data))

    def get_default_memory_pool(self) -> Any:
        return types.SimpleNamespace(free_all_blocks=lambda: self.note("free_all_blocks"))

    def empty(self, shape: Any, dtype: Any) -> FakeArray:
        self.note("empty", shape)
        # Poisoned, so that nothing counts on zeros; a multiple of 512 bytes, as CuPy's pool gives.
        count = int(np.prod(shape))
        size_bytes = -(-count * np.dtype(dtype).itemsize // 512) * 512
        raw = np.full(size_bytes, 0xA5, dtype=np.uint8)
        return FakeArray(raw.view(dtype)[:count].reshape(shape))

    def zeros(self, shape: Any, dtype: Any) -> FakeArray:
        return FakeArray(np.zeros(shape, dtype=dtype))

    def asarray(self, values: Any) -> FakeArray:
        return FakeArray(np.array(values))


# --- libcublasLt ---


class FakeFunction:
    """A function of a library: records its arguments, returns a status."""

    def __init__(self, library: FakeLt, name: str) -> None:
        self._library, self._name = library, name
        self.argtypes: Any = None
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self._library.call(self._name, arguments)


class FakeLt:
    """libcublasLt: descriptors are numbered dictionaries; a product is made by NumPy when `computes`."""

    def __init__(self, computes: bool = False) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.objects: dict[int, dict[Any, Any]] = {}
        self.destroyed: list[int] = []
        self.statuses: dict[str, int] = {}
        self.algorithms = 1
        self.computes = computes
        self._functions: dict[str, FakeFunction] = {}

    def __getattr__(self, name: str) -> FakeFunction:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)
        return self._functions.setdefault(name, FakeFunction(self, name))

    def names(self) -> list[str]:
        """Names of the calls so far, without the prefix."""
        return [name.removeprefix("cublasLt") for name, _ in self.calls]

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer one call."""
        if name == "cublasLtGetVersion":
            return 131000
        if name == "cublasLtGetStatusName":
            return {1: b"CUBLAS_STATUS_NOT_INITIALIZED", 15: b"CUBLAS_STATUS_NOT_SUPPORTED"}.get(arguments[0])
        self.calls.append((name, arguments))
        status = self.statuses.get(name, 0)
        if status == 0:
            getattr(self, "_" + name.removeprefix("cublasLt"), lambda *a: None)(*arguments)
        return status

    def _new(self, where: Any, **content: Any) -> None:
        number = 0x1000 + len(self.objects)
        self.objects[number] = content
        where._obj.value = number

    def _Create(self, where: Any) -> None:
        self._new(where, kind="handle")

    def _MatmulDescCreate(self, where: Any, compute: int, scale: int) -> None:
        self._new(where, kind="operation", compute=compute, scale=scale, attributes={})

    def _MatmulDescSetAttribute(self, which: Any, attribute: int, value: Any, size: int) -> None:
        assert size == ctypes.sizeof(value._obj)
        self.objects[which.value]["attributes"][attribute] = (type(value._obj), value._obj.value)

    def _MatrixLayoutCreate(self, where: Any, cuda_type: int, rows: int, cols: int, ld: int) -> None:
        self._new(where, kind="layout", type=cuda_type, rows=rows, cols=cols, ld=ld)

    def _MatmulPreferenceCreate(self, where: Any) -> None:
        self._new(where, kind="preference", attributes={})

    def _MatmulPreferenceSetAttribute(self, which: Any, attribute: int, value: Any, size: int) -> None:
        self._MatmulDescSetAttribute(which, attribute, value, size)

    def _MatmulAlgoGetHeuristic(self, *arguments: Any) -> None:
        found, count = arguments[8]._obj, arguments[9]._obj
        assert isinstance(found, HeuristicResult)
        found.algo.data[0], found.algo.data[7] = 0x0102030405060708, 0xFF
        count.value = self.algorithms

    def _destroy(self, which: Any) -> None:
        self.destroyed.append(which.value)

    _Destroy = _MatmulDescDestroy = _MatrixLayoutDestroy = _MatmulPreferenceDestroy = _destroy

    def _Matmul(self, *arguments: Any) -> None:
        if not self.computes:
            return
        first, second, result = (self.objects[arguments[i].value] for i in (4, 6, 9))
        left, right = _matrix(arguments[3], first).T, _matrix(arguments[5], second)
        out = _raw(arguments[8], result)
        if result["type"] == CUDA_TYPE["int32"]:
            out[...] = (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int32).view(np.uint32)
        else:
            with np.errstate(all="ignore"):
                out[...] = (left @ right).astype(left.dtype).view(out.dtype)


_NAME = {number: name for name, number in CUDA_TYPE.items()}
_SIZE = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "int32": 4, "fp8_e4m3": 1}


def _raw(address: int, layout: dict[Any, Any]) -> np.ndarray[Any, Any]:
    """A column-major matrix at an address, as bits."""
    size = _SIZE[_NAME[layout["type"]]]
    assert layout["ld"] == layout["rows"]
    memory = (ctypes.c_uint8 * (layout["rows"] * layout["cols"] * size)).from_address(address)
    return np.frombuffer(memory, dtype=f"u{size}").reshape(layout["cols"], layout["rows"]).T


def _matrix(address: int, layout: dict[Any, Any]) -> np.ndarray[Any, Any]:
    return values_from_raw(np.ascontiguousarray(_raw(address, layout)), _NAME[layout["type"]])
