"""The kernels of the cuda device, compiled for the host and run by real threads, against the host's own functions,
integer for integer. No replacement for a run on hardware.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator

import pytest

from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.exact.cuda import CudaProducts, divider
from tests.support.cuda_cases import KernelCases, SubnormalCases
from tests.support.cuda_fakes import FakeCupy, FakeLt, use_fakes
from tests.support.engine_helpers import gpu


@pytest.fixture
def products(product_kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> CudaProducts:
    """Products on stand-ins that compute."""
    fake, library = FakeCupy(product_kernels), FakeLt(computes=True)
    use_fakes(monkeypatch, fake, library)
    made = CudaDevice()
    made.open(gpu())
    return CudaProducts(made)


class TestKernels(KernelCases):
    """All cases on the host."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets the x86 mode that takes subnormals for 0")
class TestKernelsThatFlush(SubnormalCases):
    """Subnormals on a host that takes them for 0, as FP32 on a GPU does when compiled with -ftz=true."""

    @pytest.fixture(autouse=True)
    def flushing(self, product_kernels: ctypes.CDLL) -> Iterator[None]:
        """The mode of the kernels' threads."""
        mode = ctypes.c_int.in_dll(product_kernels, "flushing")
        mode.value = 1
        yield
        mode.value = 0


@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 7, 32, 96, 1000, 2047, 2048, 2049, 4096])
def test_divider(divisor: int) -> None:
    magic, shift = (int(x) for x in divider(divisor))
    last = (1 << 31) - 1
    near = [q * divisor + d for q in range(0, last // divisor, max(1, last // divisor // 999)) for d in (0, -1)]
    for x in (0, 1, last, last - 1, *near):
        if x >= 0:
            assert x * magic >> shift == x // divisor
