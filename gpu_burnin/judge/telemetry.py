"""Judging what telemetry saw over a run by the policy (policy.yaml): pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gpu_burnin.hardware import make_reason
from gpu_burnin.hardware.policy import CounterRule, Meaning, Quantity, TelemetryPolicy, Weight
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.judge.plausible import Implausible, sifted
from gpu_burnin.judge.power import CHECK as POWER
from gpu_burnin.judge.power_phases import WAVES, Phase, outside, phases_of
from gpu_burnin.telemetry.counters import base_name
from gpu_burnin.telemetry.findings import Counter, GpuSeries, Source, TelemetryFindings
from gpu_burnin.telemetry.sampling_record import SAMPLES
from gpu_burnin.telemetry.state import Unsupported
from gpu_burnin.types import JSON, CheckResult, Gpu, Notice, Reason

CHECK = "telemetry"
BYTES_PER_TB = 1e12
# Thresholds below this are offsets (T.Limit) that a driver gives in the place of temperatures.
_LEAST_THRESHOLD_C = 50
# A median of fewer GPUs says nothing about one of them.
_LEAST_FOR_MEDIAN = 3


@dataclass(frozen=True)
class _Finding:
    """One rule that applies to one GPU: as a text, and in numbers."""

    meaning: Meaning
    text: str
    numbers: Mapping[str, JSON]


def judge_telemetry(seen: Observations) -> Findings:
    """What the samplers saw against the node, and what a person should know besides.

    A GPU that was not sampled to the end is TELEMETRY_LOST. Results say in their coverage how many bytes the checks
    moved on each GPU. Each code gives one reason a GPU, with everything that led to it.
    """
    findings, policy = seen.telemetry, seen.rules.telemetry
    # What its instances did, a GPU did.
    parents = {uuid: gpu.uuid for gpu in seen.plan.gpus for uuid in gpu.uuids}
    done = tuple(replace(result, gpu=parents.get(result.gpu or "", result.gpu)) for result in seen.results)
    series = {one.gpu: one for one in findings.series}
    sound = {uuid: sifted(one, policy) for uuid, one in series.items()}
    medians = _above_median({uuid: own for uuid, (own, _) in sound.items()})
    reasons: list[Reason] = []
    notices: list[Notice] = []
    for gpu in seen.watched:
        read = series.get(gpu.uuid, GpuSeries(gpu.uuid, (), {}))
        own, implausible = sound.get(gpu.uuid, (read, ()))
        counters = [counter for counter in findings.counters if counter.gpu == gpu.uuid]
        reasons += _lost(gpu, read, counters, findings.sources, policy)
        doubts = tuple(_implausible(gpu, implausible, policy))
        reasons += [doubt for doubt in doubts if isinstance(doubt, Reason)]
        notices += [doubt for doubt in doubts if isinstance(doubt, Notice)]
        found = [
            *_throttled(own, _waves_of(own, done), policy),
            *_hot(own, medians.get(gpu.uuid), policy),
            *_slow_link(own, gpu.uuid, done, policy),
            *_counted(counters, gpu.uuid, done, policy),
            *_events(findings, gpu.uuid, policy),
        ]
        for group in _by_code(found):
            meaning, message, details = group[0].meaning, _message(gpu, group), _evidence(group)
            if meaning.weight is Weight.FAIL:
                reasons.append(make_reason(meaning.code, CHECK, message, gpu=gpu.uuid, details=details))
            else:
                notices.append(Notice(meaning.code, CHECK, message, gpu=gpu.uuid, details=details))
    return Findings(tuple(reasons), tuple(notices))


def _by_code(found: Iterable[_Finding]) -> list[list[_Finding]]:
    groups: dict[tuple[str, Weight], list[_Finding]] = {}
    for finding in found:
        groups.setdefault((finding.meaning.code, finding.meaning.weight), []).append(finding)
    return list(groups.values())


def _message(gpu: Gpu, group: Sequence[_Finding]) -> str:
    return f"{gpu.label}: {'; '.join(finding.text for finding in group)}"


def _evidence(group: Sequence[_Finding]) -> dict[str, JSON]:
    return {
        "observed": [{**f.numbers, "source": f.meaning.source, "confidence": str(f.meaning.confidence)} for f in group]
    }


# --- telemetry itself ---


def _lost(
    gpu: Gpu, series: GpuSeries, counters: Sequence[Counter], sources: Iterable[Source], policy: TelemetryPolicy
) -> Iterator[Reason]:
    """A GPU that fell away, one that was not watched to the end, and counters that cannot be compared."""
    if series.lost:
        message = f"{gpu.label}: NVML says {series.lost} during the run"
        yield make_reason("GPU_LOST", CHECK, message, gpu=gpu.uuid, details={"why": series.lost})
        return
    source = next((one for one in sources if (one.name, one.gpu) == (SAMPLES, gpu.uuid)), None)
    if source is None or not source.alive:
        detail = source.detail if source else "no sampler watched it"
        message = f"{gpu.label}: it was not watched over the whole run: {detail}"
        yield make_reason("TELEMETRY_LOST", CHECK, message, gpu=gpu.uuid, details={"detail": detail})
    else:
        shares = {name: _share(series, name) for name in policy.needed_columns} | {"samples": series.watched_share}
        thin: dict[str, JSON] = {name: share for name, share in shares.items() if share < policy.needed_share}
        if thin:
            listed = ", ".join(f"{name} in {shares[name]:.0%}" for name in thin)
            message = f"{gpu.label}: sampled in too little of the run: {listed}"
            yield make_reason("TELEMETRY_LOST", CHECK, message, gpu=gpu.uuid, details={"sampled_share": thin})
    judged = {name for rule in policy.counters for name in rule.counters}
    missing = [counter for counter in counters if _incomparable(counter, judged)]
    if missing:
        lost = "; ".join(f"{counter.name} ({counter.why or 'fell'})" for counter in missing)
        details: dict[str, JSON] = {"counters": [_numbers(counter) for counter in missing]}
        message = f"{gpu.label}: counters that cannot be compared over the run: {lost}"
        yield make_reason("COUNTER_LOST", CHECK, message, gpu=gpu.uuid, details=details)


def _implausible(gpu: Gpu, found: Sequence[Implausible], policy: TelemetryPolicy) -> Iterator[Reason | Notice]:
    """Sensors that lie: a warning, or with too much of it a doubt about everything they say."""
    if not found:
        return
    message = f"{gpu.label}: {'; '.join(one.sentence for one in found)}"
    observed: list[JSON] = [
        {"name": one.name, "value": one.value, "share": round(one.share, 4), "source": one.rule.source} for one in found
    ]
    if max(one.share for one in found) > 1 - policy.needed_share:
        yield make_reason("SENSOR_IMPLAUSIBLE", CHECK, message, gpu=gpu.uuid, details={"observed": observed})
    else:
        yield Notice("SENSOR_IMPLAUSIBLE", CHECK, message, gpu=gpu.uuid, details={"observed": observed})


def _share(series: GpuSeries, name: str) -> float:
    values = series.columns.get(name, ())
    return sum(value is not None for value in values) / len(values) if values else 0.0


def _incomparable(counter: Counter, judged: set[str]) -> bool:
    """Whether a counter vanished or fell; one that GPU and driver do not have at all is no loss."""
    if counter.before is None and counter.after is None:
        return base_name(counter.name) in judged and not Unsupported(counter.why).by_design
    return counter.delta is None or counter.delta < 0 or counter.why.startswith("fell")


# --- rules ---


def _throttled(series: GpuSeries, waves: Phase | None, policy: TelemetryPolicy) -> Iterator[_Finding]:
    for bit, samples in series.reason_samples.items():
        rule = policy.throttle.get(bit)
        if rule is not None and rule.outside_waves and waves is not None:
            samples = outside(series, waves, bit)
        if rule is not None and (rule.meaning.weight is Weight.NORMAL or samples < rule.least_samples):
            continue
        meaning = rule.meaning if rule else _UNKNOWN_BIT
        seconds = round(samples * series.interval_s, 1)
        yield _Finding(
            meaning,
            f"{rule.text if rule else 'a state the policy does not describe'} (clocks event reason {bit:#x}) in "
            f"{samples} of {series.samples} samples, about {seconds:g} s",
            {"clocks_event_reason": bit, "samples": samples, "of_samples": series.samples, "seconds": seconds,
             "first_seen_monotonic_s": _first_seen(series, bit)},
        )  # fmt: skip


def _waves_of(series: GpuSeries, results: Iterable[CheckResult]) -> Phase | None:
    own = (result for result in results if (result.name, result.gpu) == (POWER, series.gpu))
    return next((phases_of(series, result.coverage).get(WAVES) for result in own), None)


_UNKNOWN_BIT = Meaning(Weight.WARN, "THROTTLED", None, "not described in policy.yaml")


def _first_seen(series: GpuSeries, bit: int) -> float | None:
    values = series.columns.get("clocks_event_reasons", ())
    return next((t_s for t_s, bits in zip(series.t_s, values, strict=False) if bits and int(bits) & bit), None)


def _hot(series: GpuSeries, above_median_c: float | None, policy: TelemetryPolicy) -> Iterator[_Finding]:
    values = {
        Quantity.SLOWDOWN_HEADROOM: _slowdown_headroom(series),
        Quantity.MEMORY_HEADROOM: _memory_headroom(series),
        Quantity.ABOVE_NODE_MEDIAN: above_median_c,
    }
    texts = {
        Quantity.SLOWDOWN_HEADROOM: "{:g} degC left to the temperature at which it slows down",
        Quantity.MEMORY_HEADROOM: "{:g} degC left to the highest operating temperature of its memory",
        Quantity.ABOVE_NODE_MEDIAN: "{:g} degC hotter than the median GPU of this node",
    }
    for quantity, value in values.items():
        rules = [r for r in policy.thermal if r.quantity is quantity and value is not None and r.applies(value)]
        if not rules or value is None:
            continue
        rule = min(rules, key=lambda one: list(Weight).index(one.meaning.weight))
        limit = rule.at_most if rule.at_most is not None else rule.more_than
        numbers: dict[str, JSON] = {str(quantity): value, "limit_c": limit, "highest_c": _highest(series)}
        yield _Finding(rule.meaning, texts[quantity].format(value), numbers)


def _extreme(values: Mapping[str, tuple[float | None, ...]], name: str, highest: bool) -> float | None:
    known = [value for value in values.get(name, ()) if value is not None]
    return (max(known) if highest else min(known)) if known else None


def _highest(series: GpuSeries) -> float | None:
    return _extreme(series.highest, "temperature_c", highest=True)


def _slowdown_headroom(series: GpuSeries) -> float | None:
    """Degrees Celsius left, by the absolute threshold and by the margin (T.Limit), whichever is less."""
    found: list[float] = []
    highest, threshold = _highest(series), series.limits.get("slowdown_c", 0)
    if highest is not None and threshold > _LEAST_THRESHOLD_C:
        found.append(threshold - highest)
    margin = _extreme(series.lowest, "temperature_margin_c", highest=False)
    if margin is not None:
        found.append(margin - min(series.limits.get("tlimit_slowdown_c", 0), 0))
    return min(found, default=None)


def _memory_headroom(series: GpuSeries) -> float | None:
    highest = _extreme(series.highest, "temperature_memory_c", highest=True)
    threshold = series.limits.get("memory_max_c", 0)
    return threshold - highest if highest is not None and threshold > _LEAST_THRESHOLD_C else None


def _above_median(series: Mapping[str, GpuSeries]) -> dict[str, float]:
    """How far the highest temperature of each GPU is above the median of all, in degrees Celsius."""
    highest = {uuid: value for uuid, one in series.items() if (value := _highest(one)) is not None}
    if len(highest) < _LEAST_FOR_MEDIAN:
        return {}
    middle = median(highest.values())
    return {uuid: value - middle for uuid, value in highest.items()}


def _slow_link(
    series: GpuSeries, gpu: str, results: Iterable[CheckResult], policy: TelemetryPolicy
) -> Iterator[_Finding]:
    """A PCIe link that stayed below its generation while the GPU worked; a resting GPU drops to the first."""
    worked_s = sum(result.seconds for result in results if result.gpu == gpu)
    highest = _extreme(series.highest, "pcie_generation", highest=True)
    most = series.limits.get("pcie_generation")
    rule = policy.pcie_generation
    if highest is None or most is None or highest >= most or worked_s < rule.least_seconds:
        return
    numbers: dict[str, JSON] = {"pcie_generation": highest, "pcie_max_generation": most, "under_load_s": worked_s}
    text = f"the PCIe link never rose above generation {highest:g} of {most} in {worked_s:.0f} s of checks"
    yield _Finding(rule.meaning, text, numbers)


def _counted(
    counters: Sequence[Counter], gpu: str, results: Sequence[CheckResult], policy: TelemetryPolicy
) -> Iterator[_Finding]:
    for counter in counters:
        # Counters of single links are part of their sum, which is judged.
        links = [one for one in counters if base_name(one.name) == counter.name != one.name and one.delta]
        found = [
            f for r in policy.counters if counter.name in r.counters for f in _rose(counter, links, gpu, results, r)
        ]
        if found:
            yield min(found, key=lambda finding: list(Weight).index(finding.meaning.weight))


def _rose(
    counter: Counter, links: Sequence[Counter], gpu: str, results: Sequence[CheckResult], rule: CounterRule
) -> Iterator[_Finding]:
    delta = counter.delta
    if delta is None or delta <= 0:
        return
    text = f"{counter.name} rose by {delta} {counter.unit} (from {counter.before} to {counter.after})"
    numbers: dict[str, JSON] = {**_numbers(counter), "limit": rule.limit}
    if links:
        numbers["links"] = {one.name.rpartition("_link")[2]: one.delta for one in links}
        text += f", link {', '.join(numbers['links'])}"  # type: ignore[arg-type]
    meaning = rule.meaning
    if rule.traffic:
        moved_tb = _moved_bytes(results, gpu, rule.traffic) / BYTES_PER_TB
        numbers |= {"traffic": rule.traffic, "moved_tb": round(moved_tb, 6)}
        if delta < rule.least or (moved_tb and delta / moved_tb <= rule.limit):
            return
        if moved_tb:
            text += f", {delta / moved_tb:.3g} per TB moved"
            numbers["per_tb"] = delta / moved_tb
        else:
            # Without the traffic there is no rate to fail anybody by.
            meaning = Meaning(Weight.WARN, meaning.code, meaning.confidence, meaning.source)
            text += f"; no check says how much it moved ({rule.traffic})"
    elif delta <= rule.limit:
        return
    if meaning.weight is not Weight.NORMAL:
        yield _Finding(meaning, text, numbers)


def _numbers(counter: Counter) -> dict[str, JSON]:
    return {
        "counter": counter.name,
        "unit": counter.unit,
        "before": counter.before,
        "after": counter.after,
        "delta": counter.delta,
        "why": counter.why,
    }


def _moved_bytes(results: Iterable[CheckResult], gpu: str, key: str) -> float:
    """Bytes that the checks moved on a GPU, as their coverage says."""
    return float(sum(getattr(result.coverage, key) or 0 for result in results if result.gpu == gpu))


def _events(findings: TelemetryFindings, gpu: str, policy: TelemetryPolicy) -> Iterator[_Finding]:
    for event in findings.events:
        rule = policy.events.get(event.kind)
        if event.gpu != gpu or rule is None or rule.meaning.weight is Weight.NORMAL:
            continue
        numbers: dict[str, JSON] = {
            "event": event.kind, "data": event.data, "count": event.count, "first_seen_monotonic_s": event.t_s,
        }  # fmt: skip
        yield _Finding(rule.meaning, f"NVML reported the event {event.kind}, {event.count} times", numbers)
