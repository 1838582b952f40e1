"""Telemetry that no GPU can have: reported, and judged by nothing. Pure; the bounds are data (policy.yaml)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from gpu_burnin.hardware.policy import SensorRule, TelemetryPolicy
from gpu_burnin.telemetry.findings import GpuSeries, TelemetryFindings

_Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Implausible:
    """A column of samples, or a limit, with values that cannot be: `share` of the buckets (1 for a limit), the one that
    is farthest out, and the bounds."""

    name: str
    share: float
    value: float
    rule: SensorRule

    @property
    def sentence(self) -> str:
        """The finding without the GPU."""
        rule = self.rule
        return (
            f"{self.name} of {self.value:.12g} in {self.share:.0%} of the readings (a "
            f"GPU has {rule.at_least:g} to {rule.at_most:g})"
        )


def believable(findings: TelemetryFindings, policy: TelemetryPolicy) -> TelemetryFindings:
    """The findings without samples and limits that cannot be."""
    return replace(findings, series=tuple(sifted(one, policy)[0] for one in findings.series))


def sifted(series: GpuSeries, policy: TelemetryPolicy) -> tuple[GpuSeries, tuple[Implausible, ...]]:
    """The series with implausible buckets as not read and without implausible limits; and what was taken out."""
    found: list[Implausible] = []
    columns, lowest, highest = parts = dict(series.columns), dict(series.lowest), dict(series.highest)
    limits = dict(series.limits)
    for name, rule in policy.sensors.items():
        if name in series.columns:
            seen = [part[name] for part in parts if name in part]
            # Nearly always nothing is wrong, and a long run has millions of values: a look at each column comes first.
            if any(_holds_wrong(values, rule) for values in seen):
                bad = [any(_wrong(value, rule) for value in values) for values in zip_longest(*seen)]
                value = _farthest((value for values in seen for value in values), rule)
                found.append(Implausible(name, sum(bad) / len(bad), value, rule))
                for part in parts:
                    if name in part:
                        part[name] = _without(part[name], bad)
        if _wrong(limits.get(name), rule):
            found.append(Implausible(name, 1.0, float(limits.pop(name)), rule))
    if not found:
        return series, ()
    return replace(series, columns=columns, lowest=lowest, highest=highest, limits=limits), tuple(found)


def _wrong(value: float | None, rule: SensorRule) -> bool:
    return value is not None and not rule.at_least <= value <= rule.at_most


def _holds_wrong(values: _Values, rule: SensorRule) -> bool:
    least, most = rule.at_least, rule.at_most
    return any(value is not None and not least <= value <= most for value in values)


def _farthest(values: Iterable[float | None], rule: SensorRule) -> float:
    wrong = [value for value in values if value is not None and _wrong(value, rule)]
    return max(wrong, key=lambda value: max(rule.at_least - value, value - rule.at_most))


def _without(values: _Values, bad: Sequence[bool]) -> _Values:
    return tuple(None if is_bad else value for value, is_bad in zip(values, bad, strict=False))
