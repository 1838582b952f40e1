"""CUDA backend on CuPy: products by cublasGemmEx on raw pointers, everything else by own kernels.

Not yet run on hardware: tests drive it against a recording fake of the CuPy surface (order and arguments
of calls). CuPy is imported only when a device is opened. FP8 needs cublasLt, which CuPy does not expose,
and GPU memory has no kernels here yet: both count as not covered.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.compute.backend import STORAGE, BackendError, Buffer
from gpu_burnin.compute.cuda_source import SOURCE, STORAGE_CODE
from gpu_burnin.compute.exact import PRIME, U64, Digest
from gpu_burnin.compute.patterns import MemoryFaults, Pattern
from gpu_burnin.types import JSON, Gpu

_BLOCKS, _THREADS = 1024, 256
# cudaDataType_t (library_types.h).
_CUDA_TYPE = {"fp64": 1, "fp32": 0, "bf16": 14, "fp16": 2, "int8": 3, "int32": 10}
# cublasComputeType_t (cublas_api.h): 64F, 32F, 32F_FAST_TF32, 32I.
_COMPUTE = {"fp64": 70, "fp32": 68, "tf32": 77, "bf16": 68, "fp16": 68, "int8": 72}
_GEMM_DEFAULT = -1
_OP_N = 0
_SCALAR = {"fp64": np.float64, "int8": np.int32}


class CudaBackend:
    """The Backend protocol on one NVIDIA GPU: the only one that CUDA_VISIBLE_DEVICES shows."""

    name = "cuda"
    simulated = False
    precisions: tuple[str, ...] = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8")
    covers_memory = False

    def __init__(self) -> None:
        self._cupy: Any = None
        self._cublas: Any = None
        self._handle = 0
        self._kernels: dict[str, Any] = {}
        self._counter: Any = None

    def open(self, gpu: Gpu | None) -> None:
        try:
            self._cupy = importlib.import_module("cupy")
            self._cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
        except ImportError as error:
            raise BackendError(f"CuPy is missing ({error}): install gpu-burnin[cuda12] or [cuda13]") from error
        if not self._cupy.cuda.is_available():
            raise BackendError("CUDA finds no usable GPU: check the driver with nvidia-smi")
        self._cupy.cuda.Device(0).use()
        self._handle = self._cublas.create()
        module = self._cupy.RawModule(code=SOURCE)
        self._kernels = {n: module.get_function(n) for n in ("fill", "digest", "bilinear", "count_launch")}
        self._counter = self._cupy.zeros(1, dtype=np.uint64)

    def close(self) -> None:
        if self._handle:
            self._cublas.destroy(self._handle)
            self._handle = 0

    def facts(self) -> Mapping[str, JSON]:
        runtime = self._cupy.cuda.runtime
        return {
            "backend": "cuda",
            "cupy": str(self._cupy.__version__),
            "cuda_runtime": int(runtime.runtimeGetVersion()),
            "cuda_driver": int(runtime.driverGetVersion()),
            "cublas": int(self._cublas.getVersion(self._handle)),
        }

    def allocate(self, storage: str, rows: int, cols: int) -> Buffer:
        kind = STORAGE[storage]
        try:
            data = self._cupy.empty((rows, cols), dtype=np.dtype(f"u{kind.size_bytes}"))
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise BackendError(
                f"no GPU memory for a {rows} x {cols} {storage} matrix: free the GPU or use smaller shapes"
            ) from error
        return Buffer(kind, rows, cols, data)

    def fill(self, buffer: Buffer, key: int, bound: int, signed: bool, stride: int) -> None:
        span, low = (2 * bound + 1, bound) if signed else (bound + 1, 0)
        self._launch(
            "fill",
            buffer.data,
            np.int32(STORAGE_CODE[buffer.storage.name]),
            np.uint64(buffer.elements),
            np.uint64(buffer.cols),
            np.uint64(key),
            np.uint64(span),
            np.int64(low),
            np.uint64(min(stride, buffer.cols)),
        )

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        """cuBLAS is column-major: the row-major C = A B is its C^T = B^T A^T, with A and B exchanged."""
        scalar = _SCALAR.get(precision, np.float32)
        one, zero = np.ones(1, dtype=scalar), np.zeros(1, dtype=scalar)
        m, n, k = c.rows, c.cols, a.cols
        self._cublas.gemmEx(
            self._handle, _OP_N, _OP_N, n, m, k,
            one.ctypes.data,
            b.data.data.ptr, _CUDA_TYPE[b.storage.name], n,
            a.data.data.ptr, _CUDA_TYPE[a.storage.name], k,
            zero.ctypes.data,
            c.data.data.ptr, _CUDA_TYPE[c.storage.name], n,
            _COMPUTE[precision], _GEMM_DEFAULT,
        )  # fmt: skip
        self._kernels["count_launch"]((1,), (1,), (self._counter,))

    def synchronize(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()

    def launches(self) -> int:
        return int(self._counter.get()[0])

    def digest(self, c: Buffer, key: int) -> Digest:
        out = self._cupy.zeros(3, dtype=np.uint64)
        code = np.int32(STORAGE_CODE[c.storage.name])
        self._launch("digest", c.data, code, np.uint64(c.elements), np.uint32(key & 0xFFFFFFFF), out)
        value, nonfinite, noninteger = (int(x) for x in out.get())
        return Digest(value, nonfinite, noninteger)

    def bilinear(self, c: Buffer, w: U64, v: U64) -> int:
        out = self._cupy.zeros(1, dtype=np.uint64)
        left, right = self._cupy.asarray(w), self._cupy.asarray(v)
        code = np.int32(STORAGE_CODE[c.storage.name])
        self._launch("bilinear", c.data, code, np.uint64(c.elements), np.uint64(c.cols), left, right, out)
        return int(out.get()[0]) % PRIME

    def read_raw(self, buffer: Buffer, start: int, count: int) -> NDArray[Any]:
        bits: NDArray[Any] = buffer.data.reshape(-1)[start : start + count].get()
        return bits

    def write_raw(self, buffer: Buffer, start: int, bits: NDArray[Any]) -> None:
        buffer.data.reshape(-1)[start : start + bits.size].set(np.ascontiguousarray(bits))

    def memory_allocate(self, size_bytes: int) -> Any:
        raise BackendError("the cuda backend has no memory test yet: ask covers_memory first")

    def memory_write(self, memory: Any, pattern: Pattern) -> None:
        self.memory_allocate(0)

    def memory_verify(
        self, memory: Any, pattern: Pattern, then: Pattern | None = None, downwards: bool = False
    ) -> MemoryFaults:
        self.memory_allocate(0)
        return MemoryFaults()

    def memory_flip(self, memory: Any, offset_bytes: int, mask: int) -> None:
        self.memory_allocate(0)

    def _launch(self, kernel: str, *arguments: Any) -> None:
        self._kernels[kernel]((_BLOCKS,), (_THREADS,), arguments)
