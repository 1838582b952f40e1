"""cublasLt through ctypes: products of every precision, FP8 included, which CuPy's cuBLAS binding does not offer.

Only what the cuda device needs. Values are those of cublasLt.h, cublas_api.h (cuBLAS 13.10) and
library_types.h (CUDA 13); the names used here are the same in cuBLAS 12. Descriptors were made and set
against both libraries without a GPU; products have run on one H100 and one H200 (docs/verified-hardware.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpu_burnin.device.port import DeviceError
from gpu_burnin.device.wheels import open_first, wheel_files
from gpu_burnin.exact.port import STORAGE_OF

SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_WHEELS = ("nvidia-cublas", "nvidia-cublas-cu12")
# cuBLAS' own default workspace on Hopper and later (cublasSetWorkspace documentation).
WORKSPACE_BYTES = 32 << 20

# cudaDataType_t.
CUDA_TYPE = {"fp64": 1, "fp32": 0, "bf16": 14, "fp16": 2, "int8": 3, "int32": 10, "fp8_e4m3": 28}
# cublasComputeType_t: 64F, 32F, 32F_FAST_TF32, 32I; none of the emulated ones (78, 79).
COMPUTE_TYPE = {"fp64": 70, "fp32": 68, "tf32": 77, "bf16": 68, "fp16": 68, "int8": 72, "fp8_e4m3": 68}
# Type of alpha and beta.
SCALE_TYPE = {p: {"fp64": 1, "int8": 10}.get(p, 0) for p in COMPUTE_TYPE}
_OP_N, _OP_T = 0, 1
# cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t.
_DESC_TRANSA, _DESC_TRANSB = 3, 4
_DESC_A_SCALE_POINTER, _DESC_B_SCALE_POINTER, _DESC_FAST_ACCUM = 17, 18, 25
_PREF_MAX_WORKSPACE_BYTES = 1

_FIXES = {
    1: "the library found no usable GPU or driver: check the driver with nvidia-smi",
    3: "there is no GPU memory left: free the GPU or use smaller shapes",
    7: "the library refuses these arguments: check the shapes (multiples of 16) and report this",
    8: "this GPU cannot run it: leave the precision out",
    13: "the GPU failed while computing: see the kernel log for an XID and run the state check",
    14: "the library failed inside: run again, and see the kernel log for an XID",
    15: "this library has no such product for this GPU: install the newest nvidia-cublas of the driver's CUDA version",
}


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: 64 bytes that mean the same wherever library version and GPU model are the same."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)

    def hex(self) -> str:
        """The 64 bytes, serialised."""
        return bytes(self).hex()


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", Algorithm),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves_count", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_PTR, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_PTR,),
    "cublasLtDestroy": (_PTR,),
    "cublasLtMatmulDescCreate": (_PTR, _INT, _INT),
    "cublasLtMatmulDescDestroy": (_PTR,),
    "cublasLtMatmulDescSetAttribute": (_PTR, _INT, _PTR, _SIZE),
    "cublasLtMatrixLayoutCreate": (_PTR, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_PTR,),
    "cublasLtMatmulPreferenceCreate": (_PTR,),
    "cublasLtMatmulPreferenceDestroy": (_PTR,),
    "cublasLtMatmulPreferenceSetAttribute": (_PTR, _INT, _PTR, _SIZE),
    "cublasLtMatmulAlgoGetHeuristic": (_PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _INT, _PTR, _PTR),
    "cublasLtMatmul": (
        _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR, _SIZE, _PTR,
    ),
}  # fmt: skip


def wheel_libraries() -> Iterator[str]:
    """Paths of libcublasLt in the installed nvidia wheels, newest CUDA first."""
    return (path for _, path in wheel_files(_WHEELS, SONAMES))


def load_library(open_library: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """libcublasLt from the nvidia wheels, else from the loader's path. Raises DeviceError when there is none."""
    others = {"cublasLtGetVersion": (_SIZE, ()), "cublasLtGetStatusName": (ctypes.c_char_p, (_INT,))}
    try:
        return open_first((*wheel_libraries(), *SONAMES), _SIGNATURES, others, open_library)
    except OSError as error:
        raise DeviceError(f"cublasLt cannot be loaded ({error}): install gpu-burnin[cuda12] or [cuda13]") from error


@dataclass(frozen=True)
class Problem:
    """A product C (m x n) = A (m x k) B (k x n): A and C row by row, B column by column."""

    precision: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.precision} {self.m} x {self.n} x {self.k}"


@dataclass(frozen=True)
class _Plan:
    """What the library holds for one problem, made once."""

    operation: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ...]
    algorithm: Algorithm
    alpha: Any
    beta: Any


