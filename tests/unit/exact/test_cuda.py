"""The cuda device and its products without a GPU: the host side against recording stand-ins (order and arguments of
calls, errors)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_burnin.device import cuda_device
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.port import DeviceError
from gpu_burnin.device.storage import Buffer
from gpu_burnin.exact import cublaslt, cuda, operands
from gpu_burnin.exact.cuda import CudaProducts
from gpu_burnin.exact.operands import Scale
from gpu_burnin.types import MigInstance
from tests.support.cuda_fakes import STREAM, CudaError, FakeArray, FakeCupy, FakeLt, use_fakes
from tests.support.engine_helpers import gpu


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    """CuPy."""
    made = FakeCupy()
    use_fakes(monkeypatch, made)
    return made


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    """libcublasLt."""
    made = FakeLt()
    monkeypatch.setattr(cublaslt, "load_library", lambda: made)
    return made


@pytest.fixture
def products(fake: FakeCupy, library: FakeLt) -> CudaProducts:
    """Products on an open device; the calls of opening are forgotten."""
    device = CudaDevice()
    device.open(gpu())
    made = CudaProducts(device)
    fake.calls.clear()
    library.calls.clear()
    return made


def _product(device: CudaDevice, storage: str = "bf16", result: str = "fp32") -> tuple[Buffer, Buffer, Buffer]:
    return (
        device.allocate(storage, 32, 48),
        device.allocate(storage, 48, 16, transposed=True),
        device.allocate(result, 32, 16),
    )


@pytest.mark.parametrize("elements", [512 * 512, 2048 * 2048])
@pytest.mark.parametrize("per_load", [2, 4])
def test_small_results_are_read_in_both_ways_of_large_ones(elements: int, per_load: int) -> None:
    """The self-test's results are small, and what it tries has to be the code that reads the large ones."""
    loads = elements // per_load
    threads = cuda_device.few_blocks(loads, cuda.THREADS, cuda.UNROLL) * cuda.THREADS
    unrolled = loads // (cuda.UNROLL * threads) * cuda.UNROLL * threads
    assert loads / 2 < unrolled < loads


def test_a_large_result_is_read_by_the_whole_device_and_a_small_one_by_few_blocks(
    products: CudaProducts, fake: FakeCupy
) -> None:
    for rows, blocks in ((16, 1), (512, 8)):  # one SM holds 8
        products.enqueue_check(products.device.allocate("fp32", rows, rows), 1, None, None)
        assert fake.calls[-1][0] == "digest_fp32" and fake.calls[-1][1][0] == (blocks,)


# --- open and close ---


def test_importing_the_device_does_not_import_cupy() -> None:
    code = "import sys, gpu_burnin.exact.cuda; sys.exit('cupy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)


