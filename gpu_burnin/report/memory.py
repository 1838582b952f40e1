"""The memory of the GPUs on the page: how much was covered, and where words came back wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gpu_burnin.checks.hbm.result import HbmCoverage, wrong_text
from gpu_burnin.report.model import Report
from gpu_burnin.report.svg import Dot, Frame, drawing, key_of, nice_step, plot
from gpu_burnin.report.units import results_of
from gpu_burnin.system.quantities import duration, size
from gpu_burnin.types import CheckResult

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
# Errors within less than this part of the memory are one dot on the whole map, so they get a map of their own.
_CLOSE = 1 / 40
_MAP = (440, 200)


@dataclass(frozen=True)
class Memory:
    """A row of the table of memory: what was covered on a GPU, as a bar and in words, and what came back wrong."""

    gpu: str
    bar: Markup | None
    covered: str
    unreachable: str
    patterns: str
    timing: str
    wrong: str
    is_wrong: bool


@dataclass(frozen=True)
class ErrorMap:
    """Where a GPU's words were wrong. `patterns` are (mark, name), `figures` (caption, plot).

    `seen_by` says in words which tests read how many of them wrong.
    """

    heading: str
    shape: str
    seen_by: str
    patterns: tuple[tuple[Markup, str], ...]
    figures: tuple[tuple[str, Markup], ...]


def memory_rows(report: Report) -> list[Memory]:
    """What the memory check covered on each GPU."""
    return [_row(report, check) for check in results_of(report, "hbm")]


def _row(report: Report, check: CheckResult) -> Memory:
    found = check.coverage if isinstance(check.coverage, HbmCoverage) else None
    wrong = wrong_text(check)
    return Memory(
        report.name(check.gpu),
        _bar(found) if found else None,
        _covered(found) if found else "not said",
        size(found.unreachable_bytes) if found and found.unreachable_bytes is not None else "-",
        ", ".join(found.patterns) if found else "",
        _timing(found) if found else "-",
        wrong or ("none" if check.verdict == "PASS" else "-"),
        bool(wrong),
    )


def _covered(found: HbmCoverage) -> str:
    if found.simulated:
        return f"{size(found.covered_bytes)} of host memory, no GPU memory"
    if not found.gpu_memory_bytes:
        return size(found.covered_bytes)
    share = found.covered_bytes / found.gpu_memory_bytes
    return f"{size(found.covered_bytes)} of {size(found.gpu_memory_bytes)} ({share:.1%})"


def _timing(found: HbmCoverage) -> str:
    times = ((found.sweep_seconds, "one round"), (found.retention_s, "kept for"))
    return ", ".join(f"{what} {duration(seconds)}" for seconds, what in times if seconds) or "-"


def _bar(found: HbmCoverage) -> Markup | None:
    """The covered part of the memory, then what is out of reach; what is left is neither."""
    if found.simulated or not found.gpu_memory_bytes:
        return None
    covered, unreachable = (
        part / found.gpu_memory_bytes for part in (found.covered_bytes, found.unreachable_bytes or 0)
    )
    first = min(max(covered, 0.0), 1.0) * 200
    second = min(max(unreachable, 0.0) * 200, 200 - first)
    # A part that is there has to be seen.
    second = max(second, 1.5) if unreachable > 0 and first <= 198.5 else second
    spoken = f"{covered:.1%} covered, {unreachable:.1%} not reachable"
    return drawing(
        200,
        12,
        spoken,
        [
            '<rect class="whole" width="200" height="12"/>',
            f'<rect class="covered" width="{first:.1f}" height="12"/>',
            f'<rect class="unreachable" x="{first:.1f}" y="3" width="{second:.1f}" height="6"/>',
        ],
        css="fixed bar",
    )


def error_maps(report: Report) -> list[ErrorMap]:
    """For each check with wrong memory words whose place is known: offset against bit, by pattern."""
    maps = []
    for check in report.checks:
        dots = list(_dots(check.errors))
        if not dots:
            continue
        names = list(dict.fromkeys(pattern for _, _, pattern, _ in dots))
        points = [Dot(x, bit, label, names.index(pattern)) for x, bit, pattern, label in dots]
        found = check.coverage if isinstance(check.coverage, HbmCoverage) else None
        name = report.name(check.gpu)
        end = (found.covered_bytes or found.gpu_memory_bytes or 0) if found else 0
        figures = [_figure(name, points, 0.0, max(float(end), 1.0))]
        low, high = min(dot.x for dot in points), max(dot.x for dot in points)
        if 0 < high - low < figures[0][2] * _CLOSE:
            figures.append(_figure(name, points, low, high))
        maps.append(
            ErrorMap(
                f"{check.name} on {name}",
                found.shape_words if found else "",
                _detectors(found) if found else "",
                tuple((key_of(index), pattern) for index, pattern in enumerate(names) if pattern),
                tuple((caption, svg) for caption, svg, _ in figures),
            )
        )
    return maps


def _detectors(found: HbmCoverage) -> str:
    told = [f"{name} {count:,} times" for name, count in found.wrong_words_by_pattern.items() if count]
    return f"Came back wrong in {', '.join(told)}." if told else ""


def _dots(errors: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, int, str, str]]:
    for error in errors:
        offset, lanes = error.get("offset_bytes"), error.get("bit_lanes")
        if isinstance(offset, int) and isinstance(lanes, list | tuple):
            pattern = str(error.get("pattern") or "")
            for bit in lanes:
                if isinstance(bit, int):
                    told = f"offset {offset:,} bytes, bit {bit}"
                    yield float(offset), bit, pattern, f"{told}, pattern {pattern}" if pattern else told


def _figure(name: str, points: Sequence[Dot], low: float, high: float) -> tuple[str, Markup, float]:
    """Caption, plot and end of the axis; from `low` on where that is not 0."""
    high = max(high, *(dot.x for dot in points))
    span = max(high - low, 1.0)
    scale, unit = next((step, unit) for step, unit in _UNITS if span >= step * (1 if step == 1 else 2) or step == 1)
    if low:  # a little room on both sides
        span *= 1.06
        points = [Dot(dot.x - low + 0.02 * span, dot.y, dot.label, dot.group) for dot in points]
        caption = f"The same from offset {low:,.0f} bytes ({size(low)}) on"
    else:
        caption = "Bit of the 64-bit word, over the offset in the tested memory"
    step = max(nice_step(span / scale, 5), 1.0 if scale == 1 else 0.0) * scale
    frame = Frame(*_MAP, (0.0, span), (0.0, 64.0), step, float(scale), unit, 8.0)
    return caption, plot(frame, f"{name}: bits of wrong words over {size(span)} of memory", (), dots=points), span
