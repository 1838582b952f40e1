"""The power check on a real GPU: waves that keep their edges, the mixed load, and faults that are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.power.check import Check
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.engine.plan import CUDA_SHAPES
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import CheckResult, Verdict
from tests.support import coverages
from tests.support.engine_helpers import context

# Seconds: some ten of waves, then mixed load.
_BUDGET_S = 20.0


def real(device: CudaDevice, level: str, budget_s: float = _BUDGET_S, **changes: Any) -> CheckContext:
    shapes = {key: value for key, value in CUDA_SHAPES.items() if value}
    made = replace(context(budget_s=budget_s), shapes=shapes, level=level, options={"power_waves": "always"})
    return replace(made, device=device, **changes)


def waves(result: CheckResult) -> dict[str, Any]:
    found: dict[str, Any] = to_json(coverages.waves_made(result))
    return found


def test_all_waves_are_made_and_every_product_on_an_edge_is_right(device: CudaDevice) -> None:
    result = Check().run(real(device, "standard"))
    assert (result.verdict, result.reasons) == (Verdict.PASS, ())
    assert waves(result)["frequencies_hz"] == [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
    assert waves(result)["products_verified"] == waves(result)["products"]
    for one in waves(result)["frequencies"]:
        assert 0.5 <= one["load_share"] <= 1.1, one


def test_the_mixed_load_copies_while_it_computes(device: CudaDevice) -> None:
    result = Check().run(real(device, "quick", budget_s=4.0))
    assert (result.verdict, result.reasons) == (Verdict.PASS, ())
    mixed = coverages.power(result).mixed
    assert mixed.pcie.bytes_moved > 0
    assert mixed.pcie.copies_verified > 0
    assert mixed.products_verified > 0


@pytest.mark.parametrize(
    ("level", "fault", "code"),
    [
        ("standard", "wrong_edge", "POWER_MISMATCH"),
        ("standard", "idle", "POWER_MISMATCH"),
        ("standard", "late", "COVERAGE_LOW"),
        ("quick", "wrong_transfer", "PCIE_DATA"),
    ],
)
def test_injected_faults_are_seen(device: CudaDevice, level: str, fault: str, code: str) -> None:
    result = Check().run(real(device, level, budget_s=4.0, inject=(fault,)))
    assert code in [reason.code for reason in result.reasons]


def test_the_selftest_sees_everything(device: CudaDevice) -> None:
    tests = Check().selftest(real(device, "standard"))
    assert len(tests) == 4
    assert [test.fault for test in tests if not (test.injected and test.detected)] == []
