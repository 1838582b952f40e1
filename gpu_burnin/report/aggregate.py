"""Many lines over time as one: the median of all, from the lowest to the highest. Pure."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_burnin.report.series import Values


@dataclass(frozen=True)
class Strand:
    """Values over time; `low` and `high` are the ends of what was joined into each of them."""

    t_s: Sequence[float]
    values: Values
    low: Values
    high: Values


def pooled(strands: Sequence[Strand], span: tuple[float, float], points: int) -> Strand:
    """One strand of at most `points` values over `span`: medians, the lowest low and the highest high of each stretch.

    A stretch without a value is left out.
    """
    width = (span[1] - span[0]) / points or 1.0
    found: dict[int, tuple[list[float], list[float], list[float]]] = {}
    for strand in strands:
        for moment, value, low, high in zip(strand.t_s, strand.values, strand.low, strand.high, strict=True):
            if value is not None:
                bins = found.setdefault(min(int((moment - span[0]) / width), points - 1), ([], [], []))
                bins[0].append(value)
                bins[1].append(value if low is None else low)
                bins[2].append(value if high is None else high)
    places = sorted(found)
    return Strand(
        [span[0] + (place + 0.5) * width for place in places],
        [statistics.median(found[place][0]) for place in places],
        [min(found[place][1]) for place in places],
        [max(found[place][2]) for place in places],
    )


def stretches(strands: Sequence[Strand], most: int) -> int:
    """How many values a span holds without gaps for strands that are sampled alike, at slightly different times."""
    return max(1, min(most, max((len(strand.t_s) for strand in strands), default=1)))


def furthest(strands: Sequence[Strand], span: tuple[float, float], points: int, least: float) -> int | None:
    """Which strand is furthest from the median of all on average, None where none is `least` away from it."""
    middle = pooled(strands, span, points)
    means = [statistics.fmean(_away(strand, middle) or [0.0]) for strand in strands]
    most = max(means, default=0.0)
    return means.index(most) if most >= least and most > 0 else None


def _away(strand: Strand, middle: Strand) -> list[float]:
    """How far each value is from that of `middle` which is nearest in time."""
    known = [(at, value) for at, value in zip(middle.t_s, middle.values, strict=True) if value is not None]
    moments = [at for at, _ in known]
    away = []
    for moment, value in zip(strand.t_s, strand.values, strict=True):
        if value is not None:
            place = bisect.bisect_left(moments, moment)
            near = min(known[max(0, place - 1) : place + 1], key=lambda one: abs(one[0] - moment))
            away.append(abs(value - near[1]))
    return away
