"""What an etcd that is put back to a snapshot forgets of the nodes, and how that is carried over into the restored one.

The ledger of before is read from etcd itself while no API server writes any more. What it knew and the snapshot does
not goes into the entries that came back: identities with the highest sequences, what people asked, and for each node
whose entry moved back the restore itself, which keeps new work away until agent or test have spoken (decide/facts).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, admissions_path
from gpu_burnin.admission.decide.facts import doubted
from gpu_burnin.admission.decide.nodes import gated
from gpu_burnin.admission.decide.words import sentence
from gpu_burnin.admission.provision import THREADS, define
from gpu_burnin.admission.view import Node
from gpu_burnin.admission.waiting import read
from gpu_burnin.api.names import KIND, PROVISIONER_USER, Names
from gpu_burnin.api.record import Ask, NodeAdmission, Spec, State, Status, document, parse
from gpu_burnin.system.codec import to_json

_MOST_TRIES = 10
_POLL_S = 1.0
_PARTS = ("identity", "hardware", "evidence")
_ASKS = ("hold", "quarantine", "retest", "repair")


@dataclass(frozen=True)
class Moved:
    """A node whose entry moves back. `told` is what differs, in words; `was` what was known of it, if that was bad.

    `spec` is what its entry has to say, None where the ledger of before had none. `urgent`: people or a fault had
    closed it.
    """

    name: str
    difference: str
    was: str = ""
    spec: Spec | None = None
    urgent: bool = False


@dataclass(frozen=True)
class Plan:
    """What is carried over. `everyone`: nobody can say which nodes moved back, so all are in doubt."""

    since: str
    taken_at: str
    everyone: bool = False
    why: str = ""
    nodes: tuple[Moved, ...] = ()

    def mark(self, was: str = "") -> Ask:
        """The restore as it stands in an entry."""
        why = f"snapshot of {self.taken_at}" + (f"; before it was {was}" if was else "")
        return Ask(PROVISIONER_USER, sentence(why), self.since)


def ledger(documents: Iterable[Mapping[str, Any]]) -> dict[str, NodeAdmission]:
    """NodeAdmissions by name. Raises RecordError."""
    return {record.name: record for record in map(parse, documents)}


def compared(
    before: Mapping[str, NodeAdmission] | None,
    then: Mapping[str, NodeAdmission] | None,
    since: str,
    taken_at: str,
) -> Plan:
    """What the snapshot's ledger `then` does not know of `before`; None for one that could not be read. Pure."""
    if before is None:
        return Plan(since, taken_at, True, "no member of etcd answers, so nobody knows what the ledger knew")
    if then is None:
        found = [_moved(before[name], None, "") for name in sorted(before)]
        return Plan(since, taken_at, True, "the snapshot's ledger cannot be read", tuple(found))
    found = []
    for name in sorted(before.keys() | then.keys()):
        known, old = before.get(name), then.get(name)
        if known is None:
            found.append(Moved(name, "has no entry any more, and gets the old one back"))
        elif not _same(known, old):
            found.append(_moved(known, old, f"is new since the snapshot ({_stands(known)}), its entry is made again"))
    return Plan(since, taken_at, nodes=tuple(sorted(found, key=lambda one: not one.urgent)))


def highest_of(record: NodeAdmission) -> tuple[str, int, str]:
    """The pinned key, the highest sequence that was seen of it, and its report."""
    identity, status = record.spec.identity, record.status
    own = (0, "")
    if status.host_key == identity.host_key:
        own = status.highest_sequence, status.highest_report_sha256
    carried = identity.carried_sequence, identity.carried_report_sha256
    return identity.host_key, *max(own, carried, key=lambda one: one[0])


