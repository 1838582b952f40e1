"""The power check on the page: power, clock and temperature of each GPU laid over the waves of its load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_burnin.checks.power.result import NoWaves, PhasePower, PowerCoverage, PowerSeen, WavesMade
from gpu_burnin.report.charts import (
    CHECK_COLOURS,
    SLOWED,
    WAVE_LOAD,
    Figure,
    GpuFigures,
    GpuRows,
    from_to,
    rows_of,
    slowed,
)
from gpu_burnin.report.model import Report
from gpu_burnin.report.series import NO_SAMPLES, RunSeries, Window
from gpu_burnin.report.svg import Band, Frame, Level, Line, nice_range, nice_step, plot
from gpu_burnin.report.units import coverages_of, results_of
from gpu_burnin.system.quantities import number
from gpu_burnin.types import CheckResult

# What is shown before and after the check: this part of its time, and seconds at least and at most.
_AROUND, _AROUND_LEAST_S, _AROUND_MOST_S = 0.07, 1.0, 3.0
_SIZE = (340, 150)
_COLUMNS = (
    ("power_w", "Power", "W", 50.0, True),
    ("clock_sm_mhz", "SM clock", "MHz", 100.0, True),
    ("temperature_c", "Temperature", "°C", 10.0, False),
)
# A half period narrower than this part of the plot is not drawn on its own.
_NARROWEST = 1 / 150


@dataclass(frozen=True)
class Drawn:
    """What a GPU drew and did under the mixed load, as texts; `slowed` says when it slowed itself down, and why."""

    gpu: str
    power: str
    of_limit: str
    energy: str
    clock: str
    hottest: str
    slowed: str


@dataclass(frozen=True)
class Waves:
    """The section: what ran in words, a row of the table and a row of plots for each GPU, the stretches' legend.

    `limits`: a power limit is drawn; `made`: waves were made.
    """

    told: tuple[str, ...]
    drawn: tuple[Drawn, ...]
    gpus: GpuRows
    legend: tuple[tuple[str, str], ...]
    limits: bool
    made: bool


def waves(report: Report, series: RunSeries) -> Waves | None:
    """The section, None where the power check gave no result."""
    checks = results_of(report, "power")
    if not checks:
        return None
    windows = [window for window in series.windows if window.check == "power"]
    shown = _Shown(report, series, checks, windows)
    rows = (GpuFigures(str(check.gpu), tuple(shown.figures(check))) for check in checks)
    gpus = tuple(row for row in rows if row.figures)
    judged = [(check, seen) for check in checks if (seen := _power(check))]
    places = {seen.temperature_rank for _, seen in judged}
    drawn = tuple(_drawn(report, check, seen, len(places) > 1) for check, seen in judged)
    made = any(isinstance(coverage.waves, WavesMade) for coverage in coverages_of(report, PowerCoverage))
    return Waves(tuple(summary(report)), drawn, rows_of(report, gpus), shown.legend(), any(map(_limit, checks)), made)


def _limit(check: CheckResult) -> float | None:
    """The power limit of the GPU in watts."""
    return check.coverage.power_limit_w if isinstance(check.coverage, PowerCoverage) else None


def _power(check: CheckResult) -> PowerSeen | None:
    """What the samplers saw of the check on a GPU."""
    return check.coverage.power if isinstance(check.coverage, PowerCoverage) else None


def _drawn(report: Report, check: CheckResult, power: PowerSeen, ranks: bool) -> Drawn:
    """A row of the table; `ranks`: the GPUs differ in temperature."""
    mixed = power.phases.get("mixed", PhasePower(seconds=0.0))
    share, joules, most = mixed.share_of_limit, mixed.energy_j, power.clock_max_mhz
    clock, hottest = _with_unit(mixed.clock_median_mhz, "MHz"), _with_unit(mixed.temperature_highest_c, "°C")
    rank = power.temperature_rank
    ranked = f" (no. {number(rank)} of {number(power.temperature_rank_of)})" if rank and ranks else ""
    braked = [
        f"{name} for {number(seconds)} s of the {title}"
        for phase, title in (("waves", "waves"), ("mixed", "mixed load"))
        for bit, name in SLOWED.items()
        if phase in power.phases and (seconds := power.phases[phase].reason_s(bit))
    ]
    return Drawn(
        report.name(check.gpu),
        _with_unit(mixed.mean_power_w, "W"),
        "-" if share is None else f"{share:.0%}",
        "-" if joules is None else f"{number(joules / 1e3)} kJ",
        clock + (f" of {number(most)} MHz" if most and clock != "-" else ""),
        hottest + (ranked if hottest != "-" else ""),
        ", ".join(braked),
    )


def _with_unit(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{number(round(value))} {unit}"


class _Shown:
    """What the plots of all GPUs have in common: axes, and colours of the frequencies."""

    def __init__(
        self,
        report: Report,
        series: RunSeries,
        checks: Sequence[CheckResult],
        windows: Sequence[Window],
    ) -> None:
        self._report, self._series = report, series
        self._stretches = {str(check.gpu): list(self._bands(check)) for check in checks}
        # A check may wait long for a grant before its waves: that is not shown.
        spans = [(start, end) for bands in self._stretches.values() for start, end, _ in bands]
        spans = spans or [(window.start_s, window.end_s) for window in windows]
        start, end = min((s for s, _ in spans), default=0.0), max((e for _, e in spans), default=1.0)
        around_s = min(max(_AROUND * (end - start), _AROUND_LEAST_S), _AROUND_MOST_S)
        self._x = (start - around_s, end + around_s)
        names = dict.fromkeys(label for bands in self._stretches.values() for _, _, label in bands)
        self._css = {name: f"check{index % CHECK_COLOURS}" for index, name in enumerate(names)}
        self._samples = {str(check.gpu): self._cut(str(check.gpu)) for check in checks if windows}
        limits = [limit for check in checks if (limit := _limit(check))]
        self._y = {
            column: nice_range(
                [
                    *(value for rows in self._samples.values() for row in rows.get(column, ()) for value in row[1:]),
                    *(limits if column == "power_w" else ()),
                ],
                least,
                from_zero,
            )
            for column, _, _, least, from_zero in _COLUMNS
        }

    def legend(self) -> tuple[tuple[str, str], ...]:
        """Style class and name of each stretch."""
        return tuple((css, name) for name, css in self._css.items())

    def _cut(self, uuid: str) -> dict[str, list[tuple[float, float, float, float]]]:
        """Samples of a GPU around the check by column: (moment, mean, lowest, highest)."""
        gpu = self._series.gpus.get(uuid, NO_SAMPLES)
        start, end = self._x
        return {
            column: [
                (moment, mean, low, high)
                for moment, mean, low, high in zip(gpu.t_s, *gpu.parts(column), strict=False)
                if mean is not None and low is not None and high is not None and start <= moment <= end
            ]
            for column, *_ in _COLUMNS
        }

    def _bands(self, check: CheckResult) -> Iterator[tuple[float, float, str]]:
        """The stretches of a GPU: start and end in seconds since the run began, and their name."""
        if not isinstance(check.coverage, PowerCoverage):
            return
        started_s = self._series.started_monotonic_s
        # A stretch after the last check does not belong to this run.
        ended_s = max((window.end_s for window in self._series.windows), default=0.0) + _AROUND_LEAST_S
        made, mixed = check.coverage.waves, check.coverage.mixed
        stretches = [
            (wave.started_s, wave.ended_s, f"{number(wave.frequency_hz)} Hz")
            for wave in (made.frequencies if isinstance(made, WavesMade) else ())
        ]
        for start, end, name in [*stretches, (mixed.started_s, mixed.ended_s, "mixed load")]:
            if 0.0 <= start - started_s < end - started_s <= ended_s:
                yield start - started_s, end - started_s, name

    def figures(self, check: CheckResult) -> Iterator[Figure]:
        """The plots of one GPU; what was not sampled has none."""
        uuid = str(check.gpu)
        bands = [Band(start, end, self._css[name], name) for start, end, name in self._stretches[uuid]]
        bands += self._load(uuid)
        limit = _limit(check)
        for column, title, unit, _, _ in _COLUMNS:
            rows = self._samples.get(uuid, {}).get(column, [])
            if not rows:
                continue
            t_s, mean, low, high = zip(*rows, strict=True)
            line = Line("line0", f"{title} {unit}", t_s, mean, low, high)
            levels = [Level(limit, f"limit {number(limit)} W")] if limit and column == "power_w" else []
            note = f"{from_to(round(min(low)), round(max(high)))} {unit}"
            span = self._x[1] - self._x[0]
            y = self._y[column]
            frame = Frame(*_SIZE, self._x, y, nice_step(span, 6), 1.0, "s", nice_step(y[1] - y[0], 4))
            spoken = f"{self._report.name(uuid)}: {title} in {unit} over the waves, {note}"
            over = [*bands, *(self._slowed(uuid) if column == "clock_sm_mhz" else ())]
            yield Figure(title, unit, note, plot(frame, spoken, [line], over, levels=levels))

    def _slowed(self, uuid: str) -> Iterator[Band]:
        """The stretches around the check in which the GPU slowed itself down."""
        for band in slowed(self._series.gpus.get(uuid, NO_SAMPLES)):
            if band.end > self._x[0] and band.start < self._x[1]:
                yield band

    def _load(self, uuid: str) -> Iterator[Band]:
        """The stretches in which the load was on, where they are wide enough to be told apart."""
        narrowest = (self._x[1] - self._x[0]) * _NARROWEST
        for item in self._series.rates:
            if item.gpu == uuid and item.check == "power" and item.name == WAVE_LOAD:
                for start, end, value in zip(item.t_s, item.t_s[1:], item.values, strict=False):
                    if value and value > 0.5 and end - start >= narrowest:
                        yield Band(start, end, "load", "")


def summary(report: Report) -> Iterator[str]:
    """What the power check ran and reached, in sentences."""
    tried = [coverage.waves for coverage in coverages_of(report, PowerCoverage)]
    ran = [waves for waves in tried if isinstance(waves, WavesMade)]
    if ran:
        hertz = list(dict.fromkeys(number(value) for waves in ran for value in waves.frequencies_hz))
        edges, products = sum(waves.edges for waves in ran), sum(waves.products_verified for waves in ran)
        skew = max(waves.start_skew_s or 0.0 for waves in ran)
        who = f"All loads went on and off together on {len(ran)} GPUs" if len(ran) > 1 else "The load went on and off"
        told = [f"{who} at {', '.join(hertz)} Hz"]
        told += [f"{number(edges)} edges"] * bool(edges)
        told += [f"{number(products)} exact products verified on them"] * bool(products)
        told += [f"the GPUs started at most {number(skew * 1e3)} ms apart"] * bool(skew)
        yield ", ".join(told) + "."
    if not any(item.code == "WAVES_NOT_RUN" for item in report.reasons_and_warnings):  # says it
        for why in dict.fromkeys(waves.why for waves in tried if isinstance(waves, NoWaves)):
            yield f"The waves did not run: {why or 'no reason was given'}."
    reached = [
        (item.value / limit, report.name(check.gpu), item.value, limit)
        for check in results_of(report, "power")
        for item in check.measurements
        if item.name == "power_reached_w" and math.isfinite(item.value) and (limit := _limit(check))
    ]
    if reached:
        share, name, value, limit = min(reached)
        of_limit = f"{number(round(value))} W of a limit of {number(limit)} W ({share:.0%})"
        yield f"Power reached: lowest on {name}, {of_limit}."
