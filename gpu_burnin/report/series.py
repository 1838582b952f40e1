"""The samples of a run over time, thinned to what a plot can show: series.json beside the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gpu_burnin.telemetry.findings import GpuSeries, TelemetryFindings
from gpu_burnin.types import CheckResult, Series, optional

SCHEMA = "muster-series/v1"
# More points than a screen has columns of pixels show nothing more.
MAX_BUCKETS = 2000
# Columns whose values are sets of bits: what was set at any time in a bucket is set in it.
_BITS = frozenset({"clocks_event_reasons"})
Values: TypeAlias = Sequence[float | None]


@dataclass(frozen=True)
class Samples:
    """The samples of a GPU: means over each of at most MAX_BUCKETS buckets of equal length, and where samples were
    joined the extremes of each bucket."""

    t_s: Sequence[float]
    columns: Mapping[str, Values]
    low: Mapping[str, Values] = optional(dict)
    high: Mapping[str, Values] = optional(dict)

    def parts(self, column: str) -> tuple[Values, Values, Values]:
        """Mean, low and high of a column; all the same where no samples were joined."""
        values = self.columns.get(column, ())
        return values, self.low.get(column, values), self.high.get(column, values)


NO_SAMPLES = Samples((), {})


@dataclass(frozen=True)
class Window:
    """When a check ran, on a GPU or on the node (None)."""

    gpu: str | None
    check: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Rate:
    """What a check measured about itself over time, in `unit`."""

    gpu: str | None
    check: str
    name: str
    unit: str
    t_s: Sequence[float]
    values: Values


@dataclass(frozen=True, kw_only=True)
class RunSeries:
    """The series of a run; all times are seconds since `started_monotonic_s` (CLOCK_MONOTONIC, seconds)."""

    schema: str = SCHEMA
    started_monotonic_s: float
    gpus: Mapping[str, Samples] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    rates: tuple[Rate, ...] = ()


def build_series(results: Iterable[CheckResult], findings: TelemetryFindings, started_s: float) -> RunSeries:
    """The series of a run that began at `started_s`."""
    done = tuple(results)
    return RunSeries(
        started_monotonic_s=round(started_s, 6),
        gpus={series.gpu: _samples(series, started_s) for series in findings.series},
        windows=tuple(
            Window(
                result.gpu,
                result.name,
                round(result.started_s - started_s, 3),
                round(result.started_s - started_s + result.seconds, 3),
            )
            for result in done
            if result.started_s > 0
        ),
        rates=tuple(_rate(result, series, started_s) for result in done for series in result.series),
    )


def _samples(series: GpuSeries, started_s: float) -> Samples:
    groups = grouped(series.t_s, MAX_BUCKETS)
    found = Samples(
        times(series.t_s, groups, started_s),
        {name: reduced(values, groups, _either if name in _BITS else mean) for name, values in series.columns.items()},
    )
    if not series.lowest and all(len(group) == 1 for group in groups):
        return found
    names = [name for name in series.columns if name not in _BITS]
    return replace(
        found,
        low={name: reduced(series.lowest.get(name, series.columns[name]), groups, min) for name in names},
        high={name: reduced(series.highest.get(name, series.columns[name]), groups, max) for name in names},
    )


def _rate(result: CheckResult, series: Series, started_s: float) -> Rate:
    groups = grouped(series.t_s, MAX_BUCKETS)
    t_s, values = times(series.t_s, groups, started_s), reduced(series.values, groups, mean)
    return Rate(result.gpu, result.name, series.name, series.unit, t_s, values)


def grouped(t_s: Sequence[float], buckets: int) -> list[range]:
    """Index ranges of samples that are shown as one; each sample its own while there are few enough."""
    count = len(t_s)
    if count <= buckets:
        return [range(index, index + 1) for index in range(count)]
    width = (t_s[-1] - t_s[0]) / buckets or 1.0
    groups, start, bucket = [], 0, 0
    for index, moment in enumerate(t_s):
        current = min(int((moment - t_s[0]) / width), buckets - 1)
        if current != bucket:
            groups.append(range(start, index))
            start, bucket = index, current
    return [*groups, range(start, count)]


def times(t_s: Sequence[float], groups: Sequence[range], started_s: float = 0.0) -> list[float]:
    """The middle of each group, in seconds since `started_s`."""
    return [round((t_s[group.start] + t_s[group.stop - 1]) / 2 - started_s, 3) for group in groups]


def reduced(values: Values, groups: Sequence[range], join: Callable[[list[float]], float]) -> list[float | None]:
    """One value for each group, None where all its samples are unread or no numbers."""
    reduced: list[float | None] = []
    for group in groups:
        known = [
            value for value in values[group.start : group.stop] if value is not None and math.isfinite(float(value))
        ]
        reduced.append(_short(join(known)) if known else None)
    return reduced


def mean(values: list[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def _either(values: list[float]) -> float:
    bits = 0
    for value in values:
        bits |= int(value)
    return bits


def _short(value: float) -> float:
    """Whole numbers as they are, others with six digits that count: more is noise and takes room."""
    return int(value) if value == int(value) else float(f"{value:.6g}")
