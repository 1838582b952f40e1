"""Sensors that lie: what no GPU can have is named, held against the GPU, and leads to no other judgement."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.hardware.policy import load_policy
from gpu_burnin.judge.observations import Findings
from gpu_burnin.judge.plausible import believable, sifted
from gpu_burnin.judge.telemetry import judge_telemetry
from gpu_burnin.telemetry.findings import GpuSeries, Source, TelemetryFindings
from gpu_burnin.telemetry.sampler_columns import _LIMITS, COLUMNS, REASONS
from gpu_burnin.telemetry.sampling_record import SAMPLES
from gpu_burnin.types import Gpu, Verdict
from tests.support.observed import observed

GPU = Gpu(0, "GPU-0", "", "0000:1b:00.0", "", "h100-sxm5-80gb", 80 << 30, "")
POLICY = load_policy()
HEALTHY = {"temperature_c": 60.0, "power_w": 690.0, "clock_sm_mhz": 1755.0, "pcie_generation": 5.0}


def series(buckets: int = 20, wrong: int = 0, limits: dict[str, int] | None = None, **values: float) -> GpuSeries:
    """A run of `buckets`, in the last `wrong` of which the `values` were read."""
    columns: dict[str, Any] = {name: (value,) * buckets for name, value in HEALTHY.items()}
    for name, value in values.items():
        columns[name] = (*columns.get(name, (0.0,) * buckets)[: buckets - wrong], *(value,) * wrong)
    bits = {REASONS: (4.0,) * buckets}
    return GpuSeries(
        GPU.uuid, tuple(map(float, range(buckets))), {**columns, **bits}, columns, columns, samples=10 * buckets,
        limits={"slowdown_c": 89, "pcie_generation": 5, "power_limit_w": 700, **(limits or {})},
    )  # fmt: skip


def judge(one: GpuSeries) -> Findings:
    found = TelemetryFindings(series=(one,), sources=(Source(SAMPLES, GPU.uuid, True),))
    return judge_telemetry(observed(gpus=(GPU,), telemetry=found))


def test_a_healthy_gpu_is_believed() -> None:
    assert judge(series()) == ((), ())
    assert sifted(series(), POLICY) == (series(), ())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("power_w", 4e6, "power_w of 4000000 in 100% of the readings (a GPU has 1 to 5000)"),
        ("power_w", 0, "power_w of 0 in 100%"),
        ("temperature_c", -5, "temperature_c of -5 in 100%"),
        ("temperature_c", 0, "temperature_c of 0 in 100%"),
        ("temperature_c", 300, "temperature_c of 300 in 100%"),
        ("temperature_memory_c", 200, "temperature_memory_c of 200"),
        ("clock_sm_mhz", 1e9, "clock_sm_mhz of 1000000000 in 100%"),
        ("clock_memory_mhz", 1e9, "clock_memory_mhz of 1000000000"),
        ("utilization_percent", 101, "utilization_percent of 101"),
        ("pcie_generation", 77, "pcie_generation of 77"),
    ],
)
def test_what_cannot_be_all_along_leaves_nothing_to_say_of_the_gpu(name: str, value: float, says: str) -> None:
    ((reason,), notices) = judge(series(wrong=20, **{name: value}))
    assert (reason.code, reason.severity, reason.gpu) == ("SENSOR_IMPLAUSIBLE", Verdict.INCONCLUSIVE, GPU.uuid)
    assert says in reason.message
    assert notices == ()  # a heat of 300 degrees is judged by nothing else


def test_a_sample_that_cannot_be_is_a_warning_and_is_not_judged() -> None:
    (reasons, (notice,)) = judge(series(wrong=1, temperature_c=300.0, power_w=4e6))
    assert (reasons, notice.code) == ((), "SENSOR_IMPLAUSIBLE")
    assert "temperature_c of 300 in 5% of the readings" in notice.message
    assert "power_w of 4000000" in notice.message
    # The same heat, as far as a GPU can have it, does count.
    assert [one.code for one in judge(series(wrong=1, temperature_c=95.0))[0]] == ["TEMPERATURE_HIGH"]


def test_a_limit_that_cannot_be_hides_no_heat() -> None:
    ((reason,), _) = judge(series(limits={"slowdown_c": 10**6}))
    assert (reason.code, "slowdown_c of 1000000" in reason.message) == ("SENSOR_IMPLAUSIBLE", True)
    sifted_limits = believable(TelemetryFindings(series=(series(limits={"power_limit_w": 10**6}),)), POLICY).series[0]
    assert "power_limit_w" not in sifted_limits.limits


def test_every_sampled_value_and_limit_has_bounds() -> None:
    # The bits have rules of their own, the energy is a sum that has none.
    assert set(POLICY.sensors) == {*COLUMNS, *_LIMITS} - {REASONS, "energy_mj"}