def test_open_takes_the_device_compiles_once_and_close_gives_back_once(
    fake: FakeCupy, library: FakeLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_EMULATE_SINGLE_PRECISION", "1")
    monkeypatch.delenv("CUPY_CACHE_IN_MEMORY", raising=False)
    device = CudaDevice()
    device.open(gpu())
    products = CudaProducts(device)
    assert fake.names() == ["getDeviceCount", "use", "getDeviceProperties", "empty", "load"]
    assert library.names() == ["Create"]
    assert device.simulated is False
    facts = {**device.facts(), **products.facts()}
    assert facts["cublaslt"] == 131000
    assert facts["compute_capability"] == "9.0"
    assert facts["environment_removed"] == ["CUBLAS_EMULATE_SINGLE_PRECISION"]
    products.close()
    products.close()
    assert library.names() == ["Create", "Destroy"]
    assert fake.names().count("free_all_blocks") == 1
    assert not [name for name, value in vars(products).items() if isinstance(value, FakeArray)], "nothing is held"
    device.close()
    device.close()
    assert fake.names().count("free_all_blocks") == 2


def test_a_mig_instance_is_opened_where_it_is_the_one_that_was_asked_for(fake: FakeCupy, library: FakeLt) -> None:
    """A made-up card: CUDA names an instance by its GPU and its profile, and gives the GPU's address."""
    fake.properties.update(name=b"NVIDIA H200 MIG 1g.18gb")
    instances = (MigInstance("MIG-1", "1g.18gb", 16, 16 << 30), MigInstance("MIG-2", "2g.35gb", 32, 32 << 30))
    first, second = replace(gpu(), instances=instances).units
    device = CudaDevice()
    device.open(first)
    device.close()
    with pytest.raises(DeviceError, match=r"opened NVIDIA H200 MIG 1g.18gb and not the MIG instance MIG-2 \(2g.35gb\)"):
        CudaDevice().open(second)
    fake.properties.update(name=b"NVIDIA H200")
    with pytest.raises(DeviceError, match="opened NVIDIA H200 and not the MIG instance MIG-1"):
        CudaDevice().open(first)


def test_missing_cupy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(cuda_device.importlib, "import_module", missing)
    with pytest.raises(DeviceError, match=r"CuPy is missing .*gpu-burnin\[cuda12\]"):
        CudaDevice().open(gpu())


def _driver(fake: FakeCupy, version: int) -> None:
    fake.runtime.driverGetVersion = lambda: version
    fake.failures["getDeviceCount"] = CudaError(35, "cudaErrorInsufficientDriver: CUDA driver version is insufficient")


def _no_gpu(fake: FakeCupy) -> None:
    fake.failures["getDeviceCount"] = CudaError(100, "cudaErrorNoDevice: no CUDA-capable device is detected")


def _fabric(fake: FakeCupy) -> None:
    fake.failures["use"] = CudaError(802, "cudaErrorSystemNotReady: system not yet initialized")


def _compiler(fake: FakeCupy) -> None:
    fake.failures["load"] = DeviceError("NVRTC 13.5 cannot compile")


def _memory(fake: FakeCupy) -> None:
    fake.failures["empty"] = fake.cuda.memory.OutOfMemoryError("Out of memory")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda fake: _driver(fake, 12040),
            "driver supports CUDA 12.4 and CuPy needs CUDA 13.2: install a newer driver",
        ),
        (lambda fake: _driver(fake, 0), "no NVIDIA driver is loaded: install it"),
        (_no_gpu, "CUDA finds no GPU: check the driver with nvidia-smi, and that MIG mode is off"),
        (lambda fake: setattr(fake.runtime, "getDeviceCount", lambda: 0), "CUDA finds no GPU"),
        (_fabric, r"CUDA failed while looking for the GPU \(cudaErrorSystemNotReady.*: start nvidia-fabricmanager"),
        (_compiler, "^NVRTC 13.5 cannot compile"),
        (_memory, "no GPU memory while taking the GPU: free the GPU"),
        (
            lambda fake: fake.properties.update(name=b"NVIDIA H200 MIG 1g.18gb"),
            "is a MIG instance, and a whole .* MIG mode off",
        ),
        (
            lambda fake: setattr(fake.runtime, "deviceGetPCIBusId", lambda device: "0000:41:00.0"),
            "opened the GPU at 0000:41:00.0 and not GPU-0 at 0000:01:00.0: set CUDA_VISIBLE_DEVICES",
        ),
        (lambda fake: setattr(fake.runtime, "deviceGetPCIBusId", lambda device: "?"), "'\\?' is not a PCI address"),
    ],
)
def test_what_keeps_a_gpu_from_being_used_is_one_sentence_with_a_fix(
    fake: FakeCupy, library: FakeLt, spoil: Callable[[FakeCupy], Any], sentence: str
) -> None:
    spoil(fake)
    device = CudaDevice()
    with pytest.raises(DeviceError, match=sentence) as caught:
        device.open(gpu())
        CudaProducts(device)
    assert "\n" not in str(caught.value)


def test_nvml_s_longer_pci_address_is_the_same_gpu(fake: FakeCupy, library: FakeLt) -> None:
    fake.runtime.deviceGetPCIBusId = lambda device: "00000000:01:00.0"
    device = CudaDevice()
    device.open(gpu())
    assert device.multiprocessors() == 1


