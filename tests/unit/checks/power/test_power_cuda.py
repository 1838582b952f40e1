"""The load of the power check through the cuda device, its kernels compiled for the host: launches are counted, edges
found. No replacement for a run on hardware.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from gpu_burnin.checks.power import load as power_load
from gpu_burnin.checks.power.load import FALLING, RISING, Load
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.exact.cuda import CudaProducts
from tests.support.cuda_fakes import FakeCupy, FakeLt, use_fakes
from tests.support.engine_helpers import context, gpu


@pytest.fixture
def load(product_kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Load:
    """A load of small products on stand-ins that compute; the device's clock says what the stand-in's says."""
    fake, library = FakeCupy(product_kernels), FakeLt(computes=True)
    use_fakes(monkeypatch, fake, library)
    monkeypatch.setattr(power_load, "_WARM_S", 0.0)
    device = CudaDevice()
    device.open(gpu())
    return Load(replace(context(), device=device), CudaProducts(device), 1.0)


def test_products_are_verified_and_timed_by_the_device(load: Load) -> None:
    assert (load.precision, load.unit.shape.m, load.first.wrong) == ("bf16", 64, ())
    burst = load.burst(6)
    assert (burst.products, burst.wrong) == (6, ())
    assert burst.seconds > 0
    assert load.product_s == burst.seconds / 6


@pytest.mark.parametrize("edge", [RISING, FALLING])
@pytest.mark.parametrize("fault", ["bitflip", "skipped_launch"])
def test_the_edge_of_a_wrong_or_lost_product_is_found(load: Load, fault: str, edge: str) -> None:
    burst = load.burst(4, (fault,), edge)
    assert [wrong.edge for wrong in burst.wrong] == [edge]
    entries, reason = load.reason(burst.wrong[0], "here", {"frequency_hz": 2.0})
    assert reason.code == "POWER_MISMATCH"
    assert reason.message.startswith("here: bf16 product")
    assert (reason.details["edge"], reason.details["repeat"]) == (edge, "right")
    assert entries
    assert load.burst(4).wrong == ()


def test_lost_load_is_seen(load: Load) -> None:
    wrong = load.lost_burst(100).wrong
    assert {problem for one in wrong for problem in one.outcome.problems} >= {"not_launched"}
    assert {one.edge for one in wrong} == {RISING, FALLING}
