"""The state of a fleet as one page that loads nothing."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_burnin import __version__
from gpu_burnin.api.record import State
from gpu_burnin.fleet.cluster import status_figures, status_map
from gpu_burnin.fleet.cluster.admissions import SCHEMA, Snapshot
from gpu_burnin.fleet.cluster.rows import BRAKED, NEEDS_PERSON, REJECTED, names_of
from gpu_burnin.fleet.cluster.status_text import COMING, UNHEARD, notes, summary
from gpu_burnin.fleet.monitoring.numbers import MOST_AGE_S, Alert, Numbers
from gpu_burnin.report import html
from gpu_burnin.system.host_names import natural
from gpu_burnin.system.prose import short_uuids

_MOST_NAMES = 12
# A section of a page of this repository. What an alert of others names may be anything.
_RUNBOOK = re.compile(r"docs/[a-z0-9/-]+\.md#[a-z0-9-]+")
# Alerts of one name that are shown each; --json has the others.
_MOST_ALIKE = 10


def render(fleet: Snapshot, numbers: Numbers, docs: str = "") -> str:
    """The page. `docs` is the URL or folder of a clone of the repository, to which its runbooks are links."""
    return html.fill(
        "status.html.j2",
        fleet=fleet,
        worst=worst(fleet, numbers),
        numbers=numbers,
        alerts=_grouped(numbers),
        alert_badge=alert_badge,
        runbook=lambda alert: runbook(alert, docs),
        places=status_map.places(fleet.rows, numbers.hosts),
        legend=status_map.legend(fleet.rows),
        anchor=status_map.anchor,
        trends=[(trend.period, [*status_figures.plots(trend)]) for trend in numbers.trends],
        etcd=status_figures.etcd(numbers),
        api_servers=status_figures.api_servers(numbers),
        proofs=status_figures.proofs(fleet),
        overdue=status_figures.overdue(numbers),
        places_down=status_figures.places_down(numbers),
        hosts_down=sorted((name for name, host in (numbers.hosts or {}).items() if not host.up), key=natural),
        fold=lambda names: names_of(tuple(names), _MOST_NAMES),
        fresh_s=MOST_AGE_S,
        summary=summary(fleet),
        notes=notes(fleet),
        reasons=[
            (state, code, len(nodes), names_of(nodes, _MOST_NAMES)) for (state, code), nodes in fleet.reasons.items()
        ],
        person=[row for row in fleet.waiting if row.needs_person],
        coming=[row for row in fleet.waiting if not row.needs_person and row.state != State.NEW],
        coming_title=COMING,
        unheard=[row for row in fleet.waiting if row.state == State.NEW],
        unheard_title=UNHEARD.replace("`", ""),
        ready=[row for row in fleet.rows if row.state == State.READY],
        badge_of=badge_of,
        short_uuids=short_uuids,
        schema=SCHEMA,
        version=__version__,
    )


def worst(fleet: Snapshot, numbers: Numbers) -> str:
    """The verdict of the whole: an alert, nobody who leads, and numbers that were asked for and are missing count."""
    found = [badge_of(state) for state in fleet.states] or [badge_of(State.NEW)]
    found += [alert_badge(alert) for alert in numbers.active]
    if not fleet.leader.alive or fleet.brake or fleet.pause is not None or (numbers.source and numbers.problems):
        found.append("WARNING")
    return min(found, key=("FAIL", "WARNING", "INCONCLUSIVE", "PASS").index)


def alert_badge(alert: Alert) -> str:
    """The verdict whose colour and sign an alert has."""
    return "FAIL" if alert.severity in ("page", "critical") else "WARNING"


def runbook(alert: Alert, docs: str) -> str:
    """Where its runbook is to be read; "" where that is not known, or is no page of ours."""
    if not docs or not _RUNBOOK.fullmatch(alert.runbook):
        return ""
    base = docs if docs.startswith(("https://", "http://")) else Path(docs).absolute().as_uri()
    return f"{base.rstrip('/')}/{alert.runbook}"


def _grouped(numbers: Numbers) -> list[tuple[list[Alert], int]]:
    """The alerts of each name that somebody is told of, and how many more there are."""
    by_name: dict[str, list[Alert]] = {}
    for alert in numbers.active:
        by_name.setdefault(alert.name, []).append(alert)
    return [(of[:_MOST_ALIKE], len(of[_MOST_ALIKE:])) for of in by_name.values()]


def badge_of(state: str) -> str:
    """The verdict whose colour and sign a state has."""
    if state == State.READY:
        return "PASS"
    if state in (State.QUARANTINED, BRAKED, REJECTED):
        return "FAIL"
    return "WARNING" if state in NEEDS_PERSON or state == State.REPAIRING else "INCONCLUSIVE"
