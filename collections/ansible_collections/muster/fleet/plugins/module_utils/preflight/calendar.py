"""The inventory's calendar of maintenance windows: groups become their hosts, and names that are none are refused."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from gpu_burnin.admission.calendar import ALL, CalendarError, read_calendar, windows
from gpu_burnin.api.maintenance import active
from gpu_burnin.system.clock import rfc3339

VARIABLE = "fleet_maintenance"


def calendar(document: object, groups: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
    """The windows with the names of hosts, as the admitter's configuration has them. Raises CalendarError."""
    hosts = frozenset(groups.get(ALL, ()))
    return [
        {
            "nodes": ALL
            if window.nodes is None
            else sorted(_hosts(window.nodes, groups, hosts, f"{VARIABLE}[{number}]")),
            "not_before": rfc3339(window.not_before),
            "not_after": rfc3339(window.not_after),
            "kind": window.kind,
            "message": window.message,
        }
        for number, window in enumerate(read_calendar(document, VARIABLE))
    ]


def near(
    document: object,
    host: str,
    own_groups: Collection[str],
    groups: Container[str],
    hosts: Container[str],
    before_s: float,
    now: datetime,
) -> str:
    """Why nothing starts on the host now, "" when no window of its calendar is near or open. Raises CalendarError.

    Each host asks this for itself, so it goes over no list of hosts: `own_groups` are those that the host is in, and
    `groups` and `hosts` say whether there is one of a name.
    """
    mine = frozenset({ALL, host, *own_groups})
    own = []
    for number, window in enumerate(read_calendar(document, VARIABLE)):
        names = window.nodes or frozenset({ALL})
        for name in sorted(names - mine):
            _refuse_unknown(name, groups, hosts, f"{VARIABLE}[{number}]")
        if names & mine:
            own.append(replace(window, nodes=None))
    found = (active(one, now, before_s) for one in windows(own, host, now))
    return next(filter(None, found), "")


def _hosts(
    names: Collection[str], groups: Mapping[str, Collection[str]], hosts: Container[str], where: str
) -> set[str]:
    found: set[str] = set()
    for name in sorted(names):
        _refuse_unknown(name, groups, hosts, where)
        found.update(groups.get(name, (name,)))
    return found


def _refuse_unknown(name: str, groups: Container[str], hosts: Container[str], where: str) -> None:
    if name not in groups and name not in hosts:
        raise CalendarError(f"{where}: {name} is neither a host nor a group of the inventory; correct its name")
