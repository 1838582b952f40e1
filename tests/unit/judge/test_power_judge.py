"""Judging the power check by the samples of its phases: healthy nodes say nothing, each fault is told by its code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_burnin.checks.power.result import Mixture, NoWaves, PowerCoverage, WavesMade
from gpu_burnin.hardware.policy import PowerQuantity, Weight, load_policy
from gpu_burnin.judge import verdict
from gpu_burnin.judge.observations import Rules
from gpu_burnin.judge.power import judge_power, with_power
from gpu_burnin.judge.power_phases import ENERGY_SOURCE, MIXED, POWER_SOURCE, WAVES, energy_over, phases_of
from gpu_burnin.system.codec import to_json
from gpu_burnin.telemetry.findings import GpuSeries, TelemetryFindings
from gpu_burnin.types import CheckResult, Coverage, Gpu, Notice, Reason, Verdict
from tests.support import coverages
from tests.support.observed import observed

GPUS = tuple(Gpu(i, f"GPU-{i}", "", f"0000:{0x1B + i:02x}:00.0", "", "h100-sxm5-80gb", 80 << 30, "") for i in range(4))
FAULTY = GPUS[1]
POLICY = load_policy()
# Seconds of CLOCK_MONOTONIC: rest, waves, mixed load, rest.
WAVES_AT, MIXED_AT, END_AT = 110.2, 120.5, 130.5
LIMIT_W = 700
TIMES = tuple(float(at) for at in range(101, 141))  # the end of each second


def load_of(at_s: float) -> float:
    """Part of full load in the second that ends at `at_s`."""
    return 0.45 if WAVES_AT < at_s <= MIXED_AT else 0.97 if MIXED_AT < at_s <= END_AT else 0.1


def series(gpu: Gpu, **changes: Any) -> GpuSeries:
    """A healthy GPU: at its power limit under mixed load, and its clock held by it."""
    total, energy = 5e9, []
    for at in TIMES:
        total += LIMIT_W * load_of(at) * 1000
        energy.append(total)
    under = [load_of(at) > 0.9 for at in TIMES]
    columns = {
        "energy_mj": tuple(value - LIMIT_W * 400 for value in energy),
        "power_w": tuple(LIMIT_W * load_of(at) for at in TIMES),
        "clock_sm_mhz": tuple(1500.0 if one else 1980.0 for one in under),
        "clocks_event_reasons": tuple(4.0 if one else 0.0 for one in under),
        "temperature_c": tuple(62.0 if one else 45.0 for one in under),
    }
    found = GpuSeries(
        gpu=gpu.uuid, t_s=TIMES, columns=columns, lowest={"clock_sm_mhz": columns["clock_sm_mhz"]},
        highest={"energy_mj": tuple(energy), "temperature_c": columns["temperature_c"]}, samples=400,
        limits={"power_limit_w": LIMIT_W, "clock_sm_max_mhz": 1980},
    )  # fmt: skip
    return changed(found, **changes)


def changed(found: GpuSeries, **columns: Any) -> GpuSeries:
    """Other values: of a column a tuple, or a function of its own values; `limits` as they are."""
    limits = columns.pop("limits", found.limits)
    parts = {part: dict(getattr(found, part)) for part in ("columns", "lowest", "highest")}
    for name, change in columns.items():
        for values in parts.values():
            if name in values:
                values[name] = tuple(change(at, value) for at, value in zip(TIMES, values[name], strict=True))
    return replace(found, limits=limits, **parts)


def result(gpu: Gpu, **coverage: Any) -> CheckResult:
    made = PowerCoverage(
        waves=WavesMade(started_s=WAVES_AT, ended_s=MIXED_AT - 0.1),
        mixed=Mixture(run=True, started_s=MIXED_AT, ended_s=END_AT),
    )
    covered = replace(made, **coverage)
    return CheckResult("power", gpu.uuid, Verdict.PASS, 21.0, coverage=covered, started_s=109.0)


@dataclass(frozen=True)
class Judged:
    """The results with what telemetry saw of them, and what is said of them."""

    results: tuple[CheckResult, ...]
    reasons: tuple[Reason, ...] = ()
    notices: tuple[Notice, ...] = ()


def _judged(
    results: Iterable[CheckResult], found: TelemetryFindings, gpus: tuple[Gpu, ...] = GPUS, **changes: Any
) -> Judged:
    seen = observed(results, gpus, telemetry=found, **changes)
    seen = replace(seen, results=with_power(seen))
    return Judged(seen.results, *judge_power(seen))


def judge(faulty: GpuSeries | None = None, **coverage: Any) -> Judged:
    """A node of four GPUs, of which one may be faulty."""
    found = TelemetryFindings(series=tuple(faulty if faulty and gpu is FAULTY else series(gpu) for gpu in GPUS))
    results = (CheckResult("gemm", FAULTY.uuid, Verdict.PASS, 1.0), *(result(gpu, **coverage) for gpu in GPUS))
    return _judged(results, found)


def codes_of(judged: Judged) -> tuple[list[str], list[str]]:
    """Codes of reasons and notices, all about the faulty GPU."""
    assert {one.gpu for part in (judged.reasons, judged.notices) for one in part} <= {FAULTY.uuid}
    assert {one.check for part in (judged.reasons, judged.notices) for one in part} <= {"power"}
    return [one.code for one in judged.reasons], [one.code for one in judged.notices]


def power_of(judged: Judged, gpu: Gpu = FAULTY) -> dict[str, Any]:
    (found,) = [one for one in judged.results if one.name == "power" and one.gpu == gpu.uuid]
    power: dict[str, Any] = to_json(coverages.power_seen(found))
    return power


def under(at_s: float) -> bool:
    return load_of(at_s) > 0.9


# --- healthy ---


def test_a_healthy_node_is_told_nothing_of() -> None:
    judged = judge()
    assert (judged.reasons, judged.notices) == ((), ())
    mixed = power_of(judged)["phases"][MIXED]
    assert mixed["seconds"] == 9.0  # between the first and the last whole second
    assert mixed["energy_j"] == pytest.approx(9 * 0.97 * LIMIT_W)
    assert mixed["share_of_limit"] == 0.97
    assert (mixed["power_source"], mixed["energy_why"]) == (ENERGY_SOURCE, None)
    assert (mixed["clock_median_mhz"], mixed["clock_lowest_mhz"], mixed["clock_share_at_maximum"]) == (1500, 1500, 0)
    assert mixed["temperature_highest_c"] == 62.0
    assert set(mixed["clocks_event_reasons_s"]) == {"0x4"}
    waves = power_of(judged)["phases"][WAVES]
    assert waves["mean_power_w"] == pytest.approx(0.45 * LIMIT_W)
    json.dumps(power_of(judged))


def test_the_power_reached_is_a_measurement_beside_its_limit() -> None:
    for gpu in GPUS:
        (found,) = [one for one in judge().results if (one.name, one.gpu) == ("power", gpu.uuid)]
        (measured,) = found.measurements
        assert (measured.name, measured.unit) == ("power_reached_w", "W")
        assert measured.value == pytest.approx(679.0)
        assert coverages.power(found).power_limit_w == LIMIT_W


def test_other_results_and_runs_without_the_check_stay_as_they_are() -> None:
    judged = judge()
    assert [one.name for one in judged.results] == ["gemm", *["power"] * 4]
    assert judged.results[0] == CheckResult("gemm", FAULTY.uuid, Verdict.PASS, 1.0)
    alone = (CheckResult("gemm", FAULTY.uuid, Verdict.PASS, 1.0),)
    found = TelemetryFindings(series=tuple(series(gpu) for gpu in GPUS))
    assert _judged(alone, found) == Judged(alone)


# --- throttling in the phases ---


@pytest.mark.parametrize(("at", "phase"), [(115.0, "the power waves"), (125.0, "the mixed load")])
def test_the_power_brake_fails_the_node_and_names_the_load(at: float, phase: str) -> None:
    judged = judge(series(FAULTY, clocks_event_reasons=lambda t, bits: 132.0 if t == at else bits))
    assert codes_of(judged) == (["POWER_BRAKE"], [])
    assert f"the power brake was on during {phase} (seen in 1.0 s)" in judged.reasons[0].message
    assert judged.reasons[0].details["observed"][0]["brake_seconds"] == 1.0  # type: ignore[index,call-overload]


@pytest.mark.parametrize("at", [105.0, 138.0])
def test_the_brake_outside_of_the_check_is_not_this_checks(at: float) -> None:
    assert codes_of(judge(series(FAULTY, clocks_event_reasons=lambda t, bits: 132.0 if t == at else bits))) == ([], [])


@pytest.mark.parametrize(
    ("bit", "code", "words"),
    [
        (0x8, "POWER_BRAKE", "the hardware slowdown was on"),
        (0x20, "THROTTLED", "a thermal slowdown was on"),
        (0x40, "THROTTLED", "a thermal slowdown was on"),
    ],
)
def test_slowdowns_during_the_waves_are_a_warning(bit: int, code: str, words: str) -> None:
    judged = judge(series(FAULTY, clocks_event_reasons=lambda t, bits: float(int(bits) | bit) if t == 114 else bits))
    assert codes_of(judged) == ([], [code])
    assert words in judged.notices[0].message
    assert "during the power waves" in judged.notices[0].message


# --- clocks ---


def capped(mhz: float, bits: float = 0.0) -> GpuSeries:
    return series(
        FAULTY,
        clock_sm_mhz=lambda t, value: mhz if under(t) else value,
        clocks_event_reasons=lambda t, value: bits if under(t) else value,
    )


def test_a_clock_far_below_the_others_without_a_reason_is_told() -> None:
    judged = judge(capped(1300.0))
    assert codes_of(judged) == ([], ["CLOCK_CAPPED"])
    assert "87% of the node's median GPU's" in judged.notices[0].message
    assert "66% of its highest of 1980 MHz" in judged.notices[0].message


@pytest.mark.parametrize("bits", [0x4, 0x8 | 0x4, 0x20, 0x40, 0x1])
def test_a_clock_that_power_or_heat_holds_is_not_called_capped(bits: int) -> None:
    reasons, notices = codes_of(judge(capped(1000.0, float(bits))))
    assert "CLOCK_CAPPED" not in reasons + notices


def test_a_clock_just_within_the_bounds_is_not_told() -> None:
    assert codes_of(judge(capped(1400.0))) == ([], [])  # 93 % of the median, 71 % of the highest


def test_a_setting_that_holds_the_clock_explains_nothing() -> None:
    assert "CLOCK_CAPPED" in codes_of(judge(capped(900.0, float(0x2))))[1]


# --- heat ---


def test_a_gpu_far_hotter_than_the_others_under_the_same_load_is_told() -> None:
    judged = judge(series(FAULTY, temperature_c=lambda t, value: 75.0 if under(t) else value))
    assert codes_of(judged) == ([], ["TEMPERATURE_HIGH"])
    assert "13 degC hotter than the median GPU" in judged.notices[0].message
    assert power_of(judged)["temperature_rank"] == 1
    assert [power_of(judged, gpu)["temperature_rank"] for gpu in GPUS] == [2, 1, 2, 2]


def test_heat_outside_of_the_mixed_load_and_small_differences_are_not_told() -> None:
    assert codes_of(judge(series(FAULTY, temperature_c=lambda t, value: 85.0 if t < 110 else value))) == ([], [])
    assert codes_of(judge(series(FAULTY, temperature_c=lambda t, value: 74.0 if under(t) else value))) == ([], [])


# --- power ---


def drawing(share: float) -> GpuSeries:
    """Under mixed load this part of the limit, by the energy counter."""
    total, energy = 5e9, []
    for at in TIMES:
        total += LIMIT_W * (share if under(at) else load_of(at)) * 1000
        energy.append(total)
    return series(FAULTY, energy_mj=lambda t, _: energy[TIMES.index(t)])


def test_far_less_power_than_the_limit_is_told() -> None:
    judged = judge(drawing(0.8))
    assert codes_of(judged) == ([], ["POWER_LOW"])
    assert "drew 80% of its power limit of 700 W" in judged.notices[0].message


@pytest.mark.parametrize(("share", "told_of"), [(0.97, []), (0.8, ["POWER_LOW"])])
def test_power_is_held_against_the_limit_in_force_and_not_the_boards_own(share: float, told_of: list[str]) -> None:
    lowered_w = 500
    faulty = drawing(share * lowered_w / LIMIT_W)
    judged = judge(replace(faulty, limits={**faulty.limits, "power_limit_w": lowered_w, "power_default_w": LIMIT_W}))
    assert codes_of(judged) == ([], told_of)


def test_power_near_the_limit_is_not_told() -> None:
    assert codes_of(judge(drawing(0.86))) == ([], [])


def test_a_gpu_without_a_sum_of_energy_is_judged_by_its_power_under_the_steady_load_only() -> None:
    found = series(FAULTY, power_w=lambda t, value: 0.8 * LIMIT_W if under(t) else value)
    missing = replace(
        found, columns={name: v for name, v in found.columns.items() if name != "energy_mj"},
        highest={name: v for name, v in found.highest.items() if name != "energy_mj"},
    )  # fmt: skip
    judged = judge(missing)
    assert codes_of(judged) == ([], ["POWER_LOW"])
    phases = power_of(judged)["phases"]
    assert (phases[MIXED]["power_source"], phases[MIXED]["energy_j"]) == (POWER_SOURCE, None)
    assert phases[MIXED]["energy_why"] == "the GPU has no energy counter"
    # An average over a second says nothing of waves.
    assert (phases[WAVES]["mean_power_w"], phases[WAVES]["power_source"]) == (None, None)


@pytest.mark.parametrize(
    ("jump", "why"),
    [(-3e6, "jumped: -2321 W for 1.0 s"), (9e6, "jumped: 9679 W for 1.0 s")],
    ids=["falls", "leaps"],
)
def test_a_sum_of_energy_that_jumps_is_not_believed_and_told(jump: float, why: str) -> None:
    judged = judge(series(FAULTY, energy_mj=lambda t, value: value + (jump if t >= 125 else 0.0)))
    assert codes_of(judged) == ([], ["COUNTER_LOST"])
    assert why in judged.notices[0].message
    assert power_of(judged)["phases"][MIXED]["power_source"] == POWER_SOURCE
    assert power_of(judged)["phases"][WAVES]["power_source"] == ENERGY_SOURCE  # before the jump it was right


def test_a_sum_of_energy_that_stands_still_says_nothing() -> None:
    still = series(FAULTY, energy_mj=lambda t, _: 123456789.0)
    found = energy_over(still, MIXED_AT, END_AT, LIMIT_W)
    assert (found.joules, found.why, found.jumped) == (None, "the energy counter stood still", False)


def test_a_hole_in_the_sum_of_energy_is_bridged() -> None:
    holes = series(FAULTY, energy_mj=lambda t, value: None if t in (123.0, 124.0) else value)
    found = energy_over(holes, MIXED_AT, END_AT, LIMIT_W)
    assert found.joules == pytest.approx(9 * 0.97 * LIMIT_W)


def test_a_phase_of_less_than_two_seconds_gives_no_energy_and_no_clock() -> None:
    judged = judge(mixed=Mixture(run=True, started_s=125.2, ended_s=126.1))
    phase = power_of(judged)["phases"][MIXED]
    assert "too short" in phase["energy_why"]
    assert (phase["mean_power_w"], phase["clock_median_mhz"]) == (None, None)
    assert codes_of(judged) == ([], [])


def test_without_a_gpu_nvmls_power_is_not_taken_for_the_checks() -> None:
    still = series(FAULTY, energy_mj=lambda t, _: 5.0, power_w=lambda t, _: 71.0)
    judged = judge(still, simulated=True)
    assert power_of(judged)["phases"][MIXED]["mean_power_w"] is None
    assert codes_of(judged) == ([], [])


def test_limits_that_are_not_known_judge_nothing() -> None:
    judged = judge(replace(capped(900.0), limits={}))
    assert codes_of(judged) == ([], ["CLOCK_CAPPED"])  # by the others of the node
    assert "of its highest" not in judged.notices[0].message
    assert codes_of(judge(replace(drawing(0.5), limits={}))) == ([], [])


def test_two_gpus_are_too_few_for_a_median() -> None:
    pair = GPUS[:2]
    hot = changed(capped(1400.0), temperature_c=lambda t, value: 85.0)
    found = TelemetryFindings(series=(series(GPUS[0]), hot))
    judged = _judged([result(gpu) for gpu in pair], found, pair)
    assert (judged.reasons, judged.notices) == ((), ())


def test_a_gpu_without_samples_is_left_to_the_rules_of_telemetry() -> None:
    found = TelemetryFindings(series=tuple(series(gpu) for gpu in GPUS if gpu is not FAULTY))
    judged = _judged([result(gpu) for gpu in GPUS], found)
    assert (judged.reasons, judged.notices) == ((), ())
    assert coverages.power(judged.results[1]).power is None


# --- waves that were not made ---


def test_waves_that_were_not_made_are_told_once_for_the_node() -> None:
    judged = judge(waves=NoWaves(wanted=True, why="no grant came"))
    assert judged.reasons == ()
    assert [(one.code, one.gpu) for one in judged.notices] == [("WAVES_NOT_RUN", None)]
    assert "no grant came" in judged.notices[0].message
    assert set(power_of(judged)["phases"]) == {MIXED}


def test_a_level_without_waves_is_not_told_of() -> None:
    assert codes_of(judge(waves=NoWaves(wanted=False, why="the level quick has no waves"))) == ([], [])


def test_what_did_not_run_is_no_phase() -> None:
    nothing = Mixture(run=False, started_s=MIXED_AT, ended_s=END_AT)
    made = PowerCoverage(waves=NoWaves(wanted=False, why="the level quick has no waves"), mixed=nothing)
    assert phases_of(series(FAULTY), made) == phases_of(series(FAULTY), Coverage()) == {}


# --- within the verdict of a run ---


def test_the_verdict_of_a_run_has_it_all() -> None:
    braked = series(FAULTY, clocks_event_reasons=lambda t, bits: 132.0 if t == 115 else bits)
    found = TelemetryFindings(series=tuple(braked if gpu is FAULTY else series(gpu) for gpu in GPUS))
    seen = observed([result(gpu) for gpu in GPUS], GPUS, checks=("power",), telemetry=found)
    judged = verdict.judge(seen)
    assert ("POWER_BRAKE", FAULTY.uuid) in [(reason.code, reason.gpu) for reason in judged.reasons]
    assert (judged.verdict, judged.gpus[FAULTY.uuid]) == (Verdict.FAIL, Verdict.FAIL)
    assert [one.measurements[0].name for one in judged.results] == ["power_reached_w"] * 4


# --- the policy ---


def test_every_quantity_has_a_rule_and_only_the_brake_fails() -> None:
    assert {rule.quantity for rule in POLICY.power} == set(PowerQuantity)
    failing = {rule.quantity for rule in POLICY.power if rule.meaning.weight is Weight.FAIL}
    assert failing == {PowerQuantity.BRAKE}


def test_a_policy_that_fails_a_node_for_its_clock_does_so() -> None:
    """The weight is data: a figure that was measured may fail a node."""
    rules = tuple(
        replace(rule, meaning=replace(rule.meaning, weight=Weight.FAIL)) if "clock" in rule.quantity else rule
        for rule in POLICY.power
    )
    found = TelemetryFindings(series=tuple(capped(1200.0) if gpu is FAULTY else series(gpu) for gpu in GPUS))
    judged = _judged([result(gpu) for gpu in GPUS], found, rules=Rules(telemetry=replace(POLICY, power=rules)))
    assert [(one.code, one.severity) for one in judged.reasons] == [("CLOCK_CAPPED", Verdict.FAIL)]
