"""The cuda backend without a GPU: its host side against a recording fake of CuPy (order and arguments of calls),
its kernels compiled as C++ and compared, integer for integer, with exact.py. Neither replaces a run on hardware.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import gpu

from gpu_burnin.compute import cuda, exact
from gpu_burnin.compute.backend import STORAGE_OF, BackendError, raw_from_integers
from gpu_burnin.compute.cuda import CudaBackend
from gpu_burnin.compute.cuda_source import SOURCE, STORAGE_CODE
from gpu_burnin.compute.exact import RANGES

# --- host side against a fake ---


class FakeArray:
    """A device array: only what the backend may touch, on host memory."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.data = types.SimpleNamespace(ptr=values.ctypes.data)

    def get(self) -> Any:
        return self.values.copy()

    def set(self, bits: Any) -> None:
        self.values[...] = bits

    def reshape(self, *shape: int) -> FakeArray:
        return FakeArray(self.values.reshape(*shape))

    def __getitem__(self, part: slice) -> FakeArray:
        return FakeArray(self.values[part])


class FakeCupy:
    """Records every call as (name, arguments)."""

    __version__ = "14.2.0"

    def __init__(self, available: bool = True) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        error = type("OutOfMemoryError", (Exception,), {})
        runtime = types.SimpleNamespace(
            deviceSynchronize=lambda: self.note("deviceSynchronize"),
            runtimeGetVersion=lambda: 12090,
            driverGetVersion=lambda: 13000,
        )
        self.cuda = types.SimpleNamespace(
            is_available=lambda: available,
            runtime=runtime,
            memory=types.SimpleNamespace(OutOfMemoryError=error),
            Device=lambda i: types.SimpleNamespace(use=lambda: self.note("use", i)),
        )
        self.cublas = types.SimpleNamespace(
            create=lambda: 4711,
            destroy=lambda handle: self.note("destroy", handle),
            getVersion=lambda handle: 120900,
            gemmEx=lambda *arguments: self.note("gemmEx", *arguments),
        )
        self.out_of_memory = False

    def note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))

    def RawModule(self, code: str) -> Any:
        self.note("RawModule", code)

        def get_function(name: str) -> Any:
            return lambda grid, block, arguments: self.note(name, grid, block, *arguments)

        return types.SimpleNamespace(get_function=get_function)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> FakeArray:
        if self.out_of_memory:
            raise self.cuda.memory.OutOfMemoryError
        return FakeArray(np.zeros(shape, dtype=dtype))

    def zeros(self, count: int, dtype: Any) -> FakeArray:
        return FakeArray(np.zeros(count, dtype=dtype))

    def asarray(self, values: Any) -> FakeArray:
        return FakeArray(values)


def _install(monkeypatch: pytest.MonkeyPatch, fake: FakeCupy) -> None:
    modules = {"cupy": fake, "cupy_backends.cuda.libs.cublas": fake.cublas}
    monkeypatch.setattr(cuda.importlib, "import_module", modules.__getitem__)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    made = FakeCupy()
    _install(monkeypatch, made)
    return made


@pytest.fixture
def backend(fake: FakeCupy) -> CudaBackend:
    made = CudaBackend()
    made.open(gpu())
    fake.calls.clear()
    return made


def test_importing_the_backend_does_not_import_cupy() -> None:
    code = "import sys, gpu_burnin.compute.cuda; sys.exit('cupy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)


def test_open_takes_the_device_and_compiles_once(fake: FakeCupy) -> None:
    backend = CudaBackend()
    backend.open(gpu())
    assert [name for name, _ in fake.calls] == ["use", "RawModule"]
    assert backend.simulated is False
    assert backend.facts()["cublas"] == 120900
    backend.close()
    backend.close()
    assert fake.calls[-1] == ("destroy", (4711,))
    assert len(fake.calls) == 3


def test_missing_cupy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(cuda.importlib, "import_module", missing)
    with pytest.raises(BackendError, match=r"gpu-burnin\[cuda12\]"):
        CudaBackend().open(gpu())


def test_no_usable_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, FakeCupy(available=False))
    with pytest.raises(BackendError, match="nvidia-smi"):
        CudaBackend().open(gpu())


