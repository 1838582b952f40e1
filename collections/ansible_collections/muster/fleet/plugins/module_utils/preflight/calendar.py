"""The inventory's calendar of maintenance windows: groups become their hosts, and names that are none are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from gpu_burnin.admission.calendar import ALL, CalendarError, Window, read_calendar, windows
from gpu_burnin.api.maintenance import active
from gpu_burnin.system.clock import rfc3339

VARIABLE = "fleet_maintenance"


def calendar(document: object, groups: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
    """The windows with the names of hosts, as the admitter's configuration has them. Raises CalendarError."""
    return [
        {
            "nodes": ALL if window.nodes is None else sorted(_hosts(window.nodes, groups, f"{VARIABLE}[{number}]")),
            "not_before": rfc3339(window.not_before),
            "not_after": rfc3339(window.not_after),
            "kind": window.kind,
            "message": window.message,
        }
        for number, window in enumerate(read_calendar(document, VARIABLE))
    ]


def near(document: object, groups: Mapping[str, Collection[str]], host: str, before_s: float, now: datetime) -> str:
    """Why nothing starts on the host now, "" when no window of its calendar is near or open. Raises CalendarError."""
    resolved: tuple[Window, ...] = read_calendar(calendar(document, groups), VARIABLE)
    found = (active(one, now, before_s) for one in windows(resolved, host, now))
    return next(filter(None, found), "")


def _hosts(names: Collection[str], groups: Mapping[str, Collection[str]], where: str) -> set[str]:
    found: set[str] = set()
    for name in sorted(names):
        if name in groups:
            found.update(groups[name])
        elif name in groups[ALL]:
            found.add(name)
        else:
            raise CalendarError(f"{where}: {name} is neither a host nor a group of the inventory; correct its name")
    return found
