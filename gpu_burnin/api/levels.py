"""The levels of a burn-in: their names, the shallowest first, and how long a run of each takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """Seconds of a whole run, from its start to its report: what the levels promise (docs/reference/levels.md).

    The CPU backend covers no GPU whatever the time: one round of everything, then a little more where asked for
    (`cpu_total_s`).
    """

    total_s: float
    cpu_total_s: float


# `--for` replaces the time of extended. What a check gets of it is in its own SPEC; the least times are those it is
# estimated to need on 8 H200s (docs/reference/levels.md has the sum).
LEVELS: Mapping[str, Level] = {
    "quick": Level(60.0, 1.0),
    "standard": Level(300.0, 30.0),
    "extended": Level(7200.0, 120.0),
}
LEVEL_NAMES = tuple(LEVELS)
