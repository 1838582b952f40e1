"""What the ledger keeps of Nodes that are gone, as an autoscaler leaves them: which of it may go, and its removal.

Who comes back under a name that was removed is a new machine: it says who it is, and waits for approval. A record that
speaks of a fault stays, since the machine may come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.admission.client import Conflict, KubeApi, NotFound, Object, admissions_path
from gpu_burnin.admission.rest import Left, Rest, remove_rest
from gpu_burnin.api.enrolment import EnrolmentError, enrolments_path, parse_enrolment
from gpu_burnin.api.fabric_proof import FabricOutcome
from gpu_burnin.api.heartbeat import heartbeats_path
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Ask, NodeAdmission, State, parse
from gpu_burnin.system.clock import time_of
from gpu_burnin.types import Verdict

_ABSENT = "NODE_ABSENT"
_ASKS = ("hold", "quarantine", "repair", "retest", "restored", "swing")
# What a machine that is switched off looks like from the cluster.
_SILENT = frozenset({"NODE_UNKNOWN", "AGENT_SILENT"})
_AT_WORK = (State.READY, State.EXPIRING)


@dataclass(frozen=True)
class Gone:
    """A node without Node, and since when; `stays` says why what is left of it does, "" where it may go.

    `version`: of its record, "" without one.
    """

    name: str
    since: str
    stays: str
    version: str
    rest: Rest = ()


def gone(api: KubeApi, names: Names, now: datetime, least_s: float) -> list[Gone]:
    """The nodes of the ledger that have no Node, and what a removal that was cut has left of others. Raises ApiError
    and RecordError.

    The ledger is read first: of a Node that comes meanwhile the record changes, and is not removed.
    """
    records = {one.name: one for one in map(parse, api.items(admissions_path(names), "list the NodeAdmissions"))}
    enrolments = _by_name(api, enrolments_path(names), "list the NodeEnrolments")
    heartbeats = _by_name(api, heartbeats_path(names), "list the AgentHeartbeats")
    there = api.nodes()

    def rest(name: str) -> Rest:
        of = (
            (enrolments_path(names, name), enrolments.get(name)),
            (heartbeats_path(names, name), heartbeats.get(name)),
        )
        return tuple(Left.of(path, one) for path, one in of if one is not None)

    approved = {name for name, one in enrolments.items() if _approved(one)}
    cut = (approved | heartbeats.keys() - enrolments.keys()) - records.keys()
    found = [
        Gone(name, one.status.since, why_it_stays(one, now, least_s), one.version, rest(name))
        for name, one in records.items()
        if name not in there
    ]
    found += [Gone(name, "", "", "", rest(name)) for name in cut if name not in there]
    return sorted(found, key=lambda one: one.name)


def _by_name(api: KubeApi, path: str, what: str) -> dict[str, Object]:
    return {str(one["metadata"]["name"]): one for one in api.items(path, what)}


def _approved(enrolment: Object) -> bool:
    """Whether a person let it in; one that waits or was refused is no rest of a removal."""
    try:
        decision = parse_enrolment(enrolment).spec.decision
    except EnrolmentError:
        return False
    return decision is not None and decision.approved


def why_it_stays(record: NodeAdmission, now: datetime, least_s: float) -> str:
    """Why the record of a node without Node is kept, "" where nothing speaks for it. Pure."""
    status = record.status
    if asks := asks_of(record, now):
        return f"somebody asked for {' and '.join(asks)}"
    if status.power_cycle is not None:
        return f"{status.power_cycle.what} is owed ({status.power_cycle.code})"
    if status.state is not State.NEW or status.code != _ABSENT:
        return f"it is {status.state} ({status.code or 'without a reason'}), not missed by the admitter"
    if status.last_test is not None and status.last_test.verdict != Verdict.PASS:
        return f"its last burn-in was {status.last_test.verdict} ({status.last_test.code or 'without a code'})"
    if status.fabric is not None and status.fabric.outcome is not FabricOutcome.PASSED:
        return f"tests with other nodes found it {status.fabric.outcome}"
    if fault := fault_of(record):
        return f"it went with a fault ({fault})"
    since = time_of(status.since)
    if since is None or (now - since).total_seconds() < least_s:
        return f"it is gone since {status.since or 'nobody knows when'}"
    return ""


def asks_of(record: NodeAdmission, now: datetime) -> list[str]:
    """What people, or plays, still ask of a node. Pure."""
    return [f"a {what}" for what in _ASKS if _stands(getattr(record.spec, what), record.status.retested, what, now)]


def _stands(ask: Ask | None, retested: str, what: str, now: datetime) -> bool:
    """Whether it is neither over nor, as a retest that was made, done; an end that nobody can read is none."""
    if ask is None or (what == "retest" and ask.since == retested):
        return False
    until = time_of(ask.until)
    return until is None or now < until


def fault_of(record: NodeAdmission) -> str:
    """The code of what last took it from work and was not cleared by a pass, "" for none. Pure."""
    for step in reversed(record.status.transitions):
        if step.after in _AT_WORK:
            return ""
        doubt = step.after == State.SUSPECT and step.code not in _SILENT
        if doubt or step.after in (State.QUARANTINED, State.REPAIRING):
            return step.code or step.after
    return ""


def remove(api: KubeApi, names: Names, found: Gone) -> str:
    """Remove a record with enrolment and heartbeat; why it was not, "" when it was. `api` is the provisioner's.

    The record goes first, and each only as it was read: a machine that comes back meanwhile keeps all that it has. What
    a run that is cut has left is found by the next one. Raises ApiError.
    """
    if api.node(found.name) is not None:
        return "its Node has come back"
    what = f"remove what is left of {found.name}"
    try:
        if found.version:
            api.delete(admissions_path(names, found.name), what, version=found.version)
    except NotFound:
        pass
    except Conflict:
        return "it has changed meanwhile"
    remove_rest(api, found.rest, what)
    return ""


def to_json(found: Gone, *, removed: bool) -> Mapping[str, object]:
    """For programs."""
    return {"node": found.name, "since": found.since, "removed": removed, "stays": found.stays}
