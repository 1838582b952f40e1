"""The plots of the page over time: what each GPU did while the checks ran."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gpu_burnin.report import series as thinning
from gpu_burnin.report.model import Report
from gpu_burnin.report.svg import Band, Frame, Line, Mark, nice_range, nice_step, plot
from gpu_burnin.report.units import gpu_name
from gpu_burnin.system.quantities import number, rate

# Colours that the style sheet has for checks and stretches.
CHECK_COLOURS = 9
# A plot is some 300 points wide.
_POINTS = 240
# NVML's clocks event reasons that a healthy GPU under our load does not have: hardware slowdown, software and
# hardware thermal slowdown, power brake (nvml.h, nvmlClocksEventReasons*). A power cap is normal at full load.
SLOWED: Mapping[int, str] = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
# From which span on (seconds) the axis of time counts in what, and the steps that people count in.
_TIME_UNITS = (
    (3 * 3600.0, 3600.0, "h", (1, 2, 4, 6, 12, 24, 48, 96, 168)),
    (180.0, 60.0, "min", (1, 2, 5, 10, 15, 20, 30, 60)),
    (0.0, 1.0, "s", (0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60)),
)
# Highest share of its median that a rate is drawn at, in per cent.
_MOST_SHARE = 150.0
# The series of the power check that says when its load was on: steps between 0 and 1, no rate.
WAVE_LOAD = "wave load"
_RATE_SUFFIXES = ("_throughput", "_rate")


@dataclass(frozen=True)
class Figure:
    """A plot with its heading, its unit and the number to remember."""

    title: str
    unit: str
    note: str
    svg: Markup


@dataclass(frozen=True)
class GpuFigures:
    """The plots of one GPU."""

    uuid: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Timeline:
    """All plots over time with their common legends: (style class, name) of windows and throughput lines."""

    gpus: tuple[GpuFigures, ...]
    windows: tuple[tuple[str, str], ...]
    rates: tuple[tuple[str, str], ...]
    wide: bool


def _line_css(index: int) -> str:
    """Eight colours; what comes round again is dashed."""
    return f"line{index % 8}" + (f" dash{min(index // 8, 5)}" if index >= 8 else "")


def from_to(low: float, high: float) -> str:
    """Two numbers, or one where they are the same."""
    return number(low) if low == high else f"{number(low)} to {number(high)}"


@dataclass(frozen=True)
class _Quantity:
    """A column of the samples. `note` says in words what its values (mean, low, high) come to."""

    column: str
    title: str
    unit: str
    least_span: float
    note: Callable[[Sequence[float], Sequence[float], Sequence[float]], str]


_QUANTITIES = (
    _Quantity("temperature_c", "Temperature", "°C", 10, lambda _, __, high: f"up to {number(max(high))} °C"),
    _Quantity("power_w", "Power", "W", 50, lambda _, __, high: f"up to {number(round(max(high)))} W"),
    _Quantity(
        "clock_sm_mhz",
        "SM clock",
        "MHz",
        100,
        lambda _, low, high: f"{from_to(round(min(low)), round(max(high)))} MHz",
    ),
)


def timeline(report: Report, series: Mapping[str, Any]) -> Timeline:
    """The plots of every GPU that has samples or rates, on common axes, so that GPUs can be compared."""
    checks = list(dict.fromkeys(str(window["check"]) for window in series["windows"]))
    series = {**series, "rates": [item for item in series["rates"] if item["name"] != WAVE_LOAD]}
    names = list(dict.fromkeys(_short_name(item) for item in series["rates"] if _values(item["values"])))
    sampled = [
        gpu["uuid"]
        for gpu in report["gpus"]
        if gpu["uuid"] in series["gpus"] or any(item["gpu"] == gpu["uuid"] for item in series["rates"])
    ]
    wide = len(sampled) <= 2
    page = _Page(report, series, checks, names, (480, 190) if wide else (330, 146))
    return Timeline(
        tuple(GpuFigures(uuid, tuple(page.figures(uuid))) for uuid in sampled),
        tuple((f"check{index % CHECK_COLOURS}", check) for index, check in enumerate(checks)),
        tuple((_line_css(index), name) for index, name in enumerate(names)),
        wide,
    )


class _Page:
    """What the plots of all GPUs have in common: axes, colours, size."""

    def __init__(
        self,
        report: Report,
        series: Mapping[str, Any],
        checks: Sequence[str],
        names: Sequence[str],
        plot_size: tuple[int, int],
    ) -> None:
        self._report, self._series, self._size = report, series, plot_size
        self._check_css = {check: f"check{index % CHECK_COLOURS}" for index, check in enumerate(checks)}
        self._line_css = {name: _line_css(index) for index, name in enumerate(names)}
        times = [moment for gpu in series["gpus"].values() for moment in (gpu["t_s"][:1] + gpu["t_s"][-1:])]
        times += [moment for item in series["rates"] for moment in (item["t_s"][:1] + item["t_s"][-1:])]
        times += [window[end] for window in series["windows"] for end in ("start_s", "end_s")]
        self._x = (min([0.0, *times]), max([1.0, *times]))
        # The rates are shown in per cent of their own median: precisions differ by a factor of 30.
        self._shares = [_share(item) for item in series["rates"]]
        self._y = {
            quantity.column: nice_range(
                [
                    value
                    for gpu in series["gpus"].values()
                    for part in _parts(gpu, quantity.column)
                    for value in _values(part)
                ],
                quantity.least_span,
                quantity.column != "temperature_c",  # 0 °C means nothing here
            )
            for quantity in _QUANTITIES
        }
        # What is above is drawn at the edge: single bursts of a simulated GPU would flatten all the rest.
        shares = [min(value, _MOST_SHARE) for line in self._shares for value in _values(line)]
        self._rate_y = nice_range([*shares, 100.0], 20.0)

    def figures(self, uuid: str) -> Iterator[Figure]:
        """The plots of one GPU; what was not measured has none."""
        samples = self._series["gpus"].get(uuid)
        for quantity in _QUANTITIES if samples else ():
            parts = _parts(samples, quantity.column)
            if not _values(parts[0]):
                continue
            line = _thinned("line0", f"{quantity.title} {quantity.unit}", samples["t_s"], parts)
            bands = [*self._windows(uuid), *(slowed(samples) if quantity.column == "clock_sm_mhz" else ())]
            note = quantity.note(*(_values(part) for part in parts))
            yield self._figure(uuid, quantity.title, quantity.unit, note, self._y[quantity.column], [line], bands)
        rates = [pair for pair in zip(self._series["rates"], self._shares, strict=True) if pair[0]["gpu"] == uuid]
        lines = [self._rate_line(item, share) for item, share in rates if _values(share)]
        if lines:
            lowest = min((min(_values(share)), _short_name(item)) for item, share in rates if _values(share))
            note = f"lowest {lowest[0]:.0f} %, {lowest[1]}"
            yield self._figure(uuid, "Throughput", "%", note, self._rate_y, lines, list(self._windows(uuid)))

    def _rate_line(self, item: Mapping[str, Any], share: list[float | None]) -> Line:
        name = _short_name(item)
        median = rate(statistics.median(_values(item["values"])), item["unit"])
        return _thinned(self._line_css[name], f"{name}: 100 % is {median}", item["t_s"], (share, share, share))

    def _figure(
        self,
        uuid: str,
        title: str,
        unit: str,
        note: str,
        y: tuple[float, float],
        lines: list[Line],
        bands: list[Band],
    ) -> Figure:
        span = self._x[1] - self._x[0]
        scale, name, steps = next(unit[1:] for unit in _TIME_UNITS if span > unit[0])
        step = next((step for step in steps if span / scale / step <= 6), steps[-1])
        frame = Frame(*self._size, self._x, y, step * scale, scale, name, nice_step(y[1] - y[0], 4))
        spoken = f"{gpu_name(self._report, uuid)}: {title} in {unit} over time, {note}"
        return Figure(title, unit, note, plot(frame, spoken, lines, bands, list(self._xids(uuid))))

    def _windows(self, uuid: str) -> Iterator[Band]:
        for window in self._series["windows"]:
            if window["gpu"] in (uuid, None):
                check = str(window["check"])
                yield Band(window["start_s"], window["end_s"], self._check_css[check], check)

    def _xids(self, uuid: str) -> Iterator[Mark]:
        for event in self._report["telemetry"]["kernel_log"]["events"]:
            at = event["monotonic_us"] / 1e6 - self._series["started_monotonic_s"]
            if event["gpu"] == uuid and not event["own"] and self._x[0] <= at <= self._x[1]:
                yield Mark(at, f"{'SXid' if event['sxid'] else 'XID'} {event['xid']}", event["text"])


def _values(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _parts(samples: Mapping[str, Any], column: str) -> tuple[list[float | None], ...]:
    """Mean, low and high of a column; all the same where no samples were joined."""
    values: list[float | None] = samples["columns"].get(column, [])
    return values, samples.get("low", {}).get(column, values), samples.get("high", {}).get(column, values)


def _thinned(css: str, label: str, t_s: Sequence[float], parts: Sequence[Sequence[float | None]]) -> Line:
    groups = thinning.grouped(t_s, _POINTS)
    times = thinning.times(t_s, groups)
    if parts[0] is parts[1] and len(groups) == len(t_s):
        return Line(css, label, times, parts[0])
    return Line(
        css,
        label,
        times,
        thinning.reduced(parts[0], groups, thinning.mean),
        thinning.reduced(parts[1], groups, min),
        thinning.reduced(parts[2], groups, max),
    )


def _short_name(item: Mapping[str, Any]) -> str:
    """gemm_bf16_throughput of the check gemm is bf16; a name with nothing else in it is the check's."""
    name = str(item["name"]).removeprefix(f"{item['check']}_")
    for suffix in _RATE_SUFFIXES:
        name = name.removesuffix(suffix).removesuffix(suffix.removeprefix("_"))
    return name or str(item["check"])


def _share(item: Mapping[str, Any]) -> list[float | None]:
    known = _values(item["values"])
    median = statistics.median(known) if known else 0.0
    return [None if value is None or not median else 100 * value / median for value in item["values"]]


def slowed(samples: Mapping[str, Any]) -> Iterator[Band]:
    """The stretches in which the GPU slowed itself down."""
    t_s, bits = samples["t_s"], samples["columns"].get("clocks_event_reasons", ())
    start: float | None = None
    why = 0
    for moment, value in zip([*t_s, t_s[-1] if t_s else 0.0], [*bits, None], strict=False):
        now = int(value or 0) & sum(SLOWED)
        if now != why and start is not None:
            names = ", ".join(name for bit, name in SLOWED.items() if why & bit)
            yield Band(start, moment, "slowed", names)
            start = None
        if now and start is None:
            start = moment
        why = now