@pytest.mark.parametrize(
    ("capability", "missing"),
    [((7, 0), {"tf32", "bf16", "int8", "fp8_e4m3"}), ((8, 0), {"fp8_e4m3"}), ((8, 9), set()), ((10, 0), set())],
)
def test_precisions_follow_the_compute_capability(
    monkeypatch: pytest.MonkeyPatch, library: FakeLt, capability: tuple[int, int], missing: set[str]
) -> None:
    made = FakeCupy(capability=capability)
    use_fakes(monkeypatch, made)
    device = CudaDevice()
    device.open(gpu())
    products = CudaProducts(device)
    assert set(operands.PRECISIONS) - set(products.precisions) == missing
    for precision in missing:
        with pytest.raises(DeviceError, match=f"does not compute {precision} .*leave the precision out"):
            products.gemm(precision, *_product(products.device))


def test_a_device_that_is_not_open_says_so() -> None:
    with pytest.raises(DeviceError, match="not open"):
        CudaDevice().port("gpu_burnin.exact")


# --- products and checks ---


def test_a_product_goes_to_the_current_stream_then_the_counter(
    fake: FakeCupy, library: FakeLt, products: CudaProducts
) -> None:
    a, b, c = _product(products.device)
    fake.calls.clear()
    products.gemm("bf16", a, b, c)
    assert library.names()[-1] == "Matmul"
    matmul = library.calls[-1][1]
    assert (matmul[3], matmul[5], matmul[8], matmul[10]) == (
        b.data.data.ptr, a.data.data.ptr, c.data.data.ptr, c.data.data.ptr,
    )  # fmt: skip
    assert matmul[-1] == STREAM
    assert fake.names() == ["record", "count_launch"]
    assert fake.calls[-1][1][:2] == ((1,), (1,))


@pytest.mark.parametrize("wrong", ["a", "b", "c"])
def test_the_layout_of_a_product_is_checked(products: CudaProducts, wrong: str) -> None:
    sides = {
        side: products.device.allocate("fp32", 16, 16, transposed=(side == "b") != (side == wrong))
        for side in ("a", "b", "c")
    }
    with pytest.raises(DeviceError, match="B column by column"):
        products.gemm("fp32", sides["a"], sides["b"], sides["c"])


def test_a_scaled_check_uploads_its_exponents_once(fake: FakeCupy, products: CudaProducts) -> None:
    c = products.device.allocate("fp64", 16, 16)
    scale = Scale(np.arange(16, dtype=np.int16), np.arange(16, dtype=np.int16))
    fake.calls.clear()
    products.enqueue_check(c, 5, scale, None)
    products.enqueue_check(c, 5, scale, None)
    first, second = (arguments for name, arguments in fake.calls if name == "digest_fp64_scaled")
    assert first[5].data.ptr == second[5].data.ptr
    assert first[6].values.dtype == np.int16
    assert np.array_equal(first[7].values, cuda.inverse_factors(scale.rows))
    for _ in range(20):
        products.enqueue_check(c, 5, Scale(scale.rows.copy(), scale.cols.copy()), None)
    assert len(products._scales) <= 16


def test_inverse_factors_are_exact_or_nan() -> None:
    exponents = np.arange(-(1 << 15), 1 << 15).astype(np.int16)
    factors = dict(zip(exponents.tolist(), cuda.inverse_factors(exponents).tolist(), strict=True))
    assert {e: factor for e, factor in factors.items() if factor == factor} == {e: 2.0**-e for e in range(-64, 65)}
    for precision in ("fp32", "tf32", "bf16", "fp16", "fp8_e4m3"):
        for operand_range in operands.ranges_for(precision):
            spans = [operands.exponent_span(precision, operand_range, side) for side in ("a", "b")]
            assert all(-64 <= least <= greatest <= 64 for least, greatest in spans), (precision, operand_range.name)


def test_collect_waits_and_gives_device_time_from_the_first_operation(fake: FakeCupy, products: CudaProducts) -> None:
    a, b, c = _product(products.device, "fp32")
    fake.calls.clear()
    products.gemm("fp32", a, b, c)
    products.enqueue_check(c, 1, None, None)
    collected = products.collect()
    assert fake.names() == ["record", "count_launch", "digest_fp32", "record", "wait"]
    assert collected.seconds == pytest.approx(0.001)
    assert len(collected.observed) == 1


