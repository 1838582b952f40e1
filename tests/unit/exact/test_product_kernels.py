"""The kernels of the cuda device, compiled for the host and run by real threads, against the host's own functions,
integer for integer. No replacement for a run on hardware.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator

import pytest

from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.exact.cuda import CudaProducts
from tests.support.cuda_cases import KernelCases, ScaledCases, SubnormalCases
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
class TestKernelsThatFlush(SubnormalCases, ScaledCases):
    """The same on a host that takes subnormals for 0, as FP32 on a GPU does when compiled with -ftz=true."""

    @pytest.fixture(autouse=True)
    def flushing(self, product_kernels: ctypes.CDLL) -> Iterator[None]:
        """The mode of the kernels' threads."""
        mode = ctypes.c_int.in_dll(product_kernels, "flushing")
        mode.value = 1
        yield
        mode.value = 0
