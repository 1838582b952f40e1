"""Times as the record has them. Nothing in here raises: a node writes some of them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from gpu_burnin.system.clock import parse_rfc3339, rfc3339_s

_MOST_S = 1e11  # About 3,000 years: what is further away than that is never.
FAR = datetime.max.replace(tzinfo=UTC)
LONG_AGO = datetime.min.replace(tzinfo=UTC)


def when(text: str) -> datetime | None:
    """An RFC 3339 UTC time, or None for "" and for what is none."""
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None


def later(time: datetime, seconds: float) -> datetime:
    """`seconds` after `time` (before it, where negative), at the ends of the calendar where that is beyond them."""
    if math.isnan(seconds):
        return time
    try:
        return time + timedelta(seconds=min(max(seconds, -_MOST_S), _MOST_S))
    except OverflowError:
        return FAR if seconds > 0 else LONG_AGO


def stamp(time: datetime) -> str:
    """A time as the record has it, in whole seconds: "" for never."""
    return "" if time >= FAR else rfc3339_s(time)


def earliest(*times: datetime | None) -> datetime | None:
    """The first of them, or None where there is none."""
    return min((time for time in times if time is not None and time < FAR), default=None)
