"""Judging telemetry: each rule of the policy where it applies and where it just does not; what is lost is never 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.hardware import load_reasons
from gpu_burnin.hardware.policy import CounterRule, EventRule, Quantity, ThrottleRule, Weight, load_policy
from gpu_burnin.judge import telemetry_selftest as selftest
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.judge.telemetry import judge_telemetry
from gpu_burnin.telemetry.counters import UNITS
from gpu_burnin.telemetry.findings import Counter, GpuEvent, GpuSeries, Source, TelemetryFindings
from gpu_burnin.telemetry.sampling_record import SAMPLES
from gpu_burnin.types import CheckResult, Gpu, Reason, Verdict
from tests.support.coverages import coverage
from tests.support.observed import observed

GPUS = tuple(Gpu(i, f"GPU-{i}", "", f"0000:{0x1B + i:02x}:00.0", "", "h100-sxm5-80gb", 80 << 30, "") for i in range(4))
FAULTY = GPUS[1]
POLICY = load_policy()
TB = 10**12


def series(gpu: Gpu, temperature_c: float = 60.0, **changes: Any) -> GpuSeries:
    """A healthy GPU's samples: two seconds."""
    columns = {"temperature_c": (temperature_c,) * 2, "clocks_event_reasons": (4.0, 4.0)}
    found = GpuSeries(
        gpu=gpu.uuid, t_s=(1.0, 2.0), columns=columns, lowest={}, highest={"temperature_c": (temperature_c,) * 2},
        samples=20, interval_s=0.1, reason_samples={4: 20}, limits={"slowdown_c": 89, "memory_max_c": 95},
    )  # fmt: skip
    return replace(found, **changes)


def findings(faulty: GpuSeries | None = None, **changes: Any) -> TelemetryFindings:
    """A healthy run, but for the series of the faulty GPU."""
    found = TelemetryFindings(
        series=tuple(faulty if faulty and gpu is FAULTY else series(gpu) for gpu in GPUS),
        sources=tuple(Source(SAMPLES, gpu.uuid, True) for gpu in GPUS),
    )
    return replace(found, **changes)


def result(**moved: int) -> CheckResult:
    return CheckResult("hbm", FAULTY.uuid, Verdict.PASS, 10.0, coverage=coverage("hbm", **moved))


def judge(found: TelemetryFindings, *results: CheckResult) -> Findings:
    return judge_telemetry(observed(results, GPUS, telemetry=found))


def codes_of(judged: Findings) -> tuple[list[str], list[str]]:
    """The codes of reasons and of notices, all of which must be about the faulty GPU."""
    assert {one.gpu for part in judged for one in part} <= {FAULTY.uuid}
    return [one.code for one in judged[0]], [one.code for one in judged[1]]


def wanted(weight: Weight, code: str) -> tuple[list[str], list[str]]:
    return ([code], []) if weight is Weight.FAIL else ([], [code]) if weight is Weight.WARN else ([], [])


def risen(name: str, delta: int | None, why: str = "", before: int | None = 10) -> Counter:
    after = None if delta is None or before is None else before + delta
    return Counter(FAULTY.uuid, name, UNITS[name], before, after, why)


def test_a_healthy_run_is_told_nothing_of() -> None:
    assert judge(findings()) == ((), ())


# --- counters ---
COUNTER_RULES = [(rule, name) for rule in POLICY.counters for name in rule.counters]


def named(value: object) -> str:
    match value:
        case CounterRule():
            return f"{value.meaning.weight}-{value.traffic or 'run'}"
        case ThrottleRule():
            return hex(value.bit)
        case EventRule():
            return value.event
    return str(value)


@pytest.mark.parametrize(("rule", "name"), COUNTER_RULES, ids=named)
def test_each_counter_rule_applies_above_its_limit_and_not_at_it(rule: CounterRule, name: str) -> None:
    assert name in UNITS
    moved = {rule.traffic: 1000 * TB} if rule.traffic else {}
    limit = int(rule.limit) * (1000 if rule.traffic else 1)
    above = judge(findings(counters=(risen(name, limit + 1),)), result(**moved))
    assert codes_of(above) == wanted(rule.meaning.weight, rule.meaning.code)
    (one,) = (*above[0], *above[1])
    (observed,) = one.details["observed"]  # type: ignore[misc]
    assert (observed["counter"], observed["delta"], observed["unit"]) == (name, limit + 1, UNITS[name])  # type: ignore[call-overload, index]
    assert (observed["source"], observed["limit"]) == (rule.meaning.source, rule.limit)  # type: ignore[call-overload, index]
    assert f"GPU 1 ({FAULTY.pci_bus_id} {FAULTY.uuid})" in one.message
    assert str(limit + 1) in one.message
    at = judge(findings(counters=(risen(name, limit),)), result(**moved))
    softer = [other for other, other_name in COUNTER_RULES if other_name == name and other is not rule]
    # At the hard limit a softer rule about the same counter may still speak.
    assert codes_of(at)[0] == []
    assert codes_of(at)[1] == ([softer[0].meaning.code] if rule.meaning.weight is Weight.FAIL and softer else [])


