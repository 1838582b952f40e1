"""Small plots as inline SVG: axes with units, lines, shaded windows, points. No scripts, no styles of its own.

Classes are for the page's style sheet; every text is escaped here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

# Room around the plot in units of the view box: left for the numbers, below for the time.
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 18, 25
# About so wide is a letter.
_LETTER = 7
# A line is broken where samples are missing for this many times their usual distance.
_GAP = 6.0


@dataclass(frozen=True)
class Line:
    """A line through (t_s, values); None breaks it. `low` and `high` shade what was joined into a point."""

    css: str
    label: str
    t_s: Sequence[float]
    values: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


@dataclass(frozen=True)
class Band:
    """A shaded stretch of time with a name."""

    start: float
    end: float
    css: str
    label: str


# Shapes of points, about seven units large, as paths relative to their middle: circle, square, triangle, diamond,
# cross, bar. What differs in colour differs in shape too.
SHAPES = (
    "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
    "m-2.9-2.9h5.8v5.8h-5.8z",
    "m0-3.8l3.8 6.6h-7.6z",
    "m0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z",
    "m-1.1-4h2.2v2.9h2.9v2.2h-2.9v2.9h-2.2v-2.9h-2.9v-2.2h2.9z",
    "m-1.3-4.2h2.6v8.4h-2.6z",
)


@dataclass(frozen=True)
class Dot:
    """A point of a group (0, 1, ...) and what it is."""

    x: float
    y: float
    label: str
    group: int = 0


@dataclass(frozen=True)
class Mark:
    """A moment worth a vertical line with a short name; `detail` is in its tooltip."""

    at: float
    label: str
    detail: str


@dataclass(frozen=True)
class Level:
    """A value worth a horizontal line over the whole plot, with its name."""

    at: float
    label: str


@dataclass(frozen=True)
class Frame:
    """Size of a plot and the ranges of its axes; `x_unit` goes behind the last number below.

    `x_labels` (place, text) are written below instead of numbers where there are any.
    """

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]
    x_step: float
    x_scale: float
    x_unit: str
    y_step: float
    x_labels: tuple[tuple[float, str], ...] = ()

    def px(self, x: float) -> float:
        """Where a value of the lower axis is."""
        share = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        return _LEFT + min(max(share, 0.0), 1.0) * (self.width - _LEFT - _RIGHT)

    def py(self, y: float) -> float:
        """Where a value of the left axis is."""
        share = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        return self.height - _BOTTOM - min(max(share, 0.0), 1.0) * (self.height - _TOP - _BOTTOM)


def nice_step(span: float, wanted: int) -> float:
    """A distance of ticks that people count in (1, 2, 5 times a power of ten) for about `wanted` of them."""
    rough = max(span, 1e-9) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)


def nice_range(values: Iterable[float], least_span: float, from_zero: bool = True) -> tuple[float, float]:
    """Ends of an axis for these values: at round numbers, from 0 (if asked) when that costs less than half of it."""
    known = list(values)
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if from_zero and 0 < low < 0.5 * high:
        low = 0.0
    if high - low < least_span:
        middle = (high + low) / 2
        low, high = max(middle - least_span / 2, min(low, 0.0)), middle + least_span / 2
    step = nice_step(high - low, 4)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def plot(
    frame: Frame,
    title: str,
    lines: Sequence[Line],
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
    levels: Sequence[Level] = (),
    dots: Iterable[Dot] = (),
) -> Markup:
    """A plot as an <svg> element that scales to its place. `title` is what screen readers say.

    Each group of dots has its own colour and its own shape.
    """
    parts = [*_bands(frame, bands), *_axes(frame), *(_level(frame, level) for level in levels)]
    parts += [shade for line in lines for shade in _shade(frame, line)]
    parts += [_line(frame, line) for line in lines]
    parts += [_dot(frame.px(dot.x), frame.py(dot.y), dot.group, dot.label) for dot in dots]
    parts += [_mark(frame, mark) for mark in marks]
    return _svg(frame, title, parts)


def key_of(group: int) -> Markup:
    """The point of a group, alone, for a legend."""
    return drawing(10, 10, "", [_dot(5.0, 5.0, group, "")], "fixed key")


def _dot(x: float, y: float, group: int, label: str) -> str:
    shape = group % len(SHAPES)
    told = f"<title>{escape(label)}</title>" if label else ""
    return f'<path class="dot line{shape}" d="M{x:.1f} {y:.1f}{SHAPES[shape]}">{told}</path>'


def _svg(frame: Frame, title: str, parts: Iterable[str]) -> Markup:
    return drawing(frame.width, frame.height, title, parts)


def drawing(width: float, height: float, title: str, parts: Iterable[str], css: str = "") -> Markup:
    """An <svg> element of these parts. With a class `fixed` it keeps its size, else it scales to its place."""
    size = f' class="{escape(css)}" width="{width:g}" height="{height:g}"' if css else ""
    spoken = f'role="img" aria-label="{escape(title)}"' if title else 'aria-hidden="true"'
    return Markup(f'<svg{size} viewBox="0 0 {width:g} {height:g}" {spoken}>{"".join(parts)}</svg>')


def _ticks(low: float, high: float, step: float) -> list[float]:
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _tick_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:g}"


def _numbers_below(frame: Frame) -> tuple[tuple[float, str], ...]:
    ticks = _ticks(*frame.x, frame.x_step)
    texts = [_tick_text(value / frame.x_scale) for value in ticks]
    return tuple(zip(ticks, [*texts[:-1], *(f"{text} {frame.x_unit}" for text in texts[-1:])], strict=True))


def _axes(frame: Frame) -> list[str]:
    right, bottom = frame.width - _RIGHT, frame.height - _BOTTOM
    parts = []
    for value in _ticks(*frame.y, frame.y_step):
        y = frame.py(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = f'<text class="tick" x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_tick_text(value)}</text>'
        parts.append(text)
    ticks = frame.x_labels or _numbers_below(frame)
    for index, (value, text) in enumerate(ticks):
        x, last = frame.px(value), index == len(ticks) - 1
        anchor = "end" if last and x > right - 20 else "middle"
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 3}"/>')
        parts.append(
            f'<text class="tick" x="{right if anchor == "end" else x:.1f}" y="{bottom + 18}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )
    return [*parts, f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>']


def _bands(frame: Frame, bands: Iterable[Band]) -> Iterator[str]:
    """Stretches with the names that fit; the others' are in the tooltip and the legend."""
    free_from = 0.0
    for band in bands:
        left, right = frame.px(band.start), frame.px(band.end)
        width, needed = max(right - left, 1.0), _LETTER * len(band.label) + 4
        name = ""
        if width > needed and left >= free_from:
            name = f'<text class="band-name" x="{left + 3:.1f}" y="{_TOP - 5}">{escape(band.label)}</text>'
            free_from = left + needed
        yield (
            f'<g class="band {escape(band.css)}"><rect x="{left:.1f}" y="{_TOP - 2}" width="{width:.1f}" '
            f'height="{frame.height - _TOP - _BOTTOM + 2}"><title>{escape(band.label)}</title></rect>{name}</g>'
        )


