"""Judging the power check by what the samplers saw between the begin and the end of its phases: pure, no I/O.

Power over a phase is the rise of the GPU's sum of energy by the time it took. NVML's own power is an average over a
second on most models: under the steady mixed load it may stand in for a sum that cannot be had, but it is never
taken for evidence of waves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from gpu_burnin.hardware import make_reason
from gpu_burnin.hardware.policy import PowerQuantity, PowerRule, TelemetryPolicy, Weight
from gpu_burnin.telemetry.findings import GpuSeries, TelemetryFindings
from gpu_burnin.types import JSON, CheckResult, Gpu, Measurement, Notice, Reason

CHECK = "power"
WAVES, MIXED = "waves", "mixed"
ENERGY_SOURCE = "sum of energy (NVML)"
POWER_SOURCE = "NVML power, on most models an average over a second"
# Bits of the clocks event reasons (nvml.h).
_IDLE, _POWER_CAP, _SLOWDOWN, _SW_THERMAL, _HW_THERMAL, _BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
# What holds a clock down for a reason; a GPU that NVML calls idle is not under load in its eyes.
_EXPLAINS = _IDLE | _POWER_CAP | _SLOWDOWN | _SW_THERMAL | _HW_THERMAL | _BRAKE
# A GPU does not draw more than some twice its limit, not even for a moment: a sum that says so has jumped.
_MOST_OVER_LIMIT = 3.0
_NO_LIMIT_W = 1000.0
# A median of fewer GPUs says nothing about one of them.
_LEAST_FOR_MEDIAN = 3


@dataclass(frozen=True)
class Energy:
    """Joules over `seconds`; None with `why` where the sum could not be used. `jumped`: it is not to be trusted."""

    joules: float | None
    seconds: float
    why: str = ""
    jumped: bool = False


@dataclass(frozen=True)
class Phase:
    """One phase on one GPU. `clock_mhz` are the means of whole seconds, `bits` the seconds in which each was seen."""

    name: str
    started_s: float
    ended_s: float
    energy: Energy
    power_w: float | None
    source: str | None
    clock_mhz: tuple[float, ...]
    clock_lowest_mhz: float | None
    explained: bool
    temperature_c: float | None
    bits: Mapping[int, float]

    def seconds_of(self, bits: int) -> float:
        """The longest time for which one of some bits was seen, in seconds."""
        return max((seconds for bit, seconds in self.bits.items() if bit & bits), default=0.0)

    def to_json(self, limit_w: float | None, clock_max_mhz: float | None) -> dict[str, JSON]:
        """For the report."""
        at_most = [mhz for mhz in self.clock_mhz if clock_max_mhz and mhz >= clock_max_mhz]
        return {
            "seconds": round(self.energy.seconds, 3),
            "energy_j": None if self.energy.joules is None else round(self.energy.joules, 1),
            "energy_why": self.energy.why or None,
            "mean_power_w": None if self.power_w is None else round(self.power_w, 1),
            "power_source": self.source,
            "share_of_limit": round(self.power_w / limit_w, 3) if self.power_w and limit_w else None,
            "clock_lowest_mhz": self.clock_lowest_mhz,
            "clock_median_mhz": median(self.clock_mhz) if self.clock_mhz else None,
            "clock_share_at_maximum": round(len(at_most) / len(self.clock_mhz), 3) if self.clock_mhz else None,
            "temperature_highest_c": self.temperature_c,
            "clocks_event_reasons_s": {f"{bit:#x}": round(seconds, 2) for bit, seconds in self.bits.items()},
        }


@dataclass(frozen=True)
class PowerJudgement:
    """All results of the run, those of the power check with what telemetry saw of them, and what follows from it."""

    results: tuple[CheckResult, ...]
    reasons: tuple[Reason, ...] = ()
    notices: tuple[Notice, ...] = ()


def judge_power(
    results: Iterable[CheckResult], findings: TelemetryFindings, gpus: Sequence[Gpu], policy: TelemetryPolicy
) -> PowerJudgement:
    """Power, clocks, temperatures and throttling of each GPU in the phases of the power check, by the policy.

    Adds `power` and `power_limit_w` to the check's coverage and the measurement power_reached_w. A run without the
    check is as it was.
    """
    done = tuple(results)
    own = {result.gpu: result for result in done if result.name == CHECK and result.gpu is not None}
    series = {one.gpu: one for one in findings.series}
    phases = {uuid: phases_of(series[uuid], result.coverage) if uuid in series else {} for uuid, result in own.items()}
    values = _values(series, phases)
    written: dict[str | None, CheckResult] = {}
    reasons: list[Reason] = []
    notices: list[Notice] = list(_not_made(own.values()))
    for gpu in gpus:
        if not phases.get(gpu.uuid):
            continue
        seen, limits = phases[gpu.uuid], series[gpu.uuid].limits
        written[gpu.uuid] = _with_power(own[gpu.uuid], seen, limits, _rank(gpu.uuid, phases))
        found = _applied(gpu, values[gpu.uuid], seen, limits, policy.power)
        reasons += [one for one in found if isinstance(one, Reason)]
        notices += [one for one in found if isinstance(one, Notice)]
        notices += _jumped(gpu, seen)
    return PowerJudgement(
        tuple(written.get(result.gpu, result) if result.name == CHECK else result for result in done),
        tuple(reasons),
        tuple(notices),
    )


# --- phases ---


def phases_of(series: GpuSeries, coverage: Mapping[str, JSON]) -> dict[str, Phase]:
    """The phases that a power check says it had; times in its coverage are seconds of CLOCK_MONOTONIC."""
    limit_w = float(series.limits.get("power_limit_w", 0)) or _NO_LIMIT_W
    found: dict[str, Phase] = {}
    for name in (WAVES, MIXED):
        part = coverage.get(name)
        if not isinstance(part, Mapping) or part.get("run") is not True:
            continue
        start_s, end_s = part.get("started_s"), part.get("ended_s")
        if isinstance(start_s, int | float) and isinstance(end_s, int | float):
            # The host's own load moves no GPU: what NVML says of power then is not of this check.
            stand_in = name == MIXED and coverage.get("simulated") is not True
            found[name] = _phase(name, series, float(start_s), float(end_s), limit_w, stand_in)
    return found


def _phase(name: str, series: GpuSeries, start_s: float, end_s: float, limit_w: float, stand_in: bool) -> Phase:
    begins = _begins(series)
    whole = [n for n, at in enumerate(series.t_s) if begins[n] >= start_s and at <= end_s]
    touched = [n for n, at in enumerate(series.t_s) if at > start_s and begins[n] < end_s]
    energy = energy_over(series, start_s, end_s, limit_w)
    power_w, source = (None, None) if energy.joules is None else (energy.joules / energy.seconds, ENERGY_SOURCE)
    powers = _known(series.columns, "power_w", whole[1:])  # the first second still has rest in its average
    if power_w is None and stand_in and powers:
        power_w, source = sum(powers) / len(powers), POWER_SOURCE
    clocks = _known(series.columns, "clock_sm_mhz", whole)
    bits = series.columns.get("clocks_event_reasons", ())
    explained = [n for n in whole if n < len(bits) and int(bits[n] or 0) & _EXPLAINS]
    return Phase(
        name,
        start_s,
        end_s,
        energy,
        power_w,
        source,
        tuple(clocks),
        min(_known(series.lowest, "clock_sm_mhz", whole), default=None),
        2 * len(explained) > len(whole),
        max(_known(series.highest, "temperature_c", touched), default=None),
        _bit_seconds(series, begins, touched, start_s, end_s),
    )


def _begins(series: GpuSeries) -> list[float]:
    """When each bucket began: the end of the one before; the first is as long as its samples took."""
    first = series.t_s[0] - (series.t_s[1] - series.t_s[0] if len(series.t_s) > 1 else 1.0) if series.t_s else 0.0
    return [first, *series.t_s[:-1]]


def _known(columns: Mapping[str, tuple[float | None, ...]], name: str, buckets: Sequence[int]) -> list[float]:
    values = columns.get(name, ())
    return [value for n in buckets if n < len(values) and (value := values[n]) is not None]


def _bit_seconds(
    series: GpuSeries, begins: Sequence[float], touched: Sequence[int], start_s: float, end_s: float
) -> dict[int, float]:
    """For each bit the seconds of the phase that lie in buckets in which it was set: no less than it was."""
    found: dict[int, float] = {}
    values = series.columns.get("clocks_event_reasons", ())
    for n in touched:
        bits = int(values[n] or 0) if n < len(values) else 0
        seconds = min(series.t_s[n], end_s) - max(begins[n], start_s)
        while bits:
            lowest = bits & -bits
            found[lowest] = found.get(lowest, 0.0) + seconds
            bits ^= lowest
    return found


def outside(series: GpuSeries, phase: Phase, bit: int) -> int:
    """In how many samples a bit was set outside a phase, at the least: a bucket does not say which of its were."""
    values = series.columns.get("clocks_event_reasons", ())
    buckets = [
        (begin, end)
        for begin, end, bits in zip(_begins(series), series.t_s, values, strict=False)
        if int(bits or 0) & bit
    ]
    within = [end - begin for begin, end in buckets if end > phase.started_s and begin < phase.ended_s]
    apart = series.reason_samples.get(bit, 0) - round(sum(within) / series.interval_s)
    return max(len(buckets) - len(within), apart)


def energy_over(series: GpuSeries, start_s: float, end_s: float, limit_w: float) -> Energy:
    """The rise of the sum of energy between the first and the last bucket that end within the phase.

    A sum that fell, rose faster than a GPU can draw, or stood still says nothing.
    """
    sums = series.highest.get("energy_mj", ())  # the highest of a bucket of a rising sum is its last
    points = [(at, sums[n]) for n, at in enumerate(series.t_s) if start_s <= at <= end_s and n < len(sums) and sums[n]]
    known = [(at, value / 1000) for at, value in points if value is not None]
    if not sums:
        return Energy(None, 0.0, "the GPU has no sum of energy")
    if len(known) < 2:
        return Energy(None, 0.0, "the phase was too short for two readings of the sum of energy")
    for (before_s, before), (at_s, after) in pairwise(known):
        drawn_w = (after - before) / (at_s - before_s) if at_s > before_s else 0.0
        if not 0 <= drawn_w <= _MOST_OVER_LIMIT * limit_w:
            return Energy(None, 0.0, f"the sum of energy jumped: {drawn_w:.0f} W for {at_s - before_s:.1f} s", True)
    joules, seconds = known[-1][1] - known[0][1], known[-1][0] - known[0][0]
    if joules == 0:
        return Energy(None, seconds, "the sum of energy stood still")
    return Energy(joules, seconds)


# --- judging ---


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
    PowerQuantity.BRAKE: _BRAKE,
    PowerQuantity.SLOWDOWN: _SLOWDOWN,
    PowerQuantity.THERMAL: _SW_THERMAL | _HW_THERMAL,
}
_WORDS: Mapping[PowerQuantity, str] = {
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
        words = _WORDS[rule.quantity].format(
            value=value,
            phases=_phases_with(seen, rule.quantity),
            limit_w=limits.get("power_limit_w"),
            clock_mhz=limits.get("clock_sm_max_mhz"),
        )
        groups.setdefault((meaning.code, meaning.weight), []).append((rule, words))
    found: list[Reason | Notice] = []
    for (code, weight), group in groups.items():
        message = f"{gpu.label}: {'; '.join(words for _, words in group)}"
        evidence: dict[str, JSON] = {
            "observed": [_numbers(rule, values[rule.quantity]) for rule, _ in group],
            "phases": {
                name: phase.to_json(limits.get("power_limit_w"), limits.get("clock_sm_max_mhz"))
                for name, phase in seen.items()
            },
        }
        if weight is Weight.FAIL:
            found.append(make_reason(code, CHECK, message, gpu=gpu.uuid, evidence=evidence))
        else:
            found.append(Notice(code, CHECK, message, gpu=gpu.uuid, evidence=evidence))
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
    message = f"{gpu.label}: its power is not known by its sum of energy ({'; '.join(whys)})"
    return [Notice("COUNTER_LOST", CHECK, message, gpu=gpu.uuid, evidence={"why": list(whys)})]


def _not_made(results: Iterable[CheckResult]) -> list[Notice]:
    """One notice for the node where waves belong to the level and none were made."""
    for result in results:
        waves = result.coverage.get(WAVES)
        if isinstance(waves, Mapping) and waves.get("wanted") is True and waves.get("run") is not True:
            message = f"power waves were not made: {waves.get('why')}"
            return [Notice("WAVES_NOT_RUN", CHECK, message, evidence={"why": waves.get("why")})]
    return []


def _rank(uuid: str, phases: Mapping[str, Mapping[str, Phase]]) -> dict[str, JSON]:
    """The place of a GPU among those of its node, 1 for the hottest, by its highest temperature under mixed load."""
    heat = {
        other: seen[MIXED].temperature_c
        for other, seen in phases.items()
        if MIXED in seen and seen[MIXED].temperature_c is not None
    }
    own = heat.get(uuid)
    if own is None:
        return {}
    hotter = [value for value in heat.values() if value is not None and value > own]
    return {"temperature_rank": len(hotter) + 1, "temperature_rank_of": len(heat)}


def _with_power(
    result: CheckResult, seen: Mapping[str, Phase], limits: Mapping[str, int], rank: Mapping[str, JSON]
) -> CheckResult:
    limit_w, clock_mhz = limits.get("power_limit_w"), limits.get("clock_sm_max_mhz")
    power: dict[str, JSON] = {
        "phases": {name: phase.to_json(limit_w, clock_mhz) for name, phase in seen.items()},
        "clock_max_mhz": clock_mhz,
        **rank,
    }
    coverage = {**result.coverage, "power": power, "power_limit_w": limit_w}
    reached = seen[MIXED].power_w if MIXED in seen else None
    extra = () if reached is None else (Measurement("power_reached_w", round(reached, 1), "W"),)
    return replace(result, coverage=coverage, measurements=(*result.measurements, *extra))
