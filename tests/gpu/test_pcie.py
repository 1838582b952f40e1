"""The pcie check on a real GPU: right copies both ways, every fault told by its kind, no memory kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from gpu_burnin.checks.pcie.check import Check
from gpu_burnin.checks.pcie.port import FAULTS, Direction, Kind, PciePort, Verified, pcie_port
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.types import Verdict
from tests.support.engine_helpers import context

_SIZES = (4096, 1 << 20, 256 << 20)


@pytest.fixture(params=_SIZES)
def link(request: pytest.FixtureRequest, device: CudaDevice) -> Iterator[PciePort]:
    """An open, filled link with copies of each size."""
    with closing(pcie_port(device)) as made:
        made.open(request.param)
        made.fill(7)
        yield made


def batch(link: PciePort, direction: Direction, copies: int) -> Verified:
    """One verified batch."""
    link.begin(direction, copies)
    moved = link.finish()
    assert moved.bytes > 0 and moved.seconds > 0
    return link.verify()


@pytest.mark.parametrize("direction", ["h2d", "d2h", "duplex"])
def test_right_copies_are_right(link: PciePort, direction: Direction) -> None:
    for _ in range(3):
        found = batch(link, direction, 2)
        assert (found.copies, found.wrong) == (4 if direction == "duplex" else 2, ())


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told_by_its_kind(link: PciePort, fault: Kind, direction: Direction) -> None:
    assert not batch(link, direction, 2).wrong
    link.inject(fault, 11)
    assert {wrong.kind for wrong in batch(link, direction, 2).wrong} == {fault}
    assert not batch(link, direction, 2).wrong


def test_the_check_passes_and_its_selftest_sees_everything(device: CudaDevice) -> None:
    base = context(budget_s=2.0, transfer_bytes=256 << 20)
    result = Check().run(replace(base, device=device))
    assert (result.verdict, result.reasons) == (Verdict.PASS, ())
    assert all(measurement.value > 0 for measurement in result.measurements)
    tests = Check().selftest(replace(base, device=device, selftest_full=True))
    assert len(tests) == 2 * len(FAULTS)
    assert [test.fault for test in tests if not (test.injected and test.detected)] == []


def test_all_memory_is_given_back(device: CudaDevice) -> None:
    import cupy

    with closing(pcie_port(device)) as link:
        link.open(1 << 20)  # kernels and streams take memory once
    cupy.get_default_memory_pool().free_all_blocks()
    free, _ = cupy.cuda.runtime.memGetInfo()
    with closing(pcie_port(device)) as link:
        link.open(256 << 20)
        assert cupy.cuda.runtime.memGetInfo()[0] <= free - (512 << 20)
    assert cupy.cuda.runtime.memGetInfo()[0] >= free - (2 << 20)