@pytest.mark.parametrize("name", ["ecc_volatile_corrected_dram", "pcie_replays"])
def test_rates_need_traffic_and_enough_errors(name: str) -> None:
    (rule,) = (rule for rule in POLICY.counters if name in rule.counters and rule.traffic)
    least = (risen(name, rule.least),)
    assert codes_of(judge(findings(counters=least), result(**{rule.traffic: TB // 2})))[1] == [rule.meaning.code]
    few = (risen(name, rule.least - 1),)
    assert codes_of(judge(findings(counters=few), result(**{rule.traffic: 1000}))) == ([], [])
    # Traffic of other GPUs is not this one's, and without traffic the number alone is told.
    other = replace(result(**{rule.traffic: 10**6 * TB}), gpu=GPUS[0].uuid)
    _, (notice,) = judge(findings(counters=least), other)
    assert "no check says how much it moved" in notice.message


def test_traffic_of_all_checks_counts_together() -> None:
    counters = (risen("ecc_volatile_corrected_dram", 150),)
    once, twice = (judge(findings(counters=counters), *[result(bytes_moved=TB)] * number) for number in (1, 2))
    assert (codes_of(once)[1], codes_of(twice)[1]) == (["ECC_CORRECTED"], [])


def test_one_reason_for_all_counters_of_a_code() -> None:
    names = ("ecc_volatile_uncorrected_dram", "ecc_aggregate_uncorrected_dram")
    (reason,), notices = judge(findings(counters=tuple(risen(name, 2) for name in names)))
    assert notices == ()
    assert all(name in reason.message for name in names)
    assert len(reason.details["observed"]) == 2  # type: ignore[arg-type]


def test_links_that_counted_are_named() -> None:
    link = Counter(FAULTY.uuid, "nvlink_recoveries_link7", "events", 0, 3)
    (reason,), _ = judge(findings(counters=(risen("nvlink_recoveries", 3), link)))
    assert reason.code == "NVLINK_ERRORS"
    assert "link 7" in reason.message


def test_counters_without_a_rule_are_only_recorded() -> None:
    free = set(UNITS) - {name for _, name in COUNTER_RULES}
    assert {"energy_mj", "throttle_power_ns"} <= free
    assert judge(findings(counters=tuple(risen(name, 10**12) for name in sorted(free)))) == ((), ())


@pytest.mark.parametrize(
    "counter",
    [
        risen("ecc_volatile_uncorrected_dram", -3),
        risen("ecc_volatile_uncorrected_dram", 0, why="fell from 12 to 10"),
        risen("ecc_volatile_uncorrected_dram", None, why="not_supported"),
        risen("ecc_volatile_uncorrected_dram", None, why="timeout", before=None),
        risen("energy_mj", None, why="unknown"),
        risen("energy_mj", -1),
    ],
    ids=["lower", "fell-between", "vanished", "never-read", "unjudged-vanished", "unjudged-lower"],
)
def test_a_counter_that_cannot_be_compared_is_inconclusive_and_never_zero(counter: Counter) -> None:
    (reason,), notices = judge(findings(counters=(counter,)))
    assert (reason.code, reason.gpu, reason.severity) == ("COUNTER_LOST", FAULTY.uuid, Verdict.INCONCLUSIVE)
    assert counter.name in reason.message
    assert notices == ()


@pytest.mark.parametrize(("name", "why"), [("retired_single_bit", "not_supported"), ("energy_mj", "unknown")])
def test_a_counter_that_was_never_there_is_no_loss(name: str, why: str) -> None:
    assert judge(findings(counters=(risen(name, None, why=why, before=None),))) == ((), ())


def test_last_readings_of_a_sampler_that_died_still_count() -> None:
    dead = tuple(Source(SAMPLES, gpu.uuid, gpu is not FAULTY, "killed") for gpu in GPUS)
    counters = (risen("ecc_volatile_uncorrected_dram", 1, why="the sampler ended early: this is its last reading"),)
    assert codes_of(judge(findings(counters=counters, sources=dead)))[0] == ["TELEMETRY_LOST", "ECC_UNCORRECTED"]


# --- clocks ---


@pytest.mark.parametrize("rule", POLICY.throttle.values(), ids=named)
def test_each_clocks_event_reason(rule: ThrottleRule) -> None:
    def judged(samples: int) -> Findings:
        return judge(findings(series(FAULTY, samples=20, reason_samples={rule.bit: samples})))

    assert codes_of(judged(rule.least_samples)) == wanted(rule.meaning.weight, rule.meaning.code)
    assert codes_of(judged(rule.least_samples - 1)) == ([], [])


def test_throttling_says_how_long_and_since_when() -> None:
    hot = series(FAULTY, reason_samples={4: 20, 0x40: 7})
    hot = replace(hot, columns={**hot.columns, "clocks_event_reasons": (4.0, 68.0)})
    (reason,), _ = judge(findings(hot))
    assert "thermal slowdown by hardware (clocks event reason 0x40) in 7 of 20 samples, about 0.7 s" in reason.message
    (observed,) = reason.details["observed"]  # type: ignore[misc]
    assert (observed["first_seen_monotonic_s"], observed["seconds"]) == (2.0, 0.7)  # type: ignore[call-overload, index]


@pytest.mark.parametrize(
    ("seen", "samples", "code"),
    [
        ((4.0, 12.0, 12.0, 12.0, 4.0, 4.0), 12, []),  # for moments of the waves, in which the clocks change
        ((4.0, 12.0, 12.0, 12.0, 4.0, 12.0), 33, []),  # and once outside: less than the rule asks for
        ((4.0, 4.0, 4.0, 4.0, 12.0, 12.0), 20, ["THROTTLED"]),  # after them
        ((12.0, 12.0, 12.0, 12.0, 12.0, 12.0), 60, ["THROTTLED"]),  # all the time
    ],
)
def test_a_hardware_slowdown_in_moments_of_power_waves_is_no_fault(
    seen: tuple[float, ...], samples: int, code: list[str]
) -> None:
    """0x8 may show while the clocks change (nvml.h); the power check itself tells of it as a warning."""
    watched = series(FAULTY, t_s=tuple(range(1, 7)), samples=60, reason_samples={4: 60, 8: samples})
    columns = {"temperature_c": (60.0,) * 6, "clocks_event_reasons": seen}
    waves = {"run": True, "started_s": 1.2, "ended_s": 3.9}
    power = CheckResult("power", FAULTY.uuid, Verdict.PASS, 5.0, (), coverage("power", waves=waves))
    found = judge(findings(replace(watched, columns=columns)), power)
    assert [reason.code for reason in found[0]] == code
    brake = replace(watched, columns={**columns, "clocks_event_reasons": (4.0, 132.0, 4.0, 4.0, 4.0, 4.0)})
    brake = replace(brake, reason_samples={4: 60, 0x80: 1})
    reasons, _ = judge(findings(brake), power)
    assert [reason.code for reason in reasons] == ["THROTTLED"], "a power brake is none of the clocks' own"


def test_a_clocks_event_reason_nobody_described_is_told() -> None:
    _, (notice,) = judge(findings(series(FAULTY, reason_samples={0x8000: 1})))
    assert notice.code == "THROTTLED"
    assert "0x8000" in notice.message


# --- temperatures ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"temperature_c": 89.0}, ([], ["TEMPERATURE_HIGH"])),  # hotter than its node, besides the reason below
        ({"temperature_c": 75.0}, ([], [])),
        ({"temperature_c": 75.1}, ([], ["TEMPERATURE_HIGH"])),
    ],
)
def test_a_gpu_far_above_its_node(changes: dict[str, float], expected: tuple[list[str], list[str]]) -> None:
    reasons, notices = codes_of(judge(findings(series(FAULTY, limits={}, **changes))))
    assert (reasons, notices) == expected


def test_two_gpus_have_no_median() -> None:
    found = TelemetryFindings(
        series=(series(GPUS[0]), series(FAULTY, 85.0, limits={})),
        sources=tuple(Source(SAMPLES, gpu.uuid, True) for gpu in GPUS[:2]),
    )
    assert judge_telemetry(observed(gpus=GPUS[:2], telemetry=found)) == ((), ())


def headroom(
    margin: float | None, tlimit: int | None = None, temperature_c: float = 60.0, slowdown: int = 0
) -> GpuSeries:
    limits = {"slowdown_c": slowdown} | ({} if tlimit is None else {"tlimit_slowdown_c": tlimit})
    lowest = {} if margin is None else {"temperature_margin_c": (margin + 9, margin)}
    return series(FAULTY, temperature_c, lowest=lowest, limits=limits)


@pytest.mark.parametrize(
    ("faulty", "weight"),
    [
        (headroom(None), None),
        (headroom(None, slowdown=66), None),
        (headroom(None, slowdown=65), Weight.WARN),
        (headroom(None, slowdown=61), Weight.WARN),
        (headroom(None, slowdown=60), Weight.FAIL),
        # T.Limit: the margin's zero is where software slows down, the hardware follows 2 degrees later.
        (headroom(4.0, -2), None),
        (headroom(3.0, -2), Weight.WARN),
        (headroom(-2.0, -2), Weight.FAIL),
        (headroom(-1.0, -2), Weight.WARN),
        (headroom(0.0), Weight.FAIL),
        # A driver that gives offsets in the place of thresholds: they are no temperatures.
        (headroom(20.0, -2, slowdown=-2), None),
        # Whichever is nearer.
        (headroom(30.0, -2, slowdown=60), Weight.FAIL),
        (headroom(-2.0, -2, slowdown=89), Weight.FAIL),
    ],
)
def test_what_is_left_to_the_slowdown(faulty: GpuSeries, weight: Weight | None) -> None:
    assert codes_of(judge(findings(faulty))) == (wanted(weight, "TEMPERATURE_HIGH") if weight else ([], []))


@pytest.mark.parametrize(
    ("memory_c", "limit", "weight"),
    [(91.0, 95, None), (92.0, 95, Weight.WARN), (95.0, 95, Weight.WARN), (96.0, 95, Weight.FAIL), (96.0, 0, None)],
)
def test_what_is_left_to_the_memory(memory_c: float, limit: int, weight: Weight | None) -> None:
    faulty = series(FAULTY, highest={"temperature_memory_c": (80.0, memory_c)}, limits={"memory_max_c": limit})
    assert codes_of(judge(findings(faulty))) == (wanted(weight, "TEMPERATURE_HIGH") if weight else ([], []))


def test_every_quantity_has_rules() -> None:
    assert {rule.quantity for rule in POLICY.thermal} == set(Quantity)


# --- the PCIe link, events, and telemetry itself ---


@pytest.mark.parametrize(
    ("generations", "most", "seconds", "slow"),
    [((1, 4), 5, 10.0, True), ((1, 5), 5, 10.0, False), ((1, 4), 5, 4.9, False), ((1, 1), None, 10.0, False)],
)
def test_a_pcie_link_that_never_rose_under_load(
    generations: tuple[int, int], most: int | None, seconds: float, slow: bool
) -> None:
    limits = {} if most is None else {"pcie_generation": most}
    faulty = series(FAULTY, highest={"pcie_generation": generations}, limits=limits)
    judged = judge(findings(faulty), replace(result(), seconds=seconds))
    assert codes_of(judged) == (["PCIE_DEGRADED"] if slow else [], [])


@pytest.mark.parametrize("rule", POLICY.events.values(), ids=named)
def test_each_event(rule: EventRule) -> None:
    event = GpuEvent(FAULTY.uuid, rule.event, 0, 2, 1.5)
    assert codes_of(judge(findings(events=(event,)))) == wanted(rule.meaning.weight, rule.meaning.code)


def test_xids_are_judged_elsewhere() -> None:
    assert judge(findings(events=(GpuEvent(FAULTY.uuid, "xid", 79, 1, 1.5),))) == ((), ())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sources": tuple(Source(SAMPLES, gpu.uuid, gpu is not FAULTY, "status -9") for gpu in GPUS)}, "status -9"),
        ({"sources": tuple(Source(SAMPLES, gpu.uuid, True) for gpu in GPUS if gpu is not FAULTY)}, "no sampler"),
        ({"series": tuple(series(gpu, watched_share=0.8 if gpu is FAULTY else 0.9) for gpu in GPUS)}, "too little"),
    ],
)
def test_a_gpu_that_was_not_watched_is_inconclusive(changes: dict[str, Any], words: str) -> None:
    (reason,), _ = judge(findings(**changes))
    assert (reason.code, reason.gpu, reason.severity) == ("TELEMETRY_LOST", FAULTY.uuid, Verdict.INCONCLUSIVE)
    assert words in reason.message