def test_collecting_nothing_reads_nothing(
    fake: FakeCupy, products: CudaProducts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch begins with it, beside copies to the host that a read would wait for."""
    monkeypatch.setattr(products, "_state_words", lambda: pytest.fail("the state was read"))
    fake.calls.clear()
    empty = products.collect()
    assert (empty.observed, empty.kept, empty.seconds) == ((), None, 0.0)
    assert fake.names() == []


def test_raw_access_moves_single_elements_in_storage_order(products: CudaProducts) -> None:
    buffer = products.device.allocate("fp32", 4, 8)
    products.device.write_raw(buffer, 0, np.zeros(32, dtype=np.uint32))
    products.device.write_raw(buffer, 9, np.array([7, 8], dtype=np.uint32))
    assert products.device.read_raw(buffer, 8, 4).tolist() == [0, 7, 8, 0]


# --- errors of the device ---


def test_out_of_memory_names_the_matrix(fake: FakeCupy, products: CudaProducts) -> None:
    _memory(fake)
    with pytest.raises(DeviceError, match="no GPU memory while allocating a 8 x 16 fp64 matrix: free the GPU"):
        products.device.allocate("fp64", 8, 16)


@pytest.mark.parametrize(
    ("status", "text", "fix"),
    [
        (214, "cudaErrorECCUncorrectable: uncorrectable ECC error encountered", "take the GPU out of use"),
        (719, "cudaErrorLaunchFailure: unspecified launch failure", "kernel log for an XID"),
        (12345, "cudaErrorOfTomorrow: what", "kernel log for an XID and check the GPU"),
    ],
)
def test_errors_while_computing_name_the_error_and_a_fix(
    fake: FakeCupy, products: CudaProducts, status: int, text: str, fix: str
) -> None:
    fake.failures["deviceSynchronize"] = CudaError(status, text)
    with pytest.raises(DeviceError, match=f"CUDA failed while waiting for the device .*{text}.*{fix}"):
        products.device.synchronize()


@pytest.mark.parametrize(
    ("status", "code"), [(214, "ECC_UNCORRECTED"), (220, "NVLINK_ERRORS"), (226, "ECC_UNCORRECTED"), (719, None)]
)
def test_damage_that_the_gpu_reports_is_a_fault_and_no_lack(
    fake: FakeCupy, products: CudaProducts, status: int, code: str | None
) -> None:
    fake.failures["deviceSynchronize"] = CudaError(status, "an error")
    with pytest.raises(DeviceError, match="XID") as raised:
        products.device.synchronize()
    assert raised.value.reason_code == code


def test_a_product_that_fails_of_damage_is_told_by_the_device(fake: FakeCupy, products: CudaProducts) -> None:
    """cublasLt gives one status for all errors of the device (CUBLAS_STATUS_EXECUTION_FAILED, 13)."""
    a, b = products.device.allocate("fp32", 16, 16), products.device.allocate("fp32", 16, 16, transposed=True)
    c = products.device.allocate("fp32", 16, 16)
    products._lt()._library.statuses["cublasLtMatmul"] = 13
    with pytest.raises(DeviceError, match="cublasLtMatmul for fp32 16 x 16 x 16: status 13") as raised:
        products.gemm("fp32", a, b, c)
    assert raised.value.reason_code is None
    fake.failures["deviceSynchronize"] = CudaError(214, "cudaErrorECCUncorrectable: uncorrectable ECC error")
    with pytest.raises(DeviceError, match="uncorrectable ECC error") as raised:
        products.gemm("fp32", a, b, c)
    assert raised.value.reason_code == "ECC_UNCORRECTED"


def test_a_library_that_cupy_cannot_load_names_what_to_install(fake: FakeCupy, products: CudaProducts) -> None:
    fake.failures["deviceSynchronize"] = RuntimeError("CuPy failed to load libnvrtc.so.13: OSError: no such file")
    with pytest.raises(DeviceError, match=r"while waiting .*libnvrtc\.so\.13.*install gpu-burnin\[cuda12\]"):
        products.device.synchronize()


def test_a_failed_launch_is_named(fake: FakeCupy, products: CudaProducts) -> None:
    fake.failures["digest_fp32"] = fake.cuda.driver.CUDADriverError("CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(DeviceError, match=r"while launching digest_fp32 .*CUDA_ERROR_ILLEGAL_ADDRESS"):
        products.enqueue_check(products.device.allocate("fp32", 16, 16), 1, None, None)
