"""All nodes of a fleet as `muster status` counts them: a few fields of each, read from the raw JSON.

A whole record of each (record.parse) would take 7,500 nodes longer than the API server needs to send them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import NODES, ONE_BY_ONE, Gone, KubeApi, admissions_path
from gpu_burnin.admission.service.pause import Pause
from gpu_burnin.api.attached import (
    AUTHORITY_ENDS,
    GATE_EVENT_NAME,
    WEBHOOK_AWAY,
    Attached,
    Mode,
    attached_path,
    parse_attached,
)
from gpu_burnin.api.names import LEASE, PAUSE, SYSTEM_NAMESPACE, Names
from gpu_burnin.api.record import State
from gpu_burnin.fleet.cluster.never_came import newest_of
from gpu_burnin.fleet.cluster.rows import (
    ABSENT,
    OFF,
    ORDER,
    UNLISTED,
    Row,
    Seen,
    names_of,
    placed,
    placement_of,
    rejected,
    row,
    unlisted,
)
from gpu_burnin.fleet.jobs.read import read_dedicated_wanted
from gpu_burnin.fleet.jobs.teams import shortage_of
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.host_names import natural

SCHEMA = "muster-status/v1"
_LIST = "list the NodeAdmissions"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{LEASE}"
PAUSE_PATH = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{PAUSE}"
# The admitter's alarm that a brake keeps it from taking nodes out; it is repeated each minute while that is so.
_ALARMS, _ALARM, _ALARM_S = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/events", "MusterBrake", 180.0
# A lease that nobody renewed for so long has no holder (the lease's own duration when it says one).
_LEASE_S = 15.0
# One request of a watch: what has changed by its end is shown at once.
_ROUND_S = 2
_NODES_EVERY_S = 30.0
_MOST_NAMES = 4


@dataclass(frozen=True)
class Leader:
    """Who leads the admitters. `renewed_s` is how long ago the lease was renewed; `alive` is within its duration."""

    name: str = ""
    renewed_s: float | None = None
    alive: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The fleet at one time. `pause` is the switch's who, why and until, None when it is off.

    `brake` says which nodes should be out and are not, "" where there are none. `short` says what teams lack of nodes
    of their own. `attached` is how Muster stands to a cluster of others, None to its own; `gate` what its probe said
    is wrong with the gate, `authority` that the webhook's ends, `joins` that it keeps
    nodes out.
    """

    rows: tuple[Row, ...]
    leader: Leader
    pause: Mapping[str, str] | None
    at: datetime
    server: str = ""
    brake: str = ""
    short: tuple[str, ...] = ()
    attached: Attached | None = None
    gate: str = ""
    authority: str = ""
    joins: str = ""

    @property
    def mode(self) -> Mode:
        """How Muster stands to its cluster."""
        return Mode.BUILT if self.attached is None else self.attached.mode

    @property
    def states(self) -> dict[str, int]:
        """How many nodes are in each state, the worst first."""
        count = Counter(row.state for row in self.rows)
        return {state: count[state] for state in ORDER if count[state]}

    @property
    def reasons(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The nodes of each state and code but for those ready or switched off; the worst first, then those of most."""
        found: dict[tuple[str, str], list[str]] = {}
        for one in self.rows:
            if one.state not in (State.READY, OFF):
                found.setdefault((one.state, one.code), []).append(one.name)
        order = sorted(found, key=lambda key: (ORDER.index(key[0]), -len(found[key]), key[1]))
        return {key: tuple(found[key]) for key in order}

    @property
    def waiting(self) -> tuple[Row, ...]:
        """The nodes neither ready nor off, those first that need a person, the longest in their state first."""
        found = [row for row in self.rows if row.state not in (State.READY, OFF)]
        return tuple(sorted(found, key=lambda row: (ORDER.index(row.state), row.since, natural(row.name))))

    @property
    def oldest_proof(self) -> Row | None:
        """The ready node whose proof is the oldest."""
        return min((row for row in self.rows if row.state == State.READY), key=lambda row: row.proven, default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        oldest = self.oldest_proof
        return {
            "schema": SCHEMA,
            "at": self.at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "server": self.server,
            "nodes": len(self.rows),
            "states": {state: self.states.get(state, 0) for state in ORDER},
            "reasons": [
                {"state": state, "code": code, "nodes": [*nodes]} for (state, code), nodes in self.reasons.items()
            ],
            "waiting": [
                {
                    "name": row.name,
                    "state": row.state,
                    "code": row.code,
                    "since": row.since,
                    "message": row.message,
                    "next": row.next,
                    "proven": row.proven,
                    "asks": [*row.asks],
                    "needs_person": row.needs_person,
                }
                for row in self.waiting
            ],
            "oldest_proof": {"name": oldest.name, "proven": oldest.proven} if oldest else None,
            "leader": {"name": self.leader.name, "renewed_s": self.leader.renewed_s, "alive": self.leader.alive},
            "paused": dict(self.pause) if self.pause is not None else None,
            "brake": self.brake,
            "short": [*self.short],
            "mode": str(self.mode),
            "gate": self.gate,
            "authority": self.authority,
            "joins": self.joins,
        }


def leader_of(lease: Mapping[str, Any] | None, now: datetime) -> Leader:
    """What a Lease says of who leads."""
    spec = (lease or {}).get("spec") or {}
    name = str(spec.get("holderIdentity") or "")
    try:
        renewed_s = (now - parse_rfc3339(str(spec.get("renewTime")))).total_seconds()
    except ValueError:
        return Leader(name)
    return Leader(name, renewed_s, bool(name) and renewed_s <= float(spec.get("leaseDurationSeconds") or _LEASE_S))


def read(api: KubeApi, names: Names, now: datetime, reports: Path | None = None) -> Snapshot:
    """The fleet as the API server has it; `reports` are the controller's, of nodes that never came. Raises ApiError."""
    rows = (row(item, now) for item in api.items(admissions_path(names), _LIST))
    return _snapshot(api, rows, _placements(api, names), now, reports)


def followed(
    api: KubeApi,
    names: Names,
    now: Callable[[], datetime],
    round_s: int = _ROUND_S,
    reports: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Snapshot]:
    """The fleet now, and again whenever something changes: one list, then a watch. Raises ApiError.

    The Nodes, which are many times larger, are read again once in a while.
    """
    path, shown = admissions_path(names), None
    nodes, read_s = _placements(api, names), clock()
    while True:
        rows: dict[str, Row] = {}
        version = ""
        for page, listed in api.pages(path, _LIST):
            rows |= {one.name: one for one in (row(item, now()) for item in page)}
            version = listed
        try:
            while True:
                if clock() - read_s > _NODES_EVERY_S:
                    nodes, read_s = _placements(api, names), clock()
                fleet = _snapshot(api, rows.values(), nodes, now(), reports)
                if _news(fleet) != shown:
                    shown = _news(fleet)
                    yield fleet
                changed = set()
                for kind, item in api.watch(path, version, round_s, "watch the NodeAdmissions"):
                    version = str(item["metadata"]["resourceVersion"])
                    one = row(item, now())
                    if kind == "DELETED":
                        rows.pop(one.name, None)
                    elif kind != "BOOKMARK":
                        rows[one.name] = one
                        changed.add(one.name)
                if len(changed) <= ONE_BY_ONE:
                    nodes |= {
                        name: placement_of(node, names) for name in changed if (node := api.node(name)) is not None
                    }
                else:
                    read_s = -math.inf
        except Gone:
            continue  # too much has changed since: list again


def standing_pause(api: KubeApi, now: datetime) -> Mapping[str, str] | None:
    """Who paused the fleet, why and until when, by the admitter's own rule; None when it is not paused."""
    item = api.find(PAUSE_PATH, "read the pause switch")
    if item is None:
        return None
    switch = Pause(lambda: now)
    switch.put(item)
    return {str(key): str(value) for key, value in (item.get("data") or {}).items()} if switch.why() else None


def _placements(api: KubeApi, names: Names) -> dict[str, Seen]:
    """Of each Node what tells whether pods are placed on it: little of much, a page at a time."""
    return {str(node["metadata"]["name"]): placement_of(node, names) for node in api.items(NODES, "list the nodes")}


def _brake(api: KubeApi, rows: Sequence[Row], nodes: Mapping[str, Seen], now: datetime) -> str:
    """What a brake keeps at work now: of nodes in the ledger it says so itself, of others the alarm does."""
    braked = [one for one in rows if one.brake]
    if braked:
        whom = names_of([one.name for one in braked], _MOST_NAMES)
        verb = "are" if len(braked) > 1 else "is"
        return (
            f"{whom} should be kept from work and {verb} not: {braked[0].brake}. A fault of many nodes at once is "
            "often one of the software; a person decides: `muster node hold` or `muster node quarantine`"
        )
    alarms = api.items(_ALARMS, "read the admitter's alarms", fieldSelector=f"reason={_ALARM}")
    newest = max(alarms, key=lambda event: str(event.get("lastTimestamp")), default=None)
    if newest is None:
        return ""
    message = str(newest.get("message") or "")
    about = nodes.get(message.partition(" ")[0])
    known = {one.name for one in rows if one.state != UNLISTED}
    if message.partition(" ")[0] in known or about is None or about.closed:
        return ""
    try:
        fresh = (now - parse_rfc3339(str(newest.get("lastTimestamp")))).total_seconds() < _ALARM_S
    except ValueError:
        return ""
    return message if fresh else ""


def _never_came(found: Row, reports: Path | None) -> Row:
    """A node that kubelet has not registered, with what the controller knows of its burn-in."""
    if reports is None or found.state not in (State.NEW, ABSENT) or found.proven:
        return found
    told = newest_of(reports, found.name)
    return found if told is None else rejected(found, *told)


def _news(fleet: Snapshot) -> object:
    """What of it is news: not that time goes by."""
    return (
        fleet.rows,
        fleet.leader.name,
        fleet.leader.alive,
        fleet.pause,
        fleet.brake,
        fleet.short,
        fleet.gate,
        fleet.authority,
        fleet.joins,
    )


def _snapshot(
    api: KubeApi, rows: Iterable[Row], nodes: Mapping[str, Seen], now: datetime, reports: Path | None
) -> Snapshot:
    listed = {one.name: _never_came(placed(one, nodes.get(one.name), now), reports) for one in rows}
    others = (unlisted(name) for name, seen in nodes.items() if seen.ours and name not in listed)
    ordered = tuple(sorted((*listed.values(), *others), key=lambda one: natural(one.name)))
    leader = leader_of(api.find(LEASE_PATH, "read the admitter's lease"), now)
    brake = _brake(api, ordered, nodes, now)
    config = api.find(attached_path(), "read how Muster is attached")
    attached = None if config is None else parse_attached(config)
    reason, said = ("", "") if attached is None else _of_gate(api, now)
    authority, joins = (said if reason == of else "" for of in (AUTHORITY_ENDS, WEBHOOK_AWAY))
    gate = "" if authority or joins else said
    pause = standing_pause(api, now)
    short = _short(api, ordered)
    return Snapshot(ordered, leader, pause, now, api.server, brake, short, attached, gate, authority, joins)


def _of_gate(api: KubeApi, now: datetime) -> tuple[str, str]:
    """What the probe of an attached cluster said of the gate within the last minutes: a reason, and why."""
    event = api.find(f"{_ALARMS}/{GATE_EVENT_NAME}", "read what the gate's probe said") or {}
    try:
        age_s = (now - parse_rfc3339(str(event.get("lastTimestamp")))).total_seconds()
    except ValueError:
        return "", ""
    return (str(event.get("reason") or ""), str(event.get("message") or "")) if age_s < _ALARM_S else ("", "")


def _short(api: KubeApi, rows: Sequence[Row]) -> tuple[str, ...]:
    """What teams lack of nodes of their own: Kueue's quotas say what they should have, the ledger what they have."""
    given: Counter[tuple[str, str]] = Counter()
    for one in rows:
        given[one.team, one.model] += one.gpus
    wanted = sorted(read_dedicated_wanted(api).items())
    found = (shortage_of(team, model, given[team, model], gpus) for (team, model), gpus in wanted)
    return tuple(text for text in found if text)
