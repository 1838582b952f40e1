"""Writing the inventory into the ledger: the CRDs, and one NodeAdmission for each GPU node, by its few fields.

What people ask of a node, and all that the admitter knows, is not touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound, admissions_path
from gpu_burnin.admission.objects import covers
from gpu_burnin.admission.rest import remove_rest, renewed, rest_of
from gpu_burnin.api.crd import definitions
from gpu_burnin.api.enrolment import enrolments_path
from gpu_burnin.api.heartbeat import heartbeats_path
from gpu_burnin.api.machine_power import machines_path
from gpu_burnin.api.names import KIND, Names
from gpu_burnin.api.record import Hardware, Identity, NodeAdmission, Place, Proof, Spec, document, parse
from gpu_burnin.api.rendezvous import Nic
from gpu_burnin.system.codec import to_json

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED_WITHIN_S = 60.0
POLL_S = 0.5
THREADS = 16
_MOST_TRIES = 10
_PARTS = ("identity", "hardware", "evidence", "place", "fabric")


class Act(StrEnum):
    """What was done (or would be) with a node's entry."""

    CREATED = "created"
    CHANGED = "changed"
    REMOVED = "removed"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Wanted:
    """A node of the inventory, as its entry should be."""

    name: str
    identity: Identity = field(default_factory=Identity)
    hardware: Hardware = field(default_factory=Hardware)
    evidence: Proof = field(default_factory=Proof)
    place: Place = field(default_factory=Place)
    fabric: tuple[Nic, ...] = ()


@dataclass(frozen=True)
class Provisioned:
    """What was done, by node; what differs, before and after; and sentences about what the inventory does not know."""

    acts: Mapping[str, Act]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    notes: tuple[str, ...]
    defined: bool = False

    @property
    def changed(self) -> bool:
        """Whether anything was (or would be) written."""
        return self.defined or any(act is not Act.NOTHING for act in self.acts.values())


