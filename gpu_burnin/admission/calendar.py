"""Maintenance windows that the inventory names: read strictly, and given for each node in the form of all windows.

What a window means for a node, see gpu_burnin/api/maintenance.py (`active`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import SCHEDULED, STARTED
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.clock import parse_rfc3339, rfc3339_s

PROVIDER = "calendar"
ALL = "all"
DEFAULT_KIND = "maintenance"
_KEYS = ("nodes", "not_before", "not_after", "kind", "message")
_LONGEST = {"kind": 64, "message": 300}


class CalendarError(GpuBurninError):
    """A calendar that cannot be read; the message names the entry and the key."""


@dataclass(frozen=True)
class Window:
    """One window: `nodes` are the names of its nodes, None for all of them."""

    nodes: frozenset[str] | None
    not_before: datetime
    not_after: datetime
    kind: str = DEFAULT_KIND
    message: str = ""


def read_calendar(document: object, key: str = "calendar") -> tuple[Window, ...]:
    """The windows of a parsed document, a list of {nodes, not_before, not_after, kind, message}.

    Raises CalendarError that names the entry below `key`, what is wrong with it and what to write.
    """
    if document is None:
        return ()
    if not isinstance(document, Sequence) or isinstance(document, str):
        raise CalendarError(f"{key} must be a list of windows, each with {', '.join(_KEYS[:3])}")
    return tuple(_window(entry, f"{key}[{number}]") for number, entry in enumerate(document))


def windows(calendar: Sequence[Window], node: str, now: datetime) -> tuple[Maintenance, ...]:
    """The windows of one node that are not over, the soonest first, as they stand at this moment."""
    own = (one for one in calendar if (one.nodes is None or node in one.nodes) and now < one.not_after)
    return tuple(
        Maintenance(
            provider=PROVIDER,
            state=SCHEDULED if now < one.not_before else STARTED,
            not_before=rfc3339_s(one.not_before),
            not_after=rfc3339_s(one.not_after),
            kind=one.kind,
            message=one.message,
        )
        for one in sorted(own, key=lambda one: (one.not_before, one.not_after, one.kind, one.message))
    )


def changes_at(calendar: Sequence[Window], node: str, now: datetime) -> datetime | None:
    """When time alone changes what `windows` gives for the node; None when it does not."""
    moments = (
        moment
        for one in calendar
        if one.nodes is None or node in one.nodes
        for moment in (one.not_before, one.not_after)
    )
    return min((moment for moment in moments if moment > now), default=None)


def _window(entry: object, where: str) -> Window:
    if not isinstance(entry, Mapping):
        raise CalendarError(f"{where} must be a mapping with {', '.join(_KEYS[:3])}")
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(_KEYS)}"
            raise CalendarError(f"{where}: unknown key {key} ({hint}); correct its name or remove it")
    found = Window(
        nodes=_nodes(entry.get("nodes"), where),
        not_before=_moment(entry, "not_before", where),
        not_after=_moment(entry, "not_after", where),
        kind=_words(entry, "kind", where) or DEFAULT_KIND,
        message=_words(entry, "message", where),
    )
    if found.not_after <= found.not_before:
        raise CalendarError(f"{where}: not_after must be later than not_before ({rfc3339_s(found.not_before)})")
    return found


def _nodes(value: object, where: str) -> frozenset[str] | None:
    if value == ALL:
        return None
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        names = [name for name in value if isinstance(name, str) and name]
        if len(names) == len(value):
            # A list from an inventory's groups may hold the word too.
            return None if ALL in names else frozenset(names)
    raise CalendarError(f"{where}: nodes must be a list of names of nodes, or {ALL}")


def _moment(entry: Mapping[object, object], key: str, where: str) -> datetime:
    value = entry.get(key)
    try:
        # YAML makes a time of its own of one without quotes.
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(UTC)
        if isinstance(value, str):
            return parse_rfc3339(value)
    except (ValueError, OverflowError):
        pass
    given = f"is {str(value)[:40]!r}; it " if value is not None else ""
    raise CalendarError(
        f"{where}: {key} {given}must be a time with its offset, such as 2026-12-01T22:00:00Z or "
        "2026-12-01T23:00:00+01:00"
    )


def _words(entry: Mapping[object, object], key: str, where: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if isinstance(value, str) and len(value) <= _LONGEST[key] and value.isprintable():
        return value
    raise CalendarError(f"{where}: {key} must be a text on one line of at most {_LONGEST[key]} characters")
