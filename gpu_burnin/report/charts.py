"""The plots of the page over time: what each GPU did while the checks ran."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from gpu_burnin.report import series as thinning
from gpu_burnin.report.aggregate import Strand, furthest, pooled, stretches
from gpu_burnin.report.check_findings import link_of
from gpu_burnin.report.model import Report
from gpu_burnin.report.series import NO_SAMPLES, Rate, RunSeries, Samples, Values
from gpu_burnin.report.svg import Band, Frame, Line, Mark, nice_range, nice_step, plot
from gpu_burnin.system.quantities import number

# Colours that the style sheet has for checks and stretches.
CHECK_COLOURS = 9
# A plot is some 300 points wide.
_POINTS = 240
# Rates come in bursts of some tenths of a second, one after the other: a point joins those of a stretch.
_RATE_POINTS = 48
# From this number of GPUs on all of them are drawn as one before each is drawn.
_MANY = 3
# A GPU is drawn beside the median of all when it is this part of the axis away from it.
_APART = 0.04
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
class GpuRows:
    """The plots of GPUs that something was found against, and those of the others, which are folded."""

    shown: tuple[GpuFigures, ...]
    folded: tuple[GpuFigures, ...]


@dataclass(frozen=True)
class Timeline:
    """All plots over time with the legend of the checks: (style class, name). `together`: all GPUs in one plot."""

    together: tuple[Figure, ...]
    gpus: GpuRows
    windows: tuple[tuple[str, str], ...]
    rates: bool
    wide: bool


def rows_of(report: Report, gpus: Sequence[GpuFigures]) -> GpuRows:
    """Open where something was found against the GPU or a link of it, unless that holds of all without a FAIL."""
    concerned = {gpu.uuid for gpu in report.gpus if gpu.verdict != "PASS"}
    concerned |= {uuid for reason in report.reasons for uuid in link_of(reason)}
    if report.verdict != "FAIL" and len(concerned) == len(report.gpus):
        concerned.clear()
    alone = len(gpus) < _MANY
    return GpuRows(
        tuple(gpu for gpu in gpus if alone or gpu.uuid in concerned),
        tuple(gpu for gpu in gpus if not alone and gpu.uuid not in concerned),
    )


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


def timeline(report: Report, series: RunSeries) -> Timeline:
    """The plots of every GPU that has samples or rates, on common axes, so that GPUs can be compared."""
    checks = list(dict.fromkeys(window.check for window in series.windows))
    series = replace(series, rates=tuple(item for item in series.rates if item.name != WAVE_LOAD))
    sampled = [
        gpu.uuid for gpu in report.gpus if gpu.uuid in series.gpus or any(item.gpu == gpu.uuid for item in series.rates)
    ]
    wide = len(sampled) < _MANY
    page = _Page(report, series, checks, (440, 180) if wide else (300, 140))
    return Timeline(
        () if wide else tuple(page.together()),
        rows_of(report, [GpuFigures(uuid, tuple(page.figures(uuid))) for uuid in sampled]),
        tuple((f"check{index % CHECK_COLOURS}", check) for index, check in enumerate(checks)),
        any(_values(item.values) for item in series.rates),
        wide,
    )


class _Page:
    """What the plots of all GPUs have in common: axes, colours, size."""

    def __init__(
        self,
        report: Report,
        series: RunSeries,
        checks: Sequence[str],
        plot_size: tuple[int, int],
    ) -> None:
        self._report, self._series, self._size = report, series, plot_size
        self._check_css = {check: f"check{index % CHECK_COLOURS}" for index, check in enumerate(checks)}
        times = [moment for gpu in series.gpus.values() for moment in (*gpu.t_s[:1], *gpu.t_s[-1:])]
        times += [moment for item in series.rates for moment in (*item.t_s[:1], *item.t_s[-1:])]
        times += [moment for window in series.windows for moment in (window.start_s, window.end_s)]
        self._x = (min([0.0, *times]), max([1.0, *times]))
        # The rates are shown in per cent of their own median: precisions differ by a factor of 30.
        self._shares = [_share(item) for item in series.rates]
        self._y = {
            quantity.column: nice_range(
                [
                    value
                    for gpu in series.gpus.values()
                    for part in gpu.parts(quantity.column)
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

    def together(self) -> Iterator[Figure]:
        """All GPUs in one plot: their median, from the lowest to the highest, and the one that stands apart."""
        whom = f"all {len(self._report.gpus)} GPUs"
        for quantity in _QUANTITIES:
            found = {uuid: self._strand(uuid, quantity) for uuid in self._series.gpus}
            strands = {uuid: strand for uuid, strand in found.items() if _values(strand.values)}
            if not strands:
                continue
            y, every = self._y[quantity.column], list(strands.values())
            points = stretches(every, _POINTS)
            lines = [_line_of("line0", f"median of {whom}", pooled(every, self._x, points))]
            note = _noted(quantity, every)
            apart = furthest(every, self._x, points, _APART * (y[1] - y[0]))
            if apart is not None:
                name, own = self._report.name(list(strands)[apart]), every[apart]
                alone = pooled([own], self._x, points)
                lines.append(Line("line1", name, alone.t_s, alone.values))
                note = f"{name}: {_noted(quantity, [own])}"
            yield self._figure(whom, quantity.title, quantity.unit, note, y, lines, list(self._windows(None)), None)
        yield from self._throughput(whom, None)

    def figures(self, uuid: str) -> Iterator[Figure]:
        """The plots of one GPU; what was not measured has none."""
        samples, whom = self._series.gpus.get(uuid, NO_SAMPLES), self._report.name(uuid)
        for quantity in _QUANTITIES:
            parts = samples.parts(quantity.column)
            if not _values(parts[0]):
                continue
            line = _thinned("line0", f"{quantity.title} {quantity.unit}", samples.t_s, parts)
            bands = [*self._windows(uuid), *(slowed(samples) if quantity.column == "clock_sm_mhz" else ())]
            note = quantity.note(*(_values(part) for part in parts))
            yield self._figure(whom, quantity.title, quantity.unit, note, self._y[quantity.column], [line], bands, uuid)
        yield from self._throughput(whom, uuid)

    def _throughput(self, whom: str, uuid: str | None) -> Iterator[Figure]:
        """All rates of a GPU (None: of every GPU) as one: their median, from the lowest to the highest."""
        rates = [
            (item, share)
            for item, share in zip(self._series.rates, self._shares, strict=True)
            if uuid in (None, item.gpu) and _values(share)
        ]
        if not rates:
            return
        strands = [Strand(item.t_s, share, share, share) for item, share in rates]
        line = _line_of("line0", "median of all rates", pooled(strands, self._x, _RATE_POINTS))
        lowest, item = min(((min(_values(share)), item) for item, share in rates), key=lambda found: found[0])
        which = _short_name(item) if uuid else f"{self._report.name(item.gpu)} {_short_name(item)}"
        note = f"lowest {lowest:.0f} %, {which}"
        yield self._figure(whom, "Throughput", "%", note, self._rate_y, [line], list(self._windows(uuid)), uuid)

    def _strand(self, uuid: str, quantity: _Quantity) -> Strand:
        samples = self._series.gpus[uuid]
        values, low, high = samples.parts(quantity.column)
        return Strand(samples.t_s if values else (), values, low, high)

    def _figure(
        self,
        whom: str,
        title: str,
        unit: str,
        note: str,
        y: tuple[float, float],
        lines: list[Line],
        bands: list[Band],
        uuid: str | None,
    ) -> Figure:
        span = self._x[1] - self._x[0]
        scale, name, steps = next(unit[1:] for unit in _TIME_UNITS if span > unit[0])
        step = next((step for step in steps if span / scale / step <= 6), steps[-1])
        frame = Frame(*self._size, self._x, y, step * scale, scale, name, nice_step(y[1] - y[0], 4))
        spoken = f"{whom}: {title} in {unit} over time, {note}"
        return Figure(title, unit, note, plot(frame, spoken, lines, bands, list(self._xids(uuid))))

    def _windows(self, uuid: str | None) -> Iterator[Band]:
        """The checks of a GPU and of the node; of every GPU (None) those that overlap as one."""
        windows = (window for window in self._series.windows if uuid is None or window.gpu in (uuid, None))
        merged: dict[str, list[tuple[float, float]]] = {}
        for window in sorted(windows, key=lambda window: window.start_s):
            stretches = merged.setdefault(window.check, [])
            start, end = window.start_s, window.end_s
            if stretches and start <= stretches[-1][1]:
                start, end = stretches[-1][0], max(end, stretches.pop()[1])
            stretches.append((start, end))
        for check, stretches in merged.items():
            for start, end in stretches:
                yield Band(start, end, self._check_css[check], check)

    def _xids(self, uuid: str | None) -> Iterator[Mark]:
        for event in self._report.telemetry.kernel_log.events:
            at = event.monotonic_us / 1e6 - self._series.started_monotonic_s
            if uuid in (None, event.gpu) and not event.own and self._x[0] <= at <= self._x[1]:
                yield Mark(at, f"{'SXid' if event.sxid else 'XID'} {event.xid}", event.text)


def _noted(quantity: _Quantity, strands: Sequence[Strand]) -> str:
    """What the values of these GPUs come to, in words."""
    means = [value for strand in strands for value in _values(strand.values)]
    lows = [value for strand in strands for value in _values(strand.low)]
    highs = [value for strand in strands for value in _values(strand.high)]
    return quantity.note(means, lows, highs)


def _line_of(css: str, label: str, strand: Strand) -> Line:
    return Line(css, label, strand.t_s, strand.values, strand.low, strand.high)


def _values(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def _thinned(css: str, label: str, t_s: Sequence[float], parts: Sequence[Values]) -> Line:
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


def _short_name(item: Rate) -> str:
    """gemm_bf16_throughput of the check gemm is bf16; a name with nothing else in it is the check's."""
    name = item.name.removeprefix(f"{item.check}_")
    for suffix in _RATE_SUFFIXES:
        name = name.removesuffix(suffix).removesuffix(suffix.removeprefix("_"))
    return name or item.check


def _share(item: Rate) -> list[float | None]:
    known = _values(item.values)
    median = statistics.median(known) if known else 0.0
    return [None if value is None or not median else 100 * value / median for value in item.values]


def slowed(samples: Samples) -> Iterator[Band]:
    """The stretches in which the GPU slowed itself down."""
    t_s, bits = samples.t_s, samples.columns.get("clocks_event_reasons", ())
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