def define(
    api: KubeApi,
    names: Names,
    *,
    apply: bool,
    machines: bool = False,
    enrolments: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Have the CRDs as this version makes them, and served; those that were (or would be) written. Raises ApiError.

    `machines`: that of MachinePower, too; `enrolments`: that of NodeEnrolment.
    """
    wanted = definitions(names, machines=machines, enrolments=enrolments)
    written = tuple(one["metadata"]["name"] for one in wanted if _write_definition(api, one, apply=apply))
    if apply:
        served = {
            names.crd: admissions_path(names),
            names.heartbeat_crd: heartbeats_path(names),
            names.machine_crd: machines_path(names),
            names.enrolment_crd: enrolments_path(names),
        }
        deadline = clock() + SERVED_WITHIN_S
        for name in written:
            _await_served(api, name, served[name], deadline, clock, sleep)
    return written


def _await_served(
    api: KubeApi,
    name: str,
    path: str,
    deadline: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    while True:
        try:
            api.get(f"{path}?limit=1", f"list {name}")
            return
        except NotFound as error:
            if clock() >= deadline:
                raise ApiError(
                    f"{api.server}: {name} is not served {SERVED_WITHIN_S:.0f} s after it was defined; look at its "
                    f"conditions (kubectl get crd {name} -o yaml)"
                ) from error
        sleep(POLL_S)


def _write_definition(api: KubeApi, wanted: Mapping[str, Any], *, apply: bool) -> bool:
    name = wanted["metadata"]["name"]
    path = f"{CRDS}/{name}"
    for _ in range(_MOST_TRIES):
        found = api.find(path, f"read the definition {name}")
        if found is not None and covers(found["spec"], wanted["spec"]):
            return False
        if not apply:
            return True
        try:
            if found is None:
                api.create(CRDS, dict(wanted), f"create the definition {name}")
            else:
                metadata = {"name": name, "resourceVersion": found["metadata"]["resourceVersion"]}
                api.replace(path, {**wanted, "metadata": metadata}, f"write the definition {name}")
            return True
        except Conflict as error:
            # The API server writes the definition's status itself, soon after each change.
            conflict = error
    raise ApiError(f"the definition {name} changed at each of {_MOST_TRIES} tries ({conflict}); run this again")


def provision(
    api: KubeApi,
    names: Names,
    wanted: Sequence[Wanted],
    others: Collection[str],
    nodes: Collection[str],
    *,
    apply: bool,
    machines: bool = False,
    enrolments: bool = False,
    carried: Mapping[str, tuple[int, str]],
    keep: Callable[[str, str, int, str], None],
) -> Provisioned:
    """Make the entries those of the inventory.

    `others` are nodes that have none on purpose (system nodes), `nodes` those that the cluster has. An entry whose
    node has left the inventory goes when its Node has gone, unless a person holds it or a power cycle is owed. A key
    that is in the cluster is not taken back because the inventory knows none: what was seen counts for the key.

    `carried` are the highest sequences (and their reports) that the controller knows: they begin an entry, or a key,
    that is new. `keep` is told of them (node, host key, sequence, report) before an entry, or a key, goes.
    """
    defined = define(api, names, apply=apply, machines=machines, enrolments=enrolments)
    known = {} if names.crd in defined and not apply else entries(api, names)
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    work: list[tuple[Act, Wanted | NodeAdmission]] = []
    for one in (_still(one, known.get(one.name)) for one in wanted):
        old = known.get(one.name)
        parts = _parts(one, _carried(old, one, carried))
        if old is None:
            work.append((Act.CREATED, one))
            after[one.name] = parts
        elif (had := {part: to_json(getattr(old.spec, part)) for part in _PARTS}) != parts:
            work.append((Act.CHANGED, one))
            before[one.name], after[one.name] = had, parts
    ours = {one.name for one in wanted}
    for name in sorted(known.keys() - ours):
        if name not in nodes and not _kept_for(known[name]):
            work.append((Act.REMOVED, known[name]))
            before[name] = {part: to_json(getattr(known[name].spec, part)) for part in _PARTS}
    stay: dict[str, str] = {}
    if apply:
        # Read before the first entry goes: what is made later is of a machine that comes under that name.
        rest = rest_of(api, names, [item.name for act, item in work if act is Act.REMOVED], enrolments=enrolments)

        def carry_out(one: tuple[Act, Wanted | NodeAdmission]) -> str:
            act, item = one
            why = _write(api, names, act, item, carried, keep)
            if act is Act.REMOVED and not why:
                what = f"remove what is left of {item.name}"
                left = remove_rest(api, rest[item.name], what)
                remove_rest(api, renewed(api, names, item.name, left), what)
            return why

        with ThreadPoolExecutor(THREADS) as pool:
            written = list(pool.map(carry_out, work))
        stay = {item.name: why for (_, item), why in zip(work, written, strict=True) if why}
        work = [(act, item) for act, item in work if item.name not in stay]
        before = {name: parts for name, parts in before.items() if name not in stay}
    acts = {one.name: Act.NOTHING for one in wanted} | {item.name: act for act, item in work}
    notes = (*_notes(wanted, others, nodes, known), *stay.values())
    return Provisioned(acts, before, after, notes, bool(defined))


def pin(
    api: KubeApi,
    names: Names,
    name: str,
    host_key: str,
    machine_id: str,
    *,
    carried: tuple[int, str],
    keep: Callable[[str, str, int, str], None],
) -> None:
    """Write into a node's entry which machine it is, and nothing else; `carried` and `keep` as of provision().

    Raises NotFound where there is no entry, and ApiError.
    """
    spec = parse(api.get(admissions_path(names, name), f"read {KIND} {name}")).spec
    identity = replace(spec.identity, host_key=host_key, machine_id=machine_id)
    if identity != spec.identity:
        wanted = Wanted(name, identity, spec.hardware, spec.evidence, spec.place, spec.fabric)
        _write(api, names, Act.CHANGED, wanted, {name: carried}, keep)


def entries(api: KubeApi, names: Names) -> dict[str, NodeAdmission]:
    """All entries by name. Raises ApiError and RecordError."""
    found = (parse(item) for item in api.items(admissions_path(names), f"list the {KIND}s"))
    return {entry.name: entry for entry in found}


def _write(
    api: KubeApi,
    names: Names,
    act: Act,
    item: Wanted | NodeAdmission,
    carried: Mapping[str, tuple[int, str]],
    keep: Callable[[str, str, int, str], None],
) -> str:
    """Write an entry; why one that was to go stays, "" otherwise."""
    path = admissions_path(names, item.name)
    if isinstance(item, NodeAdmission):
        if api.node(item.name) is not None:
            return (
                f"{item.name}: its Node came while this ran, so its {KIND} stays; add it to the inventory, or delete "
                "its Node (kubectl delete node), and run this again"
            )
        _keep(item, keep)
        try:
            api.delete(path, f"delete {KIND} {item.name}", version=item.version)
        except Conflict as error:
            return (
                f"{item.name}: its {KIND} was written since it was read ({error}), as for a node that comes back or "
                "for what somebody asks of it, so it stays; run this again, which decides anew"
            )
        return ""
    if act is Act.CREATED:
        identity = _with(item.identity, _carried(None, item, carried))
        spec = Spec(identity, item.hardware, item.evidence, place=item.place, fabric=item.fabric)
        made = document(NodeAdmission(item.name, spec), names)
        try:
            api.create(admissions_path(names), made, f"create {KIND} {item.name}")
        except Conflict as error:
            raise ApiError(
                f"{item.name}: somebody else has made its {KIND} meanwhile ({error}); run this again"
            ) from error
        return ""
    # People and the admitter write the same object: only our fields are replaced, so the newest version will do.
    for _ in range(_MOST_TRIES):
        found = api.get(path, f"read {KIND} {item.name}")
        old = parse(found)
        if old.spec.identity.host_key != item.identity.host_key:
            _keep(old, keep)
        parts = _parts(item, _carried(old, item, carried))
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
        # A part that says nothing stays as it is, so that the entry is the same as before there was such a part.
        had = {part: to_json(getattr(old.spec, part)) for part in _PARTS}
        written = [part for part in _PARTS if parts[part] or had[part]]
        changes = [{"op": "add", "path": f"/spec/{part}", "value": parts[part]} for part in written]
        try:
            api.patch(path, [test, *changes], f"patch {KIND} {item.name}")
            return ""
        except Conflict as error:
            conflict = error
    raise ApiError(f"{item.name}: its {KIND} changed at each of {_MOST_TRIES} tries ({conflict}); run this again")


def _still(wanted: Wanted, old: NodeAdmission | None) -> Wanted:
    """With the key, and the machine of that key, that the cluster has, where the inventory knows none."""
    if old is None:
        return wanted
    there, identity = old.spec.identity, wanted.identity
    key = identity.host_key or there.host_key
    machine = identity.machine_id or (there.machine_id if key == there.host_key else "")
    return replace(wanted, identity=replace(identity, host_key=key, machine_id=machine))


def _kept_for(old: NodeAdmission) -> str:
    """What of an entry nobody else knows, and how that is ended, in words; "" where it may go with its node."""
    spec, owed = old.spec, old.status.power_cycle
    asks = {"hold": spec.hold, "quarantine": spec.quarantine, "repair": spec.repair}
    for what, ask in asks.items():
        if ask is not None:
            end = "have it ended by the play that began it" if what == "repair" else "release it (muster node release)"
            return f"the {what} of {ask.who} stands ({ask.why}), so its entry stays; {end}"
    if owed is None:
        return ""
    return (
        f"{owed.what} for {owed.code} is owed since {owed.since}, so its entry stays; {owed.to_do}, or take it away "
        f"for good, then confirm it (muster node retest {old.name} --power-cycled --reason REASON)"
    )


def _parts(wanted: Wanted, carry: tuple[int, str]) -> dict[str, Any]:
    identity = _with(wanted.identity, carry)
    given = {"hardware": wanted.hardware, "evidence": wanted.evidence, "place": wanted.place, "fabric": wanted.fabric}
    return {"identity": to_json(identity), **{part: to_json(value) for part, value in given.items()}}


def _with(identity: Identity, carry: tuple[int, str]) -> Identity:
    return replace(identity, carried_sequence=carry[0], carried_report_sha256=carry[1])


def _carried(old: NodeAdmission | None, wanted: Wanted, carried: Mapping[str, tuple[int, str]]) -> tuple[int, str]:
    """What is carried counts for the key that it was seen with.

    An entry of a restored etcd may know less than the controller; a controller that was restored takes nothing back.
    """
    known = carried.get(wanted.name, (0, ""))
    if old is None or old.spec.identity.host_key != wanted.identity.host_key:
        return known
    own = old.spec.identity.carried_sequence, old.spec.identity.carried_report_sha256
    seen = old.status.highest_sequence if old.status.host_key == wanted.identity.host_key else 0
    return known if known[0] > max(own[0], seen) else own


def _keep(old: NodeAdmission, keep: Callable[[str, str, int, str], None]) -> None:
    """What was seen of a key, before nothing in the cluster knows of it."""
    identity, status = old.spec.identity, old.status
    if status.host_key == identity.host_key and status.highest_sequence:
        keep(old.name, identity.host_key, status.highest_sequence, status.highest_report_sha256)
    elif identity.carried_sequence:
        keep(old.name, identity.host_key, identity.carried_sequence, identity.carried_report_sha256)


def _notes(
    wanted: Iterable[Wanted], others: Collection[str], nodes: Collection[str], known: Mapping[str, NodeAdmission]
) -> Iterable[str]:
    ours = {one.name for one in wanted}
    for one in wanted:
        old = known[one.name].spec.identity.host_key if one.name in known else ""
        if not one.identity.host_key and old:
            yield (
                f"{one.name}: the inventory has no single pinned host key of it, the one in the cluster stays; probe "
                "the host (site.yml --tags preflight) and run this again"
            )
        elif not one.identity.host_key:
            yield (
                f"{one.name}: its host key is not pinned, so its evidence cannot be checked; probe the host (site.yml "
                "--tags preflight) and run this again"
            )
        elif old and old != one.identity.host_key:
            yield f"{one.name}: its host key is another one now; evidence signed with the old one counts no more"
    for name in sorted(known.keys() - ours):
        if name in nodes:
            yield (
                f"{name}: it is in the cluster and in the ledger, but not in the inventory; add it, or delete its Node "
                "(kubectl delete node) and run this again, which then removes its entry"
            )
        elif kept := _kept_for(known[name]):
            yield f"{name}: it is in neither cluster nor inventory, but {kept} and run this again"
    for name in sorted(set(nodes) - ours - set(others) - known.keys()):
        yield (
            f"{name}: it is in the cluster, but neither in gpu_nodes nor in system_nodes of the inventory; add it, or "
            "delete its Node: nobody admits it"
        )