def test_out_of_memory_names_the_matrix(fake: FakeCupy, backend: CudaBackend) -> None:
    fake.out_of_memory = True
    with pytest.raises(BackendError, match="8 x 16 fp64"):
        backend.allocate("fp64", 8, 16)


# cudaDataType_t of operand and result, cublasComputeType_t (library_types.h, cublas_api.h).
_TYPES = {
    "fp64": (1, 1, 70), "fp32": (0, 0, 68), "tf32": (0, 0, 77), "bf16": (14, 0, 68), "fp16": (2, 0, 68),
    "int8": (3, 10, 72),
}  # fmt: skip


@pytest.mark.parametrize("precision", CudaBackend.precisions)
def test_gemm_is_the_column_major_product_then_the_counter(
    fake: FakeCupy, backend: CudaBackend, precision: str
) -> None:
    operand, result = STORAGE_OF[precision]
    a, b, c = backend.allocate(operand, 32, 48), backend.allocate(operand, 48, 16), backend.allocate(result, 32, 16)
    scalars: dict[str, Any] = {}

    def gemm_ex(*arguments: Any) -> None:
        kind = {"fp64": ctypes.c_double, "int8": ctypes.c_int32}.get(precision, ctypes.c_float)
        scalars.update(alpha=kind.from_address(arguments[6]).value, beta=kind.from_address(arguments[13]).value)
        fake.note("gemmEx", *arguments)

    fake.cublas.gemmEx = gemm_ex
    backend.gemm(precision, a, b, c)
    (name, arguments), (counter, count_arguments) = fake.calls
    operand_type, result_type, compute = _TYPES[precision]
    assert name == "gemmEx"
    handle, op_a, op_b, m, n, k, _, left, left_type, lda, right, right_type, ldb, _, out, out_type, ldc, mode, algo = (
        arguments
    )
    assert (handle, op_a, op_b, m, n, k) == (4711, 0, 0, 16, 32, 48)
    assert (left, left_type, lda) == (b.data.data.ptr, operand_type, 16)
    assert (right, right_type, ldb) == (a.data.data.ptr, operand_type, 48)
    assert (out, out_type, ldc) == (c.data.data.ptr, result_type, 16)
    assert (mode, algo) == (compute, -1)
    assert scalars == {"alpha": 1, "beta": 0}
    assert (counter, count_arguments[:2]) == ("count_launch", ((1,), (1,)))


def test_fill_digest_and_bilinear_pass_typed_arguments(fake: FakeCupy, backend: CudaBackend) -> None:
    buffer = backend.allocate("fp32", 4, 8)
    backend.fill(buffer, 123, 63, True, 4096)
    assert backend.digest(buffer, 5) == exact.Digest(0)
    w, v = exact.challenge(1, 4, 8)
    assert backend.bilinear(buffer, w, v) == 0
    backend.synchronize()
    names = [name for name, _ in fake.calls]
    assert names == ["fill", "digest", "bilinear", "deviceSynchronize"]
    fill = fake.calls[0][1][2:]
    assert [(type(x), int(x)) for x in fill[1:]] == [
        (np.int32, STORAGE_CODE["fp32"]), (np.uint64, 32), (np.uint64, 8), (np.uint64, 123), (np.uint64, 127),
        (np.int64, 63), (np.uint64, 8),
    ]  # fmt: skip
    assert [type(x) for x in fake.calls[1][1][3:6]] == [np.int32, np.uint64, np.uint32]


def test_raw_access_moves_single_elements(backend: CudaBackend) -> None:
    buffer = backend.allocate("fp32", 4, 8)
    backend.write_raw(buffer, 9, np.array([7, 8], dtype=np.uint32))
    assert backend.read_raw(buffer, 8, 4).tolist() == [0, 7, 8, 0]
    assert buffer.data.values[1, 1] == 7


def test_memory_is_said_to_be_not_covered(backend: CudaBackend) -> None:
    assert backend.covers_memory is False
    with pytest.raises(BackendError):
        backend.memory_allocate(8)
    assert "fp8_e4m3" not in backend.precisions


# --- kernels compiled for the host ---