def _level(frame: Frame, level: Level) -> str:
    y, right = frame.py(level.at), frame.width - _RIGHT
    below = y < _TOP + 12  # the name goes where there is room
    return (
        f'<g class="level"><line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT + 4}" y="{y + (10 if below else -4):.1f}">{escape(level.label)}</text></g>'
    )


def _mark(frame: Frame, mark: Mark) -> str:
    x = frame.px(mark.at)
    late = x > frame.width / 2  # the name goes where there is room
    return (
        f'<g class="mark"><line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 2}" y2="{frame.height - _BOTTOM}"/>'
        f'<text x="{x + (-3 if late else 3):.1f}" y="{_TOP + 7}" text-anchor="{"end" if late else "start"}">'
        f"{escape(mark.label)}</text><title>{escape(mark.detail)}</title></g>"
    )


def _runs(line: Line) -> list[list[int]]:
    """Indices of the points that belong together: no missing value, no long silence between them."""
    steps = [after - before for before, after in zip(line.t_s, line.t_s[1:], strict=False)]
    longest = _GAP * statistics.median(steps) if steps else 0.0
    runs: list[list[int]] = [[]]
    for index, value in enumerate(line.values):
        if value is None or (runs[-1] and line.t_s[index] - line.t_s[runs[-1][-1]] > longest):
            runs.append([])
        if value is not None:
            runs[-1].append(index)
    return [run for run in runs if run]


def _line(frame: Frame, line: Line) -> str:
    strokes: list[str] = []
    dots: list[str] = []
    for run in _runs(line):
        points = [f"{frame.px(line.t_s[i]):.1f} {frame.py(line.values[i] or 0.0):.1f}" for i in run]
        # A stroke without length shows as its round ends; a point that stands alone has to be seen.
        (strokes if len(points) > 1 else dots).append("M" + "L".join(points if len(points) > 1 else points * 2))
    return "".join(
        f'<path class="{kind} {escape(line.css)}" d="{"".join(paths)}"><title>{escape(line.label)}</title></path>'
        for kind, paths in (("line", strokes), ("line single", dots))
        if paths
    )


def _shade(frame: Frame, line: Line) -> list[str]:
    if line.low is None or line.high is None:
        return []
    shapes = []
    for run in _runs(line):
        above = [f"{frame.px(line.t_s[i]):.1f} {frame.py(line.high[i] or 0.0):.1f}" for i in run]
        below = [f"{frame.px(line.t_s[i]):.1f} {frame.py(line.low[i] or 0.0):.1f}" for i in reversed(run)]
        shapes.append("M" + "L".join([*above, *below]) + "Z")
    return [f'<path class="shade {escape(line.css)}" d="{"".join(shapes)}"/>']
