"""Rows of the schedule, as a fleet in use has them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpu_burnin.admission.schedule.pick import Row
from gpu_burnin.api.record import State, Use
from gpu_burnin.system.clock import rfc3339

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
DAY_S = 86400.0


def ago(seconds: float) -> str:
    """RFC 3339 of so long before NOW."""
    return rfc3339(NOW - timedelta(seconds=seconds))


def a_row(name: str = "gpu-1", age_s: float = 2 * DAY_S, level: str = "quick", **changes: object) -> Row:
    """A ready, idle node with one proof of that age."""
    row = Row(name, State.READY, True, {level: ago(age_s)}, Use(ago(90 * DAY_S), ago(60), busy=False))
    return replace(row, **changes)  # type: ignore[arg-type]