def test_no_telemetry_at_all_is_inconclusive_for_each_gpu() -> None:
    reasons, _ = judge(TelemetryFindings())
    assert [(reason.code, reason.gpu) for reason in reasons] == [("TELEMETRY_LOST", gpu.uuid) for gpu in GPUS]


@pytest.mark.parametrize("column", POLICY.needed_columns)
@pytest.mark.parametrize(("unread", "lost"), [(0, False), (1, False), (2, True), (10, True)])
def test_a_needed_value_must_have_been_read_in_most_of_the_run(column: str, unread: int, lost: bool) -> None:
    values = (*(4.0 for _ in range(10 - unread)), *(None for _ in range(unread)))
    columns = {"temperature_c": (60.0,) * 10, "clocks_event_reasons": (4.0,) * 10} | {column: values}
    judged = judge(findings(series(FAULTY, t_s=tuple(map(float, range(10))), columns=columns)))
    assert codes_of(judged) == (["TELEMETRY_LOST"] if lost else [], [])


def test_a_gpu_that_fell_away_is_lost_and_nothing_else_is_said_of_its_counters() -> None:
    dead = tuple(Source(SAMPLES, gpu.uuid, gpu is not FAULTY, "gpu_is_lost") for gpu in GPUS)
    counters = (risen("energy_mj", None, why="gpu_is_lost"),)
    (reason,), notices = judge(findings(series(FAULTY, lost="gpu_is_lost"), counters=counters, sources=dead))
    assert (reason.code, reason.gpu, reason.severity) == ("GPU_LOST", FAULTY.uuid, Verdict.FAIL)
    assert notices == ()


