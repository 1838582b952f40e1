"""Tests on a real GPU: `pytest -m gpu tests/gpu`.

Without one they are skipped with the reason; with one, a device that cannot be opened fails them. They need CuPy
(gpu-burnin[cuda12] or [cuda13]) and no other process on the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.exact.port import Products, products_on

HERE = Path(__file__).resolve().parent
pytest.register_assert_rewrite("tests.support.cuda_cases", "tests.support.hbm_cases")


def missing_gpu() -> str | None:
    """Why there is nothing to test on, or None. Device nodes and not CUDA decide, so that broken CUDA is a failure."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return "no NVIDIA GPU: there is no /dev/nvidia0"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder, and skip it where there is no GPU.

    Whole burn-ins come first: the context that other tests open stays until this process ends, and a burn-in takes it
    for a foreign process on the GPU.
    """
    items.sort(key=lambda item: item.path.name != "test_run.py")
    reason = missing_gpu()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device() -> Iterator[CudaDevice]:
    """The first GPU that CUDA shows, opened once. MUSTER_GPU_TESTS_KERNELS: where sessions share compiled kernels."""
    shared = os.environ.get("MUSTER_GPU_TESTS_KERNELS")
    device = CudaDevice(Path(shared) if shared else None)
    device.open(None)
    yield device
    device.close()


@pytest.fixture
def products(device: CudaDevice) -> Iterator[Products]:
    """Its products, without anything that an earlier test left."""
    with products_on(device) as made:
        yield made
