"""The memory test on a real GPU: its kernels against the CPU's memory, all of the memory, and every planted fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpu_burnin.checks.hbm.check import Check
from gpu_burnin.checks.hbm.faults import FAULTS
from gpu_burnin.checks.hbm.port import HbmPort, hbm_port
from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.checks.hbm.rounds import CORE
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.types import Verdict
from tests.support.engine_helpers import context
from tests.support.hbm_cases import HbmCases


class TestKernels(HbmCases):
    """All cases on the GPU, in pieces of 16 MiB, three times 2 MiB and 48 bytes."""

    @pytest.fixture
    def size_bytes(self) -> int:
        """All that is taken."""
        return (22 << 20) + 48

    @pytest.fixture
    def memory(self, device: CudaDevice, size_bytes: int) -> Iterator[HbmPort]:
        """Memory in five pieces."""
        made = hbm_port(device)
        assert len(made.take(size_bytes).regions) == 5
        yield made
        made.give_back()


def test_nearly_all_of_the_memory_is_taken_and_given_back(device: CudaDevice) -> None:
    import cupy

    memory = hbm_port(device)
    before = cupy.cuda.runtime.memGetInfo()[0]
    try:
        taken = memory.take(0)
        assert taken.size_bytes >= 0.95 * taken.total_bytes
    finally:
        memory.give_back()
    assert cupy.cuda.runtime.memGetInfo()[0] >= before - (64 << 20)


def test_all_of_the_memory_passes_in_one_round(device: CudaDevice) -> None:
    result = Check().run(replace(context(hbm_bytes=0), device=device))
    assert (result.verdict, result.reasons, result.errors) == (Verdict.PASS, (), ())
    assert isinstance(result.coverage, HbmCoverage) and result.coverage.patterns == CORE


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_all_of_the_memory_is_found(device: CudaDevice, fault: str) -> None:
    result = Check().run(replace(context(inject=(fault,), hbm_bytes=0), device=device))
    assert [reason.code for reason in result.reasons] == ["HBM_BIT_ERROR"]


def test_the_selftest_sees_the_whole_table(device: CudaDevice) -> None:
    results = Check().selftest(replace(context(hbm_bytes=0), device=device, selftest_full=True))
    assert [(r.fault.split(" ")[0], r.injected and r.detected) for r in results] == [(name, True) for name in FAULTS]
