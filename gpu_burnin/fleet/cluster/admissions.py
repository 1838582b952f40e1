"""All NodeAdmissions of a fleet as `muster status` needs them: a few fields of each, read from the raw JSON.

A whole record of each (record.parse) would take 7,500 nodes longer than the API server needs to send them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpu_burnin.admission.client import Gone, KubeApi, admissions_path
from gpu_burnin.admission.record import State
from gpu_burnin.admission.service.pause import Pause
from gpu_burnin.settings.names import LEASE, PAUSE, SYSTEM_NAMESPACE, Names
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.host_names import natural

SCHEMA = "muster-status/v1"
_LIST = "list the NodeAdmissions"
UNKNOWN = "unknown"
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{LEASE}"
PAUSE_PATH = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{PAUSE}"
# Those that a person has to do something about come first, then those that come back by themselves.
ORDER: tuple[str, ...] = (
    State.QUARANTINED, State.SUSPECT, State.REPAIRING, State.HELD, UNKNOWN, State.NEW, State.EXPIRING, State.TESTING,
    State.READY,
)  # fmt: skip
NEEDS_PERSON = frozenset({State.QUARANTINED, State.SUSPECT, State.HELD, UNKNOWN})
# The admitter's alarm that a brake keeps it from taking nodes out; it is repeated each minute while that is so.
_ALARMS, _ALARM, _ALARM_S = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/events", "MusterBrake", 180.0
# A lease that nobody renewed for so long has no holder (the lease's own duration when it says one).
_LEASE_S = 15.0
# One request of a watch: what has changed by its end is shown at once.
_ROUND_S = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One node. `proven` is when its newest accepted or passed burn-in ended, "" for never; `next` what comes next."""

    name: str
    state: str
    code: str
    since: str
    message: str
    next: str
    proven: str
    asks: tuple[str, ...] = ()

    @property
    def needs_person(self) -> bool:
        """Whether it stays as it is until a person does something."""
        return self.state in NEEDS_PERSON


@dataclass(frozen=True)
class Leader:
    """Who leads the admitters. `renewed_s` is how long ago the lease was renewed; `alive` is within its duration."""

    name: str = ""
    renewed_s: float | None = None
    alive: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The fleet at one time. `pause` is the switch's who, why and until, None when it is off.

    `brake` is the admitter's alarm that nodes which should be out are not, "" where there is none.
    """

    rows: tuple[Row, ...]
    leader: Leader
    pause: Mapping[str, str] | None
    at: datetime
    server: str = ""
    brake: str = ""

    @property
    def states(self) -> dict[str, int]:
        """How many nodes are in each state, the worst first."""
        count = Counter(row.state for row in self.rows)
        return {state: count[state] for state in ORDER if count[state]}

    @property
    def reasons(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The nodes of each state and code, those that are ready left out; the worst first, then those of most."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.state != State.READY:
                found.setdefault((row.state, row.code), []).append(row.name)
        order = sorted(found, key=lambda key: (ORDER.index(key[0]), -len(found[key]), key[1]))
        return {key: tuple(found[key]) for key in order}

    @property
    def waiting(self) -> tuple[Row, ...]:
        """The nodes that are not ready, those first that need a person, the longest in their state first."""
        found = [row for row in self.rows if row.state != State.READY]
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
        }


def row(item: Mapping[str, Any]) -> Row:
    """A row of a NodeAdmission as the API server sends it. Its state is unknown where this version has no such one."""
    name = str((item.get("metadata") or {}).get("name", ""))
    spec, status = item.get("spec") or {}, item.get("status") or {}
    state = str(status.get("state") or State.NEW)
    coming = status.get("next") or {}
    accepted, proofs = status.get("accepted") or {}, status.get("proofs") or {}
    proven = max([str(accepted.get("finishedAt") or ""), *(str(time) for time in proofs.values())])
    return Row(
        name=name,
        state=state if state in ORDER else UNKNOWN,
        code=str(status.get("code") or ""),
        since=str(status.get("since") or ""),
        message=str(status.get("message") or "") or ("" if state in ORDER else f"state {state} is of a newer version"),
        next=": ".join(str(coming[key]) for key in ("what", "why") if coming.get(key)),
        proven=proven,
        asks=tuple(ask for ask in ("hold", "quarantine", "retest", "repair") if spec.get(ask)),
    )


def leader_of(lease: Mapping[str, Any] | None, now: datetime) -> Leader:
    """What a Lease says of who leads."""
    spec = (lease or {}).get("spec") or {}
    name = str(spec.get("holderIdentity") or "")
    try:
        renewed_s = (now - parse_rfc3339(str(spec.get("renewTime")))).total_seconds()
    except ValueError:
        return Leader(name)
    return Leader(name, renewed_s, bool(name) and renewed_s <= float(spec.get("leaseDurationSeconds") or _LEASE_S))


def read(api: KubeApi, names: Names, now: datetime) -> Snapshot:
    """The fleet as the API server has it. Raises ApiError."""
    return _snapshot(api, (row(item) for item in api.items(admissions_path(names), _LIST)), now)


def followed(api: KubeApi, names: Names, now: Callable[[], datetime], round_s: int = _ROUND_S) -> Iterator[Snapshot]:
    """The fleet now, and again whenever something changes: one list, then a watch. Raises ApiError."""
    path, shown = admissions_path(names), None
    while True:
        rows: dict[str, Row] = {}
        version = ""
        for page, listed in api.pages(path, _LIST):
            rows |= {one.name: one for one in map(row, page)}
            version = listed
        try:
            while True:
                fleet = _snapshot(api, rows.values(), now())
                if _telling(fleet) != shown:
                    shown = _telling(fleet)
                    yield fleet
                for kind, item in api.watch(path, version, round_s, "watch the NodeAdmissions"):
                    version = str(item["metadata"]["resourceVersion"])
                    one = row(item)
                    if kind == "DELETED":
                        rows.pop(one.name, None)
                    elif kind != "BOOKMARK":
                        rows[one.name] = one
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


def _brake(api: KubeApi, now: datetime) -> str:
    alarms = api.items(_ALARMS, "read the admitter's alarms", fieldSelector=f"reason={_ALARM}")
    newest = max(alarms, key=lambda event: str(event.get("lastTimestamp")), default=None)
    try:
        fresh = newest and (now - parse_rfc3339(str(newest.get("lastTimestamp")))).total_seconds() < _ALARM_S
    except ValueError:
        return ""
    return str(newest.get("message") or "") if newest and fresh else ""


def _telling(fleet: Snapshot) -> object:
    """What of it is news: not that time goes by."""
    return fleet.rows, fleet.leader.name, fleet.leader.alive, fleet.pause, fleet.brake


def _snapshot(api: KubeApi, rows: Iterable[Row], now: datetime) -> Snapshot:
    ordered = tuple(sorted(rows, key=lambda one: natural(one.name)))
    leader = leader_of(api.find(LEASE_PATH, "read the admitter's lease"), now)
    return Snapshot(ordered, leader, standing_pause(api, now), now, api.server, _brake(api, now))