_SHIM = """
#include <cmath>
#include <cstring>
using std::isfinite; using std::rint; using std::fabs;
struct Dim { unsigned x; };
static Dim gridDim = {1}, blockDim = {1}, blockIdx = {0}, threadIdx = {0};
#define __device__ static
#define __global__
static void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }
static unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
"""
_ASSEMBLY = 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));'


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels as a host library; the one PTX instruction becomes the compiler's own conversion to FP16."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("kernels")
    assert _ASSEMBLY in SOURCE
    source = SOURCE.replace(_ASSEMBLY, "_Float16 half = (_Float16)f; std::memcpy(&h, &half, 2);")
    (folder / "k.cpp").write_text(_SHIM + source)
    library = folder / "k.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(folder / "k.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "_Float16" in done.stderr:
        pytest.skip("needs a g++ that knows _Float16")
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def _pointer(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


@pytest.mark.parametrize("precision", CudaBackend.precisions)
def test_kernel_fill_is_the_generator(kernels: ctypes.CDLL, precision: str) -> None:
    storage = STORAGE_OF[precision][0]
    for r in exact.ranges_for(precision):
        rows, cols, key = 24, 40, exact.stream_key(5, "a")
        expected = raw_from_integers(exact.operand_rows(key, r.ra, r.signed, r.stride, 0, rows, cols), storage)
        got = np.zeros_like(expected)
        span, low = (2 * r.ra + 1, r.ra) if r.signed else (r.ra + 1, 0)
        kernels.fill(
            _pointer(got), ctypes.c_int(STORAGE_CODE[storage]), _u64(rows * cols), _u64(cols), _u64(key),
            _u64(span), ctypes.c_int64(low), _u64(min(r.stride, cols)),
        )  # fmt: skip
        assert np.array_equal(got, expected), r.name


_RESULTS = [
    ("fp32", np.array([[0.0, -0.0, 5, -7], [2**24, -(2**24), np.nan, 0.5], [np.inf, -np.inf, 1e30, 3]], np.float32)),
    ("fp64", np.array([[2.0**53, -(2.0**53), 2.0**54, 1e300], [0.25, np.nan, -np.inf, -(2.0**31)]], np.float64)),
    ("int32", np.array([[2**31 - 1, -(2**31), 0], [1, -1, 12345]], np.int32)),
]


@pytest.mark.parametrize(("storage", "values"), _RESULTS, ids=lambda x: x if isinstance(x, str) else "")
def test_kernel_digest_and_bilinear_are_those_of_the_host(
    kernels: ctypes.CDLL, storage: str, values: np.ndarray[Any, Any]
) -> None:
    out = np.zeros(3, dtype=np.uint64)
    code, count = ctypes.c_int(STORAGE_CODE[storage]), _u64(values.size)
    kernels.digest(_pointer(values), code, count, ctypes.c_uint32(0x9E3779B9), _pointer(out))
    assert exact.Digest(*(int(x) for x in out)) == exact.digest(values, 0x9E3779B9)
    integers = values.astype(np.int64) if storage == "int32" else exact.to_integers(values)[0]
    w, v = exact.challenge(3, *values.shape)
    total = np.zeros(1, dtype=np.uint64)
    kernels.bilinear(_pointer(values), code, count, _u64(values.shape[1]), _pointer(w), _pointer(v), _pointer(total))
    assert int(total[0]) == exact.bilinear(integers, w, v)


def test_kernel_digest_of_a_product_is_common_with_the_host(kernels: ctypes.CDLL) -> None:
    a, b = exact.operand_a(RANGES["wide"], 1, 32, 64), exact.operand_b(RANGES["wide"], 1, 64, 32)
    product = (a @ b).astype(np.float64)
    out = np.zeros(3, dtype=np.uint64)
    kernels.digest(_pointer(product), ctypes.c_int(0), _u64(product.size), ctypes.c_uint32(7), _pointer(out))
    assert int(out[0]) == exact.digest_integers(a @ b, 7)


def test_kernel_counts_launches(kernels: ctypes.CDLL) -> None:
    counter = np.zeros(1, dtype=np.uint64)
    kernels.count_launch(_pointer(counter))
    kernels.count_launch(_pointer(counter))
    assert counter[0] == 2
