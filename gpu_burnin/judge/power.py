"""Judging the power check by what the samplers saw between the begin and the end of its phases: pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from gpu_burnin.checks.power.result import NoWaves, PowerCoverage, PowerSeen
from gpu_burnin.hardware import make_reason
from gpu_burnin.hardware.policy import PowerQuantity, PowerRule, Weight
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.judge.plausible import believable
from gpu_burnin.judge.power_phases import BRAKE, HW_THERMAL, MIXED, SLOWDOWN, SW_THERMAL, WAVES, Phase, phases_of
from gpu_burnin.system.codec import to_json
from gpu_burnin.telemetry.findings import GpuSeries
from gpu_burnin.types import JSON, CheckResult, Gpu, Measurement, Notice, Reason

CHECK = "power"
# A median of fewer GPUs says nothing about one of them.
_LEAST_FOR_MEDIAN = 3


def with_power(seen: Observations) -> tuple[CheckResult, ...]:
    """The results, those of the power check with what telemetry saw of them.

    That is `power` and `power_limit_w` in the coverage, and the measurement power_reached_w.
    """
    series, phases = _phases(seen)
    return tuple(
        _with_power(result, phases[result.gpu], series[result.gpu].limits, _rank(result.gpu, phases))
        if result.name == CHECK and result.gpu in phases
        else result
        for result in seen.results
    )


def judge_power(seen: Observations) -> Findings:
    """Power, clocks, temperatures and throttling of each GPU in the phases of the power check, by the policy."""
    series, phases = _phases(seen)
    values = _values(series, phases)
    reasons: list[Reason] = []
    notices: list[Notice] = list(_not_made(result for result in seen.results if result.name == CHECK))
    for gpu in seen.plan.gpus:
        if gpu.uuid in phases:
            own = phases[gpu.uuid]
            found = _applied(gpu, values[gpu.uuid], own, series[gpu.uuid].limits, seen.rules.telemetry.power)
            reasons += [one for one in found if isinstance(one, Reason)]
            notices += [one for one in found if isinstance(one, Notice)]
            notices += _jumped(gpu, own)
    return Findings(tuple(reasons), tuple(notices))


def _phases(seen: Observations) -> tuple[dict[str, GpuSeries], dict[str, dict[str, Phase]]]:
    """What can be believed of the samples, and the phases of the power check in them; both by GPU."""
    series = {one.gpu: one for one in believable(seen.telemetry, seen.rules.telemetry).series}
    found = {
        result.gpu: phases_of(series[result.gpu], result.coverage)
        for result in seen.results
        if result.name == CHECK and result.gpu in series
    }
    return series, {uuid: phases for uuid, phases in found.items() if uuid is not None and phases}


def _values(
    series: Mapping[str, GpuSeries], phases: Mapping[str, Mapping[str, Phase]]
) -> dict[str, dict[PowerQuantity, float]]:
    """What the policy is asked of each GPU; a quantity that nothing is known of is left out."""
    mixed = {uuid: seen[MIXED] for uuid, seen in phases.items() if MIXED in seen}
    clocks = {uuid: median(phase.clock_mhz) for uuid, phase in mixed.items() if phase.clock_mhz}
    heat = {uuid: phase.temperature_c for uuid, phase in mixed.items() if phase.temperature_c is not None}
    found: dict[str, dict[PowerQuantity, float]] = {uuid: {} for uuid in phases}
    for uuid, phase in mixed.items():
        own, limits = found[uuid], series[uuid].limits
        if phase.power_w is not None and limits.get("power_limit_w"):
            own[PowerQuantity.POWER_SHARE] = phase.power_w / limits["power_limit_w"]
        if uuid in clocks and not phase.explained:
            if limits.get("clock_sm_max_mhz"):
                own[PowerQuantity.CLOCK_SHARE_OF_MAXIMUM] = clocks[uuid] / limits["clock_sm_max_mhz"]
            if len(clocks) >= _LEAST_FOR_MEDIAN and median(clocks.values()) > 0:
                own[PowerQuantity.CLOCK_SHARE_OF_MEDIAN] = clocks[uuid] / median(clocks.values())
        if uuid in heat and len(heat) >= _LEAST_FOR_MEDIAN:
            own[PowerQuantity.ABOVE_NODE_MEDIAN] = heat[uuid] - median(heat.values())
    for uuid, seen in phases.items():
        for quantity, bits in _BITS.items():
            found[uuid][quantity] = max((phase.seconds_of(bits) for phase in seen.values()), default=0.0)
    return found


_BITS: Mapping[PowerQuantity, int] = {
    PowerQuantity.BRAKE: BRAKE,
    PowerQuantity.SLOWDOWN: SLOWDOWN,
    PowerQuantity.THERMAL: SW_THERMAL | HW_THERMAL,
}
_TEXTS: Mapping[PowerQuantity, str] = {
    PowerQuantity.POWER_SHARE: "under mixed load it drew {value:.0%} of its power limit of {limit_w} W",
    PowerQuantity.CLOCK_SHARE_OF_MEDIAN: "under mixed load its clock was {value:.0%} of the node's median GPU's, and "
    "neither power nor heat explains it",
    PowerQuantity.CLOCK_SHARE_OF_MAXIMUM: "under mixed load its clock was {value:.0%} of its highest of {clock_mhz} "
    "MHz, and neither power nor heat explains it",
    PowerQuantity.ABOVE_NODE_MEDIAN: "under mixed load it was {value:g} degC hotter than the median GPU of this node",
    PowerQuantity.BRAKE: "the power brake was on during {phases} (seen in {value:.1f} s)",
    PowerQuantity.SLOWDOWN: "the hardware slowdown was on during {phases} (seen in {value:.1f} s)",
    PowerQuantity.THERMAL: "a thermal slowdown was on during {phases} (seen in {value:.1f} s)",
}


def _applied(
    gpu: Gpu,
    values: Mapping[PowerQuantity, float],
    seen: Mapping[str, Phase],
    limits: Mapping[str, int],
    rules: Sequence[PowerRule],
) -> list[Reason | Notice]:
    """One reason or notice for each code, with everything that led to it."""
    groups: dict[tuple[str, Weight], list[tuple[PowerRule, str]]] = {}
    for rule in rules:
        value, meaning = values.get(rule.quantity), rule.meaning
        if value is None or meaning.weight is Weight.NORMAL or not rule.applies(value):
            continue
        text = _TEXTS[rule.quantity].format(
            value=value,
            phases=_phases_with(seen, rule.quantity),
            limit_w=limits.get("power_limit_w"),
            clock_mhz=limits.get("clock_sm_max_mhz"),
        )
        groups.setdefault((meaning.code, meaning.weight), []).append((rule, text))
    found: list[Reason | Notice] = []
    for (code, weight), group in groups.items():
        message = f"{gpu.label}: {'; '.join(text for _, text in group)}"
        details: dict[str, JSON] = {
            "observed": [_numbers(rule, values[rule.quantity]) for rule, _ in group],
            "phases": {
                name: to_json(phase.result(limits.get("power_limit_w"), limits.get("clock_sm_max_mhz")))
                for name, phase in seen.items()
            },
        }
        if weight is Weight.FAIL:
            found.append(make_reason(code, CHECK, message, gpu=gpu.uuid, details=details))
        else:
            found.append(Notice(code, CHECK, message, gpu=gpu.uuid, details=details))
    return found


def _numbers(rule: PowerRule, value: float) -> dict[str, JSON]:
    return {
        str(rule.quantity): round(value, 4),
        "limit": rule.less_than if rule.less_than is not None else rule.more_than,
        "source": rule.meaning.source,
        "confidence": str(rule.meaning.confidence),
    }


def _phases_with(seen: Mapping[str, Phase], quantity: PowerQuantity) -> str:
    """In which phases the bits of a quantity were seen, in words."""
    names = {WAVES: "the power waves", MIXED: "the mixed load"}
    return " and ".join(names[name] for name, phase in seen.items() if phase.seconds_of(_BITS.get(quantity, 0)) > 0)


def _jumped(gpu: Gpu, seen: Mapping[str, Phase]) -> list[Notice]:
    whys = [f"{name}: {phase.energy.why}" for name, phase in seen.items() if phase.energy.jumped]
    if not whys:
        return []
    message = f"{gpu.label}: its energy counter does not give its power ({'; '.join(whys)})"
    return [Notice("COUNTER_LOST", CHECK, message, gpu=gpu.uuid, details={"why": list(whys)})]


def _not_made(results: Iterable[CheckResult]) -> list[Notice]:
    """One notice for the node where waves belong to the level and none were made."""
    for result in results:
        waves = result.coverage.waves if isinstance(result.coverage, PowerCoverage) else None
        if isinstance(waves, NoWaves) and waves.wanted:
            return [Notice("WAVES_NOT_RUN", CHECK, f"power waves did not run: {waves.why}", details={"why": waves.why})]
    return []


def _rank(uuid: str, phases: Mapping[str, Mapping[str, Phase]]) -> tuple[int, int] | None:
    """The place of a GPU among those of its node, 1 for the hottest, by its highest temperature under mixed load, and
    how many have one."""
    heat = {
        other: seen[MIXED].temperature_c
        for other, seen in phases.items()
        if MIXED in seen and seen[MIXED].temperature_c is not None
    }
    own = heat.get(uuid)
    if own is None:
        return None
    hotter = [value for value in heat.values() if value is not None and value > own]
    return len(hotter) + 1, len(heat)


def _with_power(
    result: CheckResult, seen: Mapping[str, Phase], limits: Mapping[str, int], rank: tuple[int, int] | None
) -> CheckResult:
    assert isinstance(result.coverage, PowerCoverage)  # else it had no phases
    limit_w, clock_mhz = limits.get("power_limit_w"), limits.get("clock_sm_max_mhz")
    place, of = rank or (None, None)
    power = PowerSeen(
        phases={name: phase.result(limit_w, clock_mhz) for name, phase in seen.items()},
        clock_max_mhz=clock_mhz,
        temperature_rank=place,
        temperature_rank_of=of,
    )
    coverage = replace(result.coverage, power=power, power_limit_w=limit_w)
    reached = seen[MIXED].power_w if MIXED in seen else None
    extra = () if reached is None else (Measurement("power_reached_w", round(reached, 1), "W"),)
    return replace(result, coverage=coverage, measurements=(*result.measurements, *extra))
