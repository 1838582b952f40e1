"""When a maintenance window, from whatever source, keeps work away. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.system.clock import parse_rfc3339

NONE, SCHEDULED, STARTED, UNKNOWN = "none", "scheduled", "started", "unknown"
STATES = (NONE, SCHEDULED, STARTED, UNKNOWN)


def active(maintenance: Maintenance | None, now: datetime, before_s: float) -> str:
    """Why the window keeps new work and tests away now, "" when it does not.

    It does from `before_s` before its start on, until its end; one that has started, or whose end nobody knows, until
    its source no longer tells of it. A state of `unknown` is neither a window nor none: ask `unknown`.
    """
    if maintenance is None:
        return ""
    start, end = _time(maintenance.not_before), _time(maintenance.not_after)
    if maintenance.state == SCHEDULED:
        # A start that cannot be read, or that the source does not tell, may be now.
        due = start is None or (start - now).total_seconds() <= before_s
        over = end is not None and now >= end
        return _words(maintenance, "is announced") if due and not over else ""
    return _words(maintenance, "is under way") if maintenance.state == STARTED else ""


def unknown(maintenance: Maintenance | None) -> str:
    """Why nobody knows whether a window is near, "" when it is known or when there is no source to ask."""
    if maintenance is None or maintenance.state in (NONE, SCHEDULED, STARTED):
        return ""
    return maintenance.message or f"{maintenance.provider}: it is not known whether maintenance is near"


def changes_at(maintenance: Maintenance | None, now: datetime, before_s: float) -> datetime | None:
    """When time alone changes what `active` says; None when it does not."""
    if maintenance is None or maintenance.state != SCHEDULED:
        return None
    start, end = _time(maintenance.not_before), _time(maintenance.not_after)
    moments = (_opens(start, before_s) if start else None, end)
    return min((moment for moment in moments if moment and moment > now), default=None)


def first(windows: Iterable[Maintenance]) -> Maintenance | None:
    """The one that counts of several: one that has started, then the soonest, then what is unknown, then none."""
    order = (STARTED, SCHEDULED, UNKNOWN, NONE)

    def rank(one: Maintenance) -> tuple[int, str]:
        return (order.index(one.state) if one.state in order else order.index(UNKNOWN), one.not_before)

    return min(windows, key=rank, default=None)


def _opens(start: datetime, before_s: float) -> datetime:
    try:
        return start - timedelta(seconds=before_s)
    except OverflowError:  # before the first day that there is
        return datetime.min.replace(tzinfo=UTC)


def _time(text: str) -> datetime | None:
    try:
        return parse_rfc3339(text)
    except ValueError:
        return None


def _words(maintenance: Maintenance, what: str) -> str:
    kind = f" ({maintenance.kind})" if maintenance.kind else ""
    since = f" from {maintenance.not_before}" if maintenance.not_before else ""
    until = f" to {maintenance.not_after}" if maintenance.not_after else ""
    detail = f": {maintenance.message}" if maintenance.message else ""
    return f"{maintenance.provider}: maintenance{kind} {what}{since}{until}{detail}"
