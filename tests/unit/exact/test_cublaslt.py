"""The ctypes binding of cublasLt without a GPU: values and order of calls, clean-up, errors, finding the library."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_burnin.device import cuda_device, wheels
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact import cublaslt
from gpu_burnin.exact.cublaslt import WORKSPACE_BYTES, CublasLt, HeuristicResult, Problem
from tests.support.cuda_fakes import FakeLt

_WORKSPACE, _ONE = 0xAAAA00, 0xBBBB00


@pytest.fixture
def library() -> FakeLt:
    """libcublasLt."""
    return FakeLt()


@pytest.fixture
def lt(library: FakeLt) -> CublasLt:
    """A handle of it."""
    return CublasLt(library, _WORKSPACE, _ONE)


# cublasComputeType_t, type of alpha and beta, type of the operands and of the result (cudaDataType_t).
_TYPES = {
    "fp64": (70, 1, 1, 1),
    "fp32": (68, 0, 0, 0),
    "tf32": (77, 0, 0, 0),
    "bf16": (68, 0, 14, 0),
    "fp16": (68, 0, 2, 0),
    "int8": (72, 10, 3, 10),
    "fp8_e4m3": (68, 0, 28, 0),
}


@pytest.mark.parametrize("precision", _TYPES)
def test_a_product_is_the_tn_problem_of_the_transposed_matrices(lt: CublasLt, library: FakeLt, precision: str) -> None:
    m, n, k = 32, 16, 48
    lt.matmul(Problem(precision, m, n, k), a=0xA, b=0xB, c=0xC, stream=0x57)
    compute, scale, operand, result = _TYPES[precision]
    name, arguments = library.calls[-1]
    assert name == "cublasLtMatmul"
    handle, operation, alpha, first, first_layout, second, second_layout, beta, c, c_layout, d, d_layout, *rest = (
        arguments
    )
    objects = library.objects
    assert objects[handle.value]["kind"] == "handle"
    described = objects[operation.value]
    assert (described["compute"], described["scale"]) == (compute, scale)
    expected: dict[int, Any] = {3: (ctypes.c_int32, 1), 4: (ctypes.c_int32, 0)}
    if precision == "fp8_e4m3":
        expected |= {17: (ctypes.c_void_p, _ONE), 18: (ctypes.c_void_p, _ONE), 25: (ctypes.c_int8, 0)}
    assert described["attributes"] == expected
    assert (first, second, c, d) == (0xB, 0xA, 0xC, 0xC)
    layouts = [objects[x.value] for x in (first_layout, second_layout, c_layout, d_layout)]
    assert [(x["type"], x["rows"], x["cols"], x["ld"]) for x in layouts] == [
        (operand, k, n, k), (operand, k, m, k), (result, n, m, n), (result, n, m, n),
    ]  # fmt: skip
    scalar = {1: ctypes.c_double, 10: ctypes.c_int32, 0: ctypes.c_float}[scale]
    assert (type(alpha._obj), alpha._obj.value, type(beta._obj), beta._obj.value) == (scalar, 1, scalar, 0)
    algorithm, workspace, size, stream = rest
    assert (workspace, size, stream) == (_WORKSPACE, WORKSPACE_BYTES, 0x57)
    assert algorithm._obj.data[0] == 0x0102030405060708


def test_the_heuristic_is_asked_once_a_problem_with_our_workspace(lt: CublasLt, library: FakeLt) -> None:
    problem = Problem("bf16", 32, 16, 48)
    for _ in range(3):
        lt.matmul(problem, 1, 2, 3, 0)
    lt.matmul(Problem("bf16", 16, 16, 48), 1, 2, 3, 0)
    assert library.names().count("MatmulAlgoGetHeuristic") == 2
    preferences = [o for o in library.objects.values() if o["kind"] == "preference"]
    assert [o["attributes"] for o in preferences] == [{1: (ctypes.c_uint64, WORKSPACE_BYTES)}] * 2


def test_the_algorithm_is_serialised_as_64_bytes(lt: CublasLt) -> None:
    text = lt.algorithm(Problem("fp32", 16, 16, 16))
    assert text == "0807060504030201" + "00" * 48 + "ff00000000000000"
    assert ctypes.sizeof(HeuristicResult) == 64 + 8 + 4 + 4 + 16


def test_everything_is_given_back_once(lt: CublasLt, library: FakeLt) -> None:
    lt.matmul(Problem("fp32", 16, 16, 16), 1, 2, 3, 0)
    lt.matmul(Problem("fp64", 16, 16, 16), 1, 2, 3, 0)
    lt.close()
    lt.close()
    assert sorted(library.destroyed) == sorted(library.objects)


@pytest.mark.parametrize(
    "name",
    [
        "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmul",
    ],
)  # fmt: skip
def test_every_status_but_success_is_an_error_with_call_and_status(lt: CublasLt, library: FakeLt, name: str) -> None:
    library.statuses[name] = 15
    with pytest.raises(DeviceError, match=rf"^{name}\b.*status 15 \(CUBLAS_STATUS_NOT_SUPPORTED\): .*install"):
        lt.matmul(Problem("int8", 32, 16, 48), 1, 2, 3, 0)


def test_an_unusable_gpu_is_seen_at_creation(library: FakeLt) -> None:
    library.statuses["cublasLtCreate"] = 1
    with pytest.raises(DeviceError, match=r"cublasLtCreate: status 1 .*nvidia-smi"):
        CublasLt(library, 0, 0)


def test_an_unknown_status_is_still_a_sentence(lt: CublasLt, library: FakeLt) -> None:
    library.statuses["cublasLtMatmul"] = 99
    with pytest.raises(DeviceError, match=r"for bf16 32 x 16 x 48: status 99 .unknown status.: see the cuBLAS"):
        lt.matmul(Problem("bf16", 32, 16, 48), 1, 2, 3, 0)


def test_no_algorithm_is_an_error(lt: CublasLt, library: FakeLt) -> None:
    library.algorithms = 0
    with pytest.raises(DeviceError, match="no algorithm for fp8_e4m3 32 x 16 x 48"):
        lt.matmul(Problem("fp8_e4m3", 32, 16, 48), 1, 2, 3, 0)


# --- finding the library ---


def test_the_wheels_come_before_the_loader_and_every_function_has_its_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "wheel_libraries", lambda: iter(["/wheel/libcublasLt.so.13"]))
    library = FakeLt()
    tried: list[str] = []

    def opener(path: str) -> FakeLt:
        tried.append(path)
        if path.startswith("/wheel"):
            raise OSError("/wheel/libcublasLt.so.13: file too short")
        return library

    assert cublaslt.load_library(opener) is library
    assert tried == ["/wheel/libcublasLt.so.13", "libcublasLt.so.13"]
    assert len(library.cublasLtMatmul.argtypes) == 16
    assert library.cublasLtMatmul.argtypes[14] is ctypes.c_size_t
    assert library.cublasLtMatrixLayoutCreate.argtypes[2:] == (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64)
    assert library.cublasLtGetVersion.restype is ctypes.c_size_t


def test_no_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "wheel_libraries", lambda: iter(()))

    def opener(path: str) -> None:
        raise OSError(f"{path}: cannot open shared object file")

    with pytest.raises(DeviceError, match=r"libcublasLt\.so\.13: cannot open .*gpu-burnin\[cuda12\]"):
        cublaslt.load_library(opener)


def test_libraries_in_the_wheels_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(wheel: str) -> list[Any]:
        if wheel != "nvidia-cublas-cu12":
            raise wheels.metadata.PackageNotFoundError(wheel)
        names = ["nvidia/cublas/lib/libcublas.so.12", "nvidia/cublas/lib/libcublasLt.so.12"]
        return [SimpleNamespace(name=Path(n).name, locate=lambda n=n: Path("/site") / n) for n in names]

    monkeypatch.setattr(wheels.metadata, "files", files)
    monkeypatch.setattr(wheels.metadata, "version", lambda wheel: "12.9.1.4")
    assert list(cublaslt.wheel_libraries()) == ["/site/nvidia/cublas/lib/libcublasLt.so.12"]


def test_what_changes_the_arithmetic_is_removed_from_the_environment() -> None:
    environment = {
        "CUBLAS_EMULATE_DOUBLE_PRECISION": "1", "CUBLASLT_LOG_LEVEL": "5", "NVIDIA_TF32_OVERRIDE": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-1", "PATH": "/bin",
    }  # fmt: skip
    removed = cuda_device.clean_environment(environment)
    assert sorted(removed) == ["CUBLASLT_LOG_LEVEL", "CUBLAS_EMULATE_DOUBLE_PRECISION", "NVIDIA_TF32_OVERRIDE"]
    assert environment == {"CUDA_VISIBLE_DEVICES": "GPU-1", "PATH": "/bin"}
