"""One node as `muster status` counts it: by the ledger, and by its Node where that takes no work all the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpu_burnin.admission.decide import condition, gated
from gpu_burnin.admission.decide.nodes import effects, labelled_ready
from gpu_burnin.admission.decide.outlook import TAKEN_OUT
from gpu_burnin.admission.decide.times import when
from gpu_burnin.admission.view import Node
from gpu_burnin.api import remedies
from gpu_burnin.api.names import KIND, PROVISIONER_USER, SCALER_USER, Names
from gpu_burnin.api.record import RecordError, State, parse
from gpu_burnin.system.host_names import fold

UNKNOWN = "unknown"
# Not the ledger's: a node that should be out and works, one that kubelet tells nothing good of, one without
# NodeAdmission, one whose first burn-in has not passed, one that never came, and those that people or windows close.
BRAKED, LOST, UNLISTED, REJECTED, ABSENT = "braked", "lost", "unlisted", "rejected", "absent"
CORDONED, MAINTENANCE = "cordoned", "maintenance"
# One that the scaler has switched off, or is about to: nobody misses it.
OFF = "off"
# Those that a person has to do something about come first, then those that come back by themselves.
ORDER: tuple[str, ...] = (
    BRAKED, State.QUARANTINED, State.SUSPECT, LOST, REJECTED, ABSENT, UNLISTED, State.HELD, CORDONED, UNKNOWN,
    State.REPAIRING, MAINTENANCE, State.NEW, State.EXPIRING, State.TESTING, OFF, State.READY,
)  # fmt: skip
NEEDS_PERSON = frozenset(ORDER[: ORDER.index(State.REPAIRING)])
_STATES = frozenset(map(str, State))
# Longer than the extended burn-in of a new node takes.
_LATE = timedelta(hours=4)
# The ledger is written before the Node.
_BEHIND = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Row:
    """One node. `proven` is when its newest accepted or passed burn-in ended, "" for never; `next` what comes next.

    `brake` is why the admitter may not take it from work, "" where none keeps it from that. `team` is the one that it
    is dedicated to, with the `gpus` of the `model` that the inventory expects.
    """

    name: str
    state: str
    code: str
    since: str
    message: str
    next: str
    proven: str
    asks: tuple[str, ...] = ()
    brake: str = ""
    team: str = ""
    model: str = ""
    gpus: int = 0

    @property
    def needs_person(self) -> bool:
        """Whether it stays as it is until a person does something."""
        return self.state in NEEDS_PERSON


@dataclass(frozen=True, slots=True)
class Seen:
    """What of a Node tells whether pods are placed on it. `reported` is kubelet's condition Ready; `why` its words."""

    reported: str = ""
    why: str = ""
    cordoned: bool = False
    closed: bool = False
    maintenance: bool = False
    ours: bool = False


def row(item: Mapping[str, Any], now: datetime) -> Row:
    """A row of a NodeAdmission as the API server sends it. The state of one that cannot be read is unknown."""
    try:
        found = _row(item, now)
    except (AttributeError, TypeError, ValueError):
        found = None
    return _unreadable(item) if found is None else found


def _unreadable(item: Mapping[str, Any]) -> Row:
    """A node of whose NodeAdmission this version cannot tell how it stands, and what to do."""
    name = str((item.get("metadata") or {}).get("name", ""))
    try:
        parse(item)
        message = f"its {KIND} cannot be read; look at it (kubectl get na {name} -o yaml)"
    except RecordError as error:
        message = str(error).removeprefix(f"{name}: ")
    return Row(name, UNKNOWN, "", "", message, "", "")