def test_every_code_is_documented() -> None:
    rules = (*POLICY.counters, *POLICY.throttle.values(), *POLICY.thermal, *POLICY.events.values())
    assert {rule.meaning.code for rule in rules if rule.meaning.code} <= set(load_reasons())


# --- the self-test ---


def test_every_made_up_fault_is_seen() -> None:
    results = selftest.run(GPUS)
    assert {one.check for one in results} == {"kernel_log", "counters"}
    assert [one.fault for one in results if not (one.injected and one.detected)] == []
    assert len(results) == 7
    assert {(one.gpu, one.scope) for one in results} == {(None, "detector logic only")}
    assert selftest.run(()) == ()


@pytest.mark.parametrize("blindness", ["judge_telemetry", "judge_xids"])
def test_a_blind_judge_is_found_out(monkeypatch: pytest.MonkeyPatch, blindness: str) -> None:
    monkeypatch.setattr(selftest, blindness, lambda _seen: Findings())
    check = "kernel_log" if blindness == "judge_xids" else "counters"
    missed = [one for one in selftest.run(GPUS) if not one.detected]
    assert {one.check for one in missed} == {check}
    assert "brake power" not in [one.fault for one in missed]


@pytest.mark.parametrize("reasons", [(), (Reason("POWER_BRAKE", "power", "always", gpu=GPUS[0].uuid),)])
def test_a_judge_of_power_that_is_blind_or_always_blames_one_gpu_is_found_out(
    monkeypatch: pytest.MonkeyPatch, reasons: tuple[Reason, ...]
) -> None:
    monkeypatch.setattr(selftest, "judge_power", lambda _seen: Findings(reasons))
    assert "brake power" in [one.fault for one in selftest.run(GPUS) if not one.detected]


def test_a_judge_that_blames_the_wrong_gpu_or_cries_always_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = judge_telemetry

    def wrong(seen: Observations) -> Findings:
        reasons, notices = real(seen)
        return Findings(tuple(replace(reason, gpu=GPUS[0].uuid) for reason in reasons), notices)

    monkeypatch.setattr(selftest, "judge_telemetry", wrong)
    judged_here = [one for one in selftest.run(GPUS) if one.check == "counters" and one.fault != "brake power"]
    assert not any(one.detected for one in judged_here)
    crying = Reason("THROTTLED", "telemetry", "always")
    monkeypatch.setattr(selftest, "judge_telemetry", lambda _seen: Findings((crying,)))
    assert not any(one.detected for one in selftest.run(GPUS))


def test_a_kernel_line_that_a_program_wrote_counting_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_burnin.telemetry import kmsg

    monkeypatch.setattr(kmsg, "KERN_FACILITY", 1)
    assert [one.fault for one in selftest.run(GPUS) if not one.detected] == ["xid_79 line"]
