"""The state of a fleet as one page that loads nothing."""

from __future__ import annotations

from gpu_burnin import __version__
from gpu_burnin.admission.record import State
from gpu_burnin.fleet.cluster.admissions import NEEDS_PERSON, SCHEMA, Snapshot
from gpu_burnin.fleet.cluster.status_text import names_of, notes, summary
from gpu_burnin.fleet.cluster.times import told
from gpu_burnin.report import html
from gpu_burnin.system.prose import short_uuids

_MOST_NAMES = 12


def render(fleet: Snapshot) -> str:
    """The page."""
    return html.fill(
        "status.html.j2",
        fleet=fleet,
        worst=look(next(iter(fleet.states), State.NEW)),
        summary=summary(fleet),
        notes=notes(fleet),
        reasons=[
            (state, code, len(nodes), names_of(nodes, _MOST_NAMES)) for (state, code), nodes in fleet.reasons.items()
        ],
        person=[row for row in fleet.waiting if row.needs_person],
        coming=[row for row in fleet.waiting if not row.needs_person],
        ready=[row for row in fleet.rows if row.state == State.READY],
        look=look,
        told=told,
        short_uuids=short_uuids,
        schema=SCHEMA,
        version=__version__,
    )


def look(state: str) -> str:
    """The verdict whose colour and sign a state has."""
    if state == State.READY:
        return "PASS"
    if state == State.QUARANTINED:
        return "FAIL"
    return "WARNING" if state in NEEDS_PERSON or state == State.REPAIRING else "INCONCLUSIVE"