def carry(api: KubeApi, names: Names, plan: Plan) -> tuple[str, ...]:
    """Write the plan into the restored ledger; the entries that were written. Raises ApiError and RecordError."""
    define(api, names, apply=True)
    planned = {one.name: one for one in plan.nodes}
    there = {str(item["metadata"]["name"]) for item in api.items(admissions_path(names), f"list the {KIND}s")}
    wanted = planned | ({name: Moved(name, "") for name in there - planned.keys()} if plan.everyone else {})
    work = [one for one in wanted.values() if one.name in there or one.spec is not None]
    with ThreadPoolExecutor(THREADS) as pool:
        written = list(pool.map(lambda one: _carried(api, names, plan, one), work))
    return tuple(sorted(one.name for one, changed in zip(work, written, strict=True) if changed))


def wait_until_closed(
    api: KubeApi,
    names: Names,
    plan: Plan,
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Wait until the admitter keeps new work from each node in doubt: those in doubt, and those that it has not closed.

    Raises ApiError and RecordError.
    """
    deadline_s = clock() + wait_s
    records, nodes = read(api, names)
    waiting = sorted(name for name in records if _in_doubt(plan, records.get(name)))
    left = waiting
    while left := [name for name in left if _in_doubt(plan, records.get(name)) and _open(nodes.get(name), names)]:
        if clock() >= deadline_s:
            break
        sleep(_POLL_S)
        records, nodes = read(api, names, left)
    return tuple(waiting), tuple(left)


def _in_doubt(plan: Plan, record: NodeAdmission | None) -> bool:
    restored = doubted(record.spec, record.status) if record is not None else None
    return restored is not None and restored.since == plan.since


def _open(node: Node | None, names: Names) -> bool:
    return node is not None and not gated(node, names)


def _same(before: NodeAdmission, then: NodeAdmission | None) -> bool:
    """Whether the snapshot knows all that was known of the node; how it is used does not matter."""
    return then is not None and _known(before) == _known(then)


def _known(record: NodeAdmission) -> object:
    one: Status = record.status
    seen = one.state, one.code, one.host_key, one.highest_sequence, one.highest_report_sha256
    return (
        replace(record.spec, restored=None, swing=None),
        seen,
        one.accepted,
        one.last_test,
        one.proofs,
        one.retested,
        one.power_cycle,
    )


def _moved(before: NodeAdmission, then: NodeAdmission | None, new: str) -> Moved:
    """What differs; `new` is told of a node that the snapshot does not know."""
    bad = before.status.state in (State.QUARANTINED, State.SUSPECT, State.HELD, State.REPAIRING)
    was = _stands(before) if bad else ""
    said, over = [new] if new else [_stands(before)], []
    if then is not None:
        said = [] if _stands(before) == _stands(then) else [f"{_stands(before)} would be {_stands(then)}"]
        high, low = highest_of(before)[1], highest_of(then)[1]
        said += [f"highest sequence {high} would be {low}, is carried over"] if high > low else []
        over = [(name, ask) for name in _ASKS if (ask := _ask(then, name)) is not None and _ask(before, name) is None]
    new_asks = _new_asks(before, then)
    said += [f"the {name} of {ask.who} ({ask.why}) is carried over" for name, ask in new_asks]
    said += [f"the {name} of {ask.who} ({ask.why}) was over and stands again" for name, ask in over]
    owed = _owed(before, then)
    said += [owed] if owed else []
    difference = "; ".join(said) or "its entry was newer"
    return Moved(before.name, difference, was, _spec(before, then), bad or bool(new_asks or over or owed))


def _stands(record: NodeAdmission) -> str:
    return f"{record.status.state}" + (f" ({record.status.code})" if record.status.code else "")


def _ask(record: NodeAdmission, name: str) -> Ask | None:
    """What a person asks; a test that was done is asked for no more."""
    found: Ask | None = getattr(record.spec, name)
    return None if found is not None and name == "retest" and record.status.retested == found.since else found


def _new_asks(before: NodeAdmission, then: NodeAdmission | None) -> list[tuple[str, Ask]]:
    """What was asked since the snapshot."""
    asks = ((name, _ask(before, name)) for name in _ASKS)
    return [(name, ask) for name, ask in asks if ask is not None and (then is None or ask != getattr(then.spec, name))]


def _spec(before: NodeAdmission, then: NodeAdmission | None) -> Spec:
    """What the entry of before says, with the asks that the snapshot has not, in the provisioner's name.

    Nobody may ask in another's name. A repair is somebody's work that may have ended: a hold, which people can end.
    """
    known = [highest_of(one) for one in (before, then) if one is not None]
    # Of another key nothing counts; and an etcd that was built anew since knows less than the snapshot.
    _, sequence, report = max((one for one in known if one[0] == known[0][0]), key=lambda one: one[1])
    identity = replace(before.spec.identity, carried_sequence=sequence, carried_report_sha256=report)
    asks = {name: _renamed(name, ask) for name, ask in _new_asks(before, then)}
    repair = asks.get("repair") if before.spec.hold is None else None
    if (owed := _owed(before, then)) and before.status.power_cycle is not None:
        # A person's quarantine may end by its time, and then nobody would know of the fault any more.
        theirs = before.spec.quarantine
        more = f"; beside it the quarantine of {theirs.who}: {theirs.why}" if theirs is not None else ""
        asks["quarantine"] = Ask(PROVISIONER_USER, sentence(f"{owed}{more}"), before.status.power_cycle.since)
    return Spec(
        identity,
        before.spec.hardware,
        before.spec.evidence,
        hold=asks.get("hold", repair),
        quarantine=asks.get("quarantine"),
        retest=asks.get("retest"),
        place=before.spec.place,
    )


def _owed(before: NodeAdmission, then: NodeAdmission | None) -> str:
    """What is told of a power cycle that nobody has confirmed and of which the snapshot knows nothing; else "".

    It is carried over as a quarantine: the status is the admitter's to write, and it hears of no FAIL twice.
    """
    owed = before.status.power_cycle
    if owed is None or (then is not None and then.status.power_cycle is not None):
        return ""
    return f"{owed.what} for {owed.code} is owed since {owed.since}: {owed.to_do}, then release it"


def _renamed(name: str, ask: Ask) -> Ask:
    why = f"{name} of {ask.who}, carried over the restore of etcd: {ask.why}"
    return replace(ask, who=PROVISIONER_USER, why=sentence(why))


def _carried(api: KubeApi, names: Names, plan: Plan, one: Moved) -> bool:
    """Write one entry; False where it was written already. Raises ApiError."""
    path, mark = admissions_path(names, one.name), plan.mark(one.was)
    for _ in range(_MOST_TRIES):
        found = api.find(path, f"read {KIND} {one.name}")
        try:
            if found is None and one.spec is None:
                return False
            if found is None:
                assert one.spec is not None
                made = document(NodeAdmission(one.name, replace(one.spec, restored=mark)), names)
                answer = api.create(admissions_path(names), made, f"create {KIND} {one.name}")
            elif parse(found).spec.restored == mark:
                return False
            else:
                answer = api.patch(path, _patch(found, one, mark), f"carry over what was known of {one.name}")
        except Conflict as error:
            conflict = error
            continue
        if parse(answer).spec.restored != mark:
            raise ApiError(
                f"{one.name}: the API server does not keep what was written to its {KIND}: its definition is of an "
                "older version of muster; run this playbook of the version that built the fleet"
            )
        return True
    raise ApiError(f"{one.name}: its {KIND} changed at each of {_MOST_TRIES} tries ({conflict}); run this again")


def _patch(found: Mapping[str, Any], one: Moved, mark: Ask) -> list[dict[str, Any]]:
    values = {"restored": to_json(mark)}
    if one.spec is not None:
        values |= {part: to_json(getattr(one.spec, part)) for part in _PARTS}
        values |= {"place": to_json(one.spec.place)} if one.spec.place != parse(found).spec.place else {}
        values |= {name: to_json(ask) for name in _ASKS if (ask := getattr(one.spec, name)) is not None}
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
    return [test, *({"op": "add", "path": f"/spec/{name}", "value": value} for name, value in values.items())]