def _row(item: Mapping[str, Any], now: datetime) -> Row | None:
    """None where this version has no such state."""
    name = str((item.get("metadata") or {}).get("name", ""))
    spec, status = item.get("spec") or {}, item.get("status") or {}
    state = str(status.get("state") or State.NEW)
    if state not in _STATES:
        return None
    coming = status.get("next") or {}
    hardware = spec.get("hardware") or {}
    accepted, proofs = status.get("accepted") or {}, status.get("proofs") or {}
    proven = max([str(accepted.get("finishedAt") or ""), *(str(time) for time in proofs.values())])
    found = Row(
        name=name,
        state=state,
        code=str(status.get("code") or ""),
        since=str(status.get("since") or ""),
        message=str(status.get("message") or ""),
        next=": ".join(str(coming[key]) for key in ("what", "why") if coming.get(key)),
        proven=proven,
        asks=tuple(ask for ask in ("hold", "quarantine", "retest", "repair") if _stands(spec.get(ask), now)),
        team=str(status.get("team") or ""),
        model=str(hardware.get("model") or ""),
        gpus=int(hardware.get("gpus") or 0),
    )
    if "retest" in found.asks and spec["retest"].get("since") == status.get("retested"):
        found = replace(found, asks=tuple(ask for ask in found.asks if ask != "retest"))
    if coming.get("what") == TAKEN_OUT:  # also while it is tested
        return replace(found, state=BRAKED, brake=str(coming.get("why") or "").partition("; ")[0])
    if found.code in ("HELD_BY_PERSON", "QUARANTINED_BY_PERSON") and _of_scaler(spec.get("hold") or {}):
        return replace(found, state=OFF)
    since = when(found.since)
    late = since is not None and now - since > _LATE
    if state == State.NEW and found.code == "NODE_ABSENT" and (proven or late):
        return replace(
            found,
            state=ABSENT,
            next=f"a person: look at its kubelet, and in a fleet at `gpu-burnin gate`. {remedies.DELETED}",
        )
    return found


def _of_scaler(hold: Mapping[str, Any]) -> bool:
    """Whether the scaler has closed the node; restore.py carries its ask over in the provisioner's name."""
    who, why = hold.get("who"), str(hold.get("why") or "")
    return who == SCALER_USER or (who == PROVISIONER_USER and why.startswith(f"hold of {SCALER_USER}, carried over"))


def names_of(nodes: Sequence[str], most: int) -> str:
    """Names of nodes in few words."""
    words, _, left = fold(nodes, most)
    return ", ".join([*words, f"{left:,} more"] if left else words)


def _stands(ask: Mapping[str, Any] | None, now: datetime) -> bool:
    """Whether a person's ask is there and not over."""
    until = when(str((ask or {}).get("until") or ""))
    return bool(ask) and (until is None or now < until)


def placement_of(node: Node, names: Names) -> Seen:
    """What a Node says."""
    ready = condition(node, "Ready") or {}
    return Seen(
        reported=str(ready.get("status") or ""),
        why=": ".join(str(ready[key]) for key in ("reason", "message") if ready.get(key)),
        cordoned=bool((node.get("spec") or {}).get("unschedulable")),
        closed=gated(node, names),
        maintenance=bool(effects(node, names.maintenance)),
        ours=gated(node, names) or labelled_ready(node),
    )


def placed(found: Row, seen: Seen | None, now: datetime) -> Row:
    """The row as pods find the node: one that the ledger calls ready may be closed to them all the same."""
    if found.state != State.READY:
        return found
    if seen is None:
        message = f"there is no Node object, though its NodeAdmission says ready. {remedies.DELETED}"
        return replace(found, state=LOST, code="NODE_ABSENT", message=message)
    if seen.reported != "True":
        code = "NODE_UNKNOWN" if seen.reported == "Unknown" else ""
        said = seen.why or "kubelet has not reported its status"
        return replace(found, state=LOST, code=code, message=f"the node is not Ready: {said}")
    since = when(found.since)
    if seen.closed and since is not None and now - since > _BEHIND:
        return replace(found, state=UNKNOWN, message="it is ready in the ledger, and its Node has the preflight taint")
    if seen.cordoned:
        message = "somebody has cordoned it; `kubectl uncordon` opens it"
        return replace(found, state=CORDONED, code="", message=message)
    return replace(found, state=MAINTENANCE) if seen.maintenance else found


def unlisted(name: str) -> Row:
    """A GPU node without NodeAdmission."""
    message = f"it has no NodeAdmission; {remedies.UNLISTED}"
    return Row(name, UNLISTED, "NOT_PROVISIONED", "", message, "", "")


def rejected(found: Row, verdict: str, code: str, message: str) -> Row:
    """A node that never came, of whose burn-in the controller has the report."""
    said = f"its burn-in told {verdict}" + (f": {message}" if message else "")
    return replace(
        found, state=REJECTED, code=code, message=said, next="repaired: playbooks/repair.yml does what the report asks"
    )
