"""What is read on the way to a story: a node's objects, reports, plays and audit logs, and what could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from urllib.parse import quote

from gpu_burnin.admission.client import ApiError, KubeApi, admissions_path, node_path
from gpu_burnin.api import remedies
from gpu_burnin.api.attached import Mode, attached_path, parse_attached
from gpu_burnin.api.enrolment import enrolments_path
from gpu_burnin.api.machine_power import MachineError
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, RecordError, parse
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet import REPORTS
from gpu_burnin.fleet.cluster.admissions import LEASE_PATH
from gpu_burnin.fleet.cluster.machines import machine_of
from gpu_burnin.fleet.history import FILE
from gpu_burnin.fleet.why.cause import first_cause, in_order
from gpu_burnin.fleet.why.entry import Entry, Source
from gpu_burnin.fleet.why.of_admission import note_of, of_admission, of_note
from gpu_burnin.fleet.why.of_cluster import Object, of_event, skews, time_of_event
from gpu_burnin.fleet.why.of_enrolment import why_unlisted
from gpu_burnin.fleet.why.of_files import NotLookedAt, of_audit, of_history, of_report
from gpu_burnin.fleet.why.of_machine import of_machine
from gpu_burnin.fleet.why.told import Files, Story
from gpu_burnin.system.clock import time_of

FORBIDDEN = 403
_SKEW_TOLD_S = 5.0


@dataclass
class Gathered:
    """What is found on the way."""

    entries: list[Entry] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    records: dict[str, NodeAdmission | None] = field(default_factory=dict)
    # By node of which no record could be read: why, in a sentence.
    unread: dict[str, str] = field(default_factory=dict)

    def take(self, read: Callable[[], Iterable[Entry]]) -> None:
        """Take the entries of a source; what cannot be read is said, and hides no other."""
        try:
            self.entries += read()
        except GpuBurninError as error:
            self.missing.append(str(error))


@dataclass(frozen=True)
class Asked:
    """`ended`: how a job says that it ended."""

    subject: str
    kind: str
    namespace: str
    name: str
    ended: str = ""


def add_node(found: Gathered, api: KubeApi, names: Names, node: str) -> NodeAdmission | None:
    """The entries of a node's objects; its record."""
    steps = set[tuple[str, datetime]]()
    try:
        record = record_of(found, api, names, node)
        document = api.find(node_path(node), f"read node {node}")
        events = events_about(api, "default", node)
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        whom = f"whoever runs the fleet can ask `muster why {node}`"
        found.missing.append(f"what happened to {node}: your rights show no nodes; {whom}")
        found.unread[node] = f"{node}: your rights do not show how it stands; {whom}"
        return None
    if record is None:
        found.missing.append(f"what the admitter did with {node}, since it has no NodeAdmission that can be read")
        if node not in found.unread:
            found.unread[node] = f"{node} has no NodeAdmission: {_why_unlisted(api, names, node)}"
    else:
        found.entries += of_admission(record)
        # What people ask has no code, and no second teller.
        steps = {(one.code, one.at) for one in found.entries if one.source is Source.ADMISSION and one.code}
    found.entries += machine_entries(found, api, names, node)
    note, why = note_of(document, names)
    if note is None:
        found.missing.append(f"{node}: {why}")
    else:
        found.entries += of_note(node, note)
    found.events += events
    for event in events:
        # The admitter tells of each change twice; once is enough for people.
        found.entries += (replace(one, quiet=(one.code, one.at) in steps) for one in of_event(event))
    return record


def _why_unlisted(api: KubeApi, names: Names, node: str) -> str:
    """Why a node has no NodeAdmission, or what to do about that."""
    mode = _mode(api)
    if mode is None or mode is Mode.BUILT:
        return remedies.UNLISTED if mode is None else remedies.admit(node, mode)
    try:
        return why_unlisted(node, api.find(enrolments_path(names, node), f"read the NodeEnrolment of {node}"))
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return "your rights show no NodeEnrolments; an admin sees in `muster attach nodes` whether it waits"


