"""A slow PCIe link among its neighbours: warned of, never failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.judge.pcie_outliers import LEAST_SHARE, judge_pcie_outliers
from gpu_burnin.judge.verdict import judge
from gpu_burnin.types import CheckResult, Measurement, Notice, Verdict
from tests.support.engine_helpers import gpu
from tests.support.observed import observed
from tests.support.run_helpers import covered

GPUS = tuple(gpu(index) for index in range(8))


def results(*rates: float, name: str = "h2d", simulated: bool = False) -> list[CheckResult]:
    """A pcie result for each GPU with this rate in GB/s."""
    coverage = covered("pcie", simulated=simulated)
    return [
        CheckResult("pcie", one.uuid, Verdict.PASS, 1.0, (Measurement(name, rate * 1e9, "B/s"),), coverage)
        for one, rate in zip(GPUS, rates, strict=False)
    ]


def slow(found: tuple[Notice, ...]) -> list[str | None]:
    assert {notice.code for notice in found} <= {"SLOW"}
    return [notice.gpu for notice in found]


def test_links_that_differ_a_little_are_told_nothing_of() -> None:
    assert judge_pcie_outliers(observed(results(55, 54, 53, 55, 50, 52, 55, 45), GPUS)).notices == ()


@pytest.mark.parametrize("name", ["h2d", "d2h"])
def test_a_link_of_half_the_rate_is_warned_of_with_both_figures(name: str) -> None:
    (notice,) = judge_pcie_outliers(observed(results(55, 54, 27, 55, name=name), GPUS)).notices
    assert (notice.gpu, notice.check) == ("GPU-2", "pcie")
    assert f"{name} is 27 GB/s, under 80% of 55 GB/s, the median of the other 3 GPUs" in notice.message
    assert notice.details["median_of_others"] == 55e9
    assert notice.details["confidence"] == "derived"


def test_the_limit_itself_is_not_slow() -> None:
    at = 50 * LEAST_SHARE
    assert judge_pcie_outliers(observed(results(50, 50, at), GPUS)).notices == ()
    assert slow(judge_pcie_outliers(observed(results(50, 50, at - 0.01), GPUS)).notices) == ["GPU-2"]


def test_of_two_gpus_the_slower_is_named_and_one_alone_has_no_neighbour() -> None:
    assert slow(judge_pcie_outliers(observed(results(55, 27), GPUS)).notices) == ["GPU-1"]
    assert judge_pcie_outliers(observed(results(27), GPUS)).notices == ()


@pytest.mark.parametrize("rate", [0.0, float("nan")])
def test_a_link_without_a_rate_is_slow(rate: float) -> None:
    assert slow(judge_pcie_outliers(observed(results(55, rate, 55), GPUS)).notices) == ["GPU-1"]


def test_only_gpus_of_one_model_are_compared() -> None:
    other = (replace(GPUS[0], sku="other"), *GPUS[1:])
    assert judge_pcie_outliers(observed(results(27, 55, 55), other)).notices == ()
    assert slow(judge_pcie_outliers(observed(results(27, 55, 55), GPUS)).notices) == ["GPU-0"]


def test_simulated_links_other_checks_and_other_figures_are_not_compared() -> None:
    assert judge_pcie_outliers(observed(results(55, 27, 55, simulated=True), GPUS)).notices == ()
    assert judge_pcie_outliers(observed([replace(r, name="nvlink") for r in results(55, 27, 55)], GPUS)).notices == ()
    assert judge_pcie_outliers(observed([replace(r, gpu=None) for r in results(55, 27, 55)], GPUS)).notices == ()
    assert judge_pcie_outliers(observed(results(55, 27, 55, name="h2d_all"), GPUS)).notices == ()


def test_the_verdict_carries_the_warning_and_stays_a_pass() -> None:
    seen = observed(results(55, 27, 55), GPUS[:3], checks=["pcie"])
    judgement = judge(seen)
    assert [(notice.code, notice.gpu) for notice in judgement.notices if notice.check == "pcie"] == [("SLOW", "GPU-1")]
    assert not any(reason.code == "SLOW" for reason in judgement.reasons)