class CublasLt:
    """One handle of the library with its own workspace and one plan a problem.

    The library is column-major, so the row-major C is its C^T = B^T A^T (n x m): B, stored column by column,
    is its first operand, transposed, and A its second, not transposed ("TN", which FP8 and INT8 require).
    """

    def __init__(self, library: Any, workspace: int, one: int) -> None:
        """`workspace`: device address of WORKSPACE_BYTES; `one`: device address of an FP32 1, the scale of FP8.

        Raises DeviceError when the library finds no usable GPU.
        """
        self._library = library
        self._workspace = workspace
        self._one = one
        self._plans: dict[Problem, _Plan] = {}
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        for plan in self._plans.values():
            for layout in plan.layouts:
                self._call("cublasLtMatrixLayoutDestroy", layout)
            self._call("cublasLtMatmulDescDestroy", plan.operation)
        self._plans.clear()
        if self._handle:
            self._call("cublasLtDestroy", self._handle)
            self._handle = ctypes.c_void_p()

    def version(self) -> int:
        """Version of the library, such as 131000 for 13.10.0."""
        return int(self._library.cublasLtGetVersion())

    def algorithm(self, problem: Problem) -> str:
        """The algorithm that the library chose for a problem: 64 bytes in hex. Raises DeviceError."""
        return self._plan(problem).algorithm.hex()

    def matmul(self, problem: Problem, a: int, b: int, c: int, stream: int) -> None:
        """Launch one product on a stream; `a`, `b`, `c` are device addresses. Raises DeviceError."""
        plan = self._plan(problem)
        first, second, result = plan.layouts
        self._call(
            "cublasLtMatmul",
            self._handle,
            plan.operation,
            ctypes.byref(plan.alpha),
            b,
            first,
            a,
            second,
            ctypes.byref(plan.beta),
            c,
            result,
            c,
            result,
            ctypes.byref(plan.algorithm),
            self._workspace,
            WORKSPACE_BYTES,
            stream,
            about=str(problem),
        )

    def _plan(self, problem: Problem) -> _Plan:
        if problem not in self._plans:
            self._plans[problem] = self._make_plan(problem)
        return self._plans[problem]

    def _make_plan(self, problem: Problem) -> _Plan:
        operation = self._operation(problem.precision)
        operand, result = (CUDA_TYPE[name] for name in STORAGE_OF[problem.precision])
        m, n, k = problem.m, problem.n, problem.k
        layouts = (self._layout(operand, k, n), self._layout(operand, k, m), self._layout(result, n, m))
        algorithm = self._heuristic(problem, operation, layouts)
        scalar = {"fp64": ctypes.c_double, "int8": ctypes.c_int32}.get(problem.precision, ctypes.c_float)
        return _Plan(operation, layouts, algorithm, scalar(1), scalar(0))

    def _operation(self, precision: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(made), COMPUTE_TYPE[precision], SCALE_TYPE[precision])
        attributes: list[tuple[int, Any]] = [
            (_DESC_TRANSA, ctypes.c_int32(_OP_T)),
            (_DESC_TRANSB, ctypes.c_int32(_OP_N)),
        ]
        if precision == "fp8_e4m3":
            one = ctypes.c_void_p(self._one)
            attributes += [(_DESC_A_SCALE_POINTER, one), (_DESC_B_SCALE_POINTER, one)]
            attributes.append((_DESC_FAST_ACCUM, ctypes.c_int8(0)))
        for name, value in attributes:
            size = ctypes.sizeof(value)
            self._call("cublasLtMatmulDescSetAttribute", made, name, ctypes.byref(value), size)
        return made

    def _layout(self, cuda_type: int, rows: int, cols: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(made), cuda_type, rows, cols, rows)
        return made

    def _heuristic(
        self, problem: Problem, operation: ctypes.c_void_p, layouts: tuple[ctypes.c_void_p, ...]
    ) -> Algorithm:
        preference = ctypes.c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        size = ctypes.c_uint64(WORKSPACE_BYTES)
        self._call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            _PREF_MAX_WORKSPACE_BYTES,
            ctypes.byref(size),
            ctypes.sizeof(size),
        )
        first, second, result = layouts
        found, count = HeuristicResult(), ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._handle,
            operation,
            first,
            second,
            result,
            result,
            preference,
            1,
            ctypes.byref(found),
            ctypes.byref(count),
            about=str(problem),
        )
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        if count.value < 1:
            raise DeviceError(f"cublasLtMatmulAlgoGetHeuristic: no algorithm for {problem}: {_FIXES[15]}")
        self._check("cublasLtMatmulAlgoGetHeuristic", found.state, str(problem))
        algorithm: Algorithm = found.algo
        return algorithm

    def _call(self, name: str, *arguments: Any, about: str = "") -> None:
        self._check(name, getattr(self._library, name)(*arguments), about)

    def _check(self, name: str, status: int, about: str) -> None:
        if status == 0:
            return
        stated = self._library.cublasLtGetStatusName(status)
        text = stated.decode() if stated else "unknown status"
        what = f"{name} for {about}" if about else name
        raise DeviceError(f"{what}: status {status} ({text}): {_FIXES.get(status, 'see the cuBLAS documentation')}")