def record_of(found: Gathered, api: KubeApi, names: Names, node: str) -> NodeAdmission | None:
    """The NodeAdmission of a node, read once; None where there is none, or none that can be read. Raises ApiError."""
    if node not in found.records:
        document = api.find(admissions_path(names, node), f"read the NodeAdmission of {node}")
        try:
            found.records[node] = parse(document) if document else None
        except RecordError as error:
            found.missing.append(str(error))
            found.unread[node] = str(error)
            found.records[node] = None
    return found.records[node]


def machine_entries(found: Gathered, api: KubeApi, names: Names, node: str) -> list[Entry]:
    """What the scaler did with the node's machine; nothing where none switches it. Raises ApiError."""
    try:
        machine = machine_of(api, names, node)
    except MachineError as error:
        found.missing.append(str(error))
        return []
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return []
    return [*of_machine(machine)] if machine is not None else []


def add_files(
    found: Gathered, api: KubeApi, node: str, pods: frozenset[str], files: Files, since: datetime, now: datetime
) -> None:
    """The entries of files, and how to have those that were not given."""
    mode = _mode(api) if files.state is None or not files.audits else None
    if files.state is None:
        found.missing.append(remedies.reports(mode))
    elif node:
        state = files.state
        found.take(lambda: [*of_report(state / REPORTS, node)])
        found.take(lambda: [*of_history(state / FILE, node, since, now)])
    if not files.audits:
        found.missing.append(remedies.audits(mode))
    for path in files.audits:
        try:
            entries, garbage = of_audit(path, node, pods, since)
        except NotLookedAt as error:
            found.missing.append(str(error))
            continue
        found.entries += entries
        found.missing += [garbage] if garbage else []


def _mode(api: KubeApi) -> Mode | None:
    """How Muster stands to the cluster; None where that cannot be read, which changes no more than words."""
    try:
        config = api.find(attached_path(), "read how Muster is attached")
        return Mode.BUILT if config is None else parse_attached(config).mode
    except GpuBurninError:
        return None


def put_together(
    asked: Asked, node: str, stands: str, found: Gathered, effect: Entry | None, api: KubeApi, now: datetime,
    since: datetime, *, gang: frozenset[str] = frozenset(),
) -> Story:  # fmt: skip
    """The story of what was gathered; `effect` is what is to be explained, `gang` the other nodes of a job."""
    oldest = min((at for event in found.events if (at := time_of_event(event))), default=None)
    kept = f"the oldest here is of {oldest:%H:%M}" if oldest else "there are none"
    missing = [*found.missing, f"older events: Kubernetes keeps them for an hour, and {kept}"]
    ahead = skews(found.events).get(node, 0.0)
    ordered = in_order(one for one in found.entries if one.at >= since or one is effect)
    cause = first_cause(ordered, effect, abs(ahead), gang)
    return Story(
        asked.subject,
        asked.kind,
        node,
        stands,
        ordered,
        cause,
        tuple(missing),
        _clocks(api, node, ahead, now),
    )


def events_about(api: KubeApi, namespace: str, name: str) -> list[Object]:
    """The events of whatever has this name. Raises ApiError."""
    selector = f"involvedObject.name={name}"
    return list(api.items(in_namespace(namespace, "events"), f"list the events of {name}", fieldSelector=selector))


def in_namespace(namespace: str, resource: str) -> str:
    """Where the objects of a kind of the core API are."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/{resource}"


def _clocks(api: KubeApi, node: str, ahead_s: float, now: datetime) -> tuple[str, ...]:
    """What is known of clocks that differ."""
    told = []
    if ahead_s:
        way = "ahead of" if ahead_s > 0 else "behind"
        told.append(
            f"the clock of {node} is {abs(ahead_s):.0f} s {way} that of the API servers: times of kubelet, agent and "
            "report are its own, and the order of things closer than that is not certain"
        )
    try:
        lease = api.find(LEASE_PATH, "read the admitter's lease") or {}
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        lease = {}
    renewed = time_of((lease.get("spec") or {}).get("renewTime"))
    if renewed and renewed - now > timedelta(seconds=_SKEW_TOLD_S):
        told.append(
            f"the clock of this machine is {(renewed - now).total_seconds():.0f} s or more behind the admitter's"
        )
    return tuple(told)
