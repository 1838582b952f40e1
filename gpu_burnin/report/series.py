"""The samples of a run over time, thinned to what a plot can show: series.json beside the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpu_burnin.telemetry.findings import GpuSeries, TelemetryFindings
from gpu_burnin.types import CheckResult, Series

SCHEMA = "muster-series/v1"
# More points than a screen has columns of pixels show nothing more.
MAX_BUCKETS = 2000
# Columns whose values are sets of bits: what was set at any time in a bucket is set in it.
_BITS = frozenset({"clocks_event_reasons"})
_Values = Sequence[float | None]


def build_series(results: Iterable[CheckResult], findings: TelemetryFindings, started_s: float) -> dict[str, Any]:
    """The series of a run as JSON values; all times are seconds since `started_s` (CLOCK_MONOTONIC, seconds).

    `gpus` has for each UUID `t_s` and `columns`, means over each of at most MAX_BUCKETS buckets of equal length;
    where samples were joined, `low` and `high` have the extremes of each bucket. `windows` says when each check
    ran (gpu None: on the node). `rates` are what the checks measured about themselves over time, in `unit`.
    """
    done = tuple(results)
    return {
        "schema": SCHEMA,
        "started_monotonic_s": round(started_s, 6),
        "gpus": {series.gpu: _gpu(series, started_s) for series in findings.series},
        "windows": [
            {
                "gpu": result.gpu,
                "check": result.name,
                "start_s": round(result.started_s - started_s, 3),
                "end_s": round(result.started_s - started_s + result.seconds, 3),
            }
            for result in done
            if result.started_s > 0
        ],
        "rates": [_rate(result, series, started_s) for result in done for series in result.series],
    }


def _gpu(series: GpuSeries, started_s: float) -> dict[str, Any]:
    groups = grouped(series.t_s, MAX_BUCKETS)
    found: dict[str, Any] = {
        "t_s": times(series.t_s, groups, started_s),
        "columns": {
            name: reduced(values, groups, _either if name in _BITS else mean) for name, values in series.columns.items()
        },
    }
    if series.lowest or any(len(group) > 1 for group in groups):
        names = [name for name in series.columns if name not in _BITS]
        found["low"] = {name: reduced(series.lowest.get(name, series.columns[name]), groups, min) for name in names}
        found["high"] = {name: reduced(series.highest.get(name, series.columns[name]), groups, max) for name in names}
    return found


def _rate(result: CheckResult, series: Series, started_s: float) -> dict[str, Any]:
    groups = grouped(series.t_s, MAX_BUCKETS)
    return {
        "gpu": result.gpu,
        "check": result.name,
        "name": series.name,
        "unit": series.unit,
        "t_s": times(series.t_s, groups, started_s),
        "values": reduced(series.values, groups, mean),
    }


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


def reduced(values: _Values, groups: Sequence[range], join: Callable[[list[float]], float]) -> list[float | None]:
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
