"""All that is known of a node, a pod or a job, read and put into one time line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpu_burnin.admission.client import KubeApi, admissions_path, node_path
from gpu_burnin.admission.decide.words import active, ask_sentence
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, RecordError, Transition, parse
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet import REPORTS
from gpu_burnin.fleet.cluster.admissions import LEASE_PATH
from gpu_burnin.fleet.history import FILE
from gpu_burnin.fleet.why.cause import Cause, first_cause, in_order
from gpu_burnin.fleet.why.entry import Entry, Source, What, time_of
from gpu_burnin.fleet.why.of_admission import is_braked, note_of, of_admission, of_note, out_of_service
from gpu_burnin.fleet.why.of_cluster import (
    Object,
    end_of_events,
    end_of_job,
    key_of,
    node_of_events,
    of_event,
    of_pod,
    pods_of_events,
    skews,
    time_of_event,
)
from gpu_burnin.fleet.why.of_files import NotLookedAt, of_audit, of_history, of_report

SCHEMA = "muster-why/v1"
_SKEW_TOLD_S = 5.0
# Of the pods of a node that is asked for.
_FOUND = (What.XID, What.AFTERMATH, What.FAULT)
_OF_PODS = frozenset({What.ENDED, What.DRAINED, What.OUT_OF_MEMORY, What.PREEMPTED, What.PRESSURE})


@dataclass(frozen=True)
class Files:
    """Where files lie: the inventory's fleet_state_dir, and audit logs of the API servers."""

    state: Path | None = None
    audits: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Story:
    """`kind` is node, pod or job. `stands` says how it is now; `missing` and `clocks` are sentences."""

    subject: str
    kind: str
    node: str
    stands: str
    entries: tuple[Entry, ...]
    cause: Cause
    missing: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        first, before = self.cause.first, self.cause.before
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "kind": self.kind,
            "node": self.node,
            "stands": self.stands,
            "first_cause": _as_json(first) if first else None,
            "before_it": _as_json(before) if before else None,
            "chain": [_as_json(one) for one in self.cause.chain],
            "timeline": [_as_json(one) for one in self.entries],
            "not_looked_at": [*self.missing],
            "clocks": [*self.clocks],
        }


@dataclass
class _Gathered:
    """What is found on the way."""

    entries: list[Entry] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def take(self, read: Callable[[], Iterable[Entry]]) -> None:
        """Take the entries of a source; what cannot be read is said, and hides no other."""
        try:
            self.entries += read()
        except GpuBurninError as error:
            self.missing.append(str(error))


def story_of(api: KubeApi, names: Names, subject: str, files: Files, since: datetime, now: datetime) -> Story:
    """The story of NODE, NAMESPACE/POD, or a job. Raises GpuBurninError when nobody knows it."""
    namespace, _, name = subject.rpartition("/")
    if not namespace and (api.find(admissions_path(names, name)) or api.find(node_path(name))):
        return _of_node(api, names, name, files, since, now)
    pods, jobs = _pods(api, namespace, name), _jobs(api, namespace, name)
    if jobs:
        if len(jobs) > 1:
            places = ", ".join(sorted(key_of(job) for job in jobs))
            raise GpuBurninError(f"{subject}: there are several jobs of this name ({places}); give NAMESPACE/JOB")
        namespace = str(jobs[0]["metadata"]["namespace"])
        asked = _Asked(f"{namespace}/{name}", "job", namespace, name, end_of_job(jobs[0]))
        return _of_pods(api, names, asked, _pods_of_job(api, asked), files, since, now)
    if len({key_of(pod) for pod in pods}) > 1:
        places = ", ".join(sorted(key_of(pod) for pod in pods))
        raise GpuBurninError(f"{subject}: there are several pods of this name ({places}); give NAMESPACE/POD")
    if pods:
        namespace = str(pods[0]["metadata"]["namespace"])
    elif not namespace or not _events(api, namespace, name):
        raise GpuBurninError(
            f"{subject}: {api.server} knows no node, pod or job of this name, and no event of it is left (they are "
            "kept for an hour); give NODE, NAMESPACE/POD or NAMESPACE/JOB, or the node on which it ran"
        )
    kind = "pod" if pods or not pods_of_events(_events(api, namespace, name)) else "job"
    return _of_pods(api, names, _Asked(f"{namespace}/{name}", kind, namespace, name), pods, files, since, now)


@dataclass(frozen=True)
class _Asked:
    """`ended`: how a job says that it ended."""

    subject: str
    kind: str
    namespace: str
    name: str
    ended: str = ""


def _of_node(api: KubeApi, names: Names, node: str, files: Files, since: datetime, now: datetime) -> Story:
    found = _Gathered()
    record = _add_node(found, api, names, node)
    pods = list(api.items("/api/v1/pods", "list the node's pods", fieldSelector=f"spec.nodeName={node}"))
    for pod in pods:
        found.entries += (entry for entry in of_pod(pod) if entry.what in _OF_PODS)
    _add_files(found, node, frozenset(key_of(pod) for pod in pods), files, since, now)
    out = out_of_service(record) if record else None
    effect = next((one for one in found.entries if out and _is_of(one, out)), None)
    if record is None or record.status.accepted is None:
        # It never was in service: what its burn-in found keeps it out, which the cluster does not hear of.
        effect = next((one for one in found.entries if one.source is Source.REPORT and one.what in _FOUND), effect)
    if record is not None and is_braked(record):
        # It is at work, so that nothing took it out: what should have is explained.
        effect = max((one for one in found.entries if one.what in _FOUND), key=lambda one: one.at, default=effect)
    return _story(_Asked(node, "node", "", node), node, _stands(node, record, now), found, effect, api, now, since)


def _is_of(entry: Entry, step: Transition) -> bool:
    """Whether an entry is this change of state: of its second there may be an ask or a test too."""
    of_it = entry.source is Source.ADMISSION and entry.at == time_of(step.at) and entry.code == step.code
    return of_it and entry.message.endswith(step.message)


def _of_pods(
    api: KubeApi, names: Names, asked: _Asked, pods: list[Object], files: Files, since: datetime, now: datetime
) -> Story:
    """Of a pod, or of the pods of a job: that which ended first is explained, since the others often follow it."""
    found = _Gathered()
    for pod in pods:
        found.entries += of_pod(pod)
    present = {key_of(pod) for pod in pods}
    events = _events(api, asked.namespace, asked.name)
    gone = {asked.subject: events} if asked.kind == "pod" and not pods else {}
    if asked.kind == "job":
        found.events += events
        gone = _events_of_pods(api, asked.namespace, pods_of_events(events) - {key.split("/")[1] for key in present})
    ends = [one for one in found.entries if one.what is What.ENDED]
    for key, told in gone.items():
        entries = [entry for event in told for entry in of_event(event, node_of_events(told))]
        if end := end_of_events(entries, key):
            ends.append(end)
            found.entries.append(end)
    effect = min(ends, key=lambda one: one.at, default=None)
    key = effect.pod if effect else asked.subject
    of_it = gone.get(key) or (events if key == asked.subject else _events(api, *key.split("/", 1)))
    place = next((str(pod["spec"].get("nodeName") or "") for pod in pods if key_of(pod) == key), "")
    node = place or node_of_events(of_it) or next((str(pod["spec"].get("nodeName") or "") for pod in pods), "")
    found.events += of_it
    for event in found.events:
        found.entries += of_event(event, node)
    if node:
        _add_node(found, api, names, node)
    _add_files(found, node, frozenset({key, *present, *gone}), files, since, now)
    return _story(asked, node, _pods_stand(asked, pods, len(gone)), found, effect, api, now, since)


def _pods_of_job(api: KubeApi, asked: _Asked) -> list[Object]:
    label = f"job-name={asked.name}"
    return list(api.items(_in(asked.namespace, "pods"), "list the job's pods", labelSelector=label))


def _events_of_pods(api: KubeApi, namespace: str, names: frozenset[str]) -> dict[str, list[Object]]:
    """The events of pods that are gone, in one list of the namespace however many they are."""
    found: dict[str, list[Object]] = {f"{namespace}/{name}": [] for name in names}
    if found:
        selector = "involvedObject.kind=Pod"
        for event in api.items(_in(namespace, "events"), "list the events of pods", fieldSelector=selector):
            if (told := found.get(f"{namespace}/{event['involvedObject'].get('name')}")) is not None:
                told.append(event)
    return found


def _add_node(found: _Gathered, api: KubeApi, names: Names, node: str) -> NodeAdmission | None:
    """The entries of a node's objects; its record."""
    record, steps = None, set[tuple[str, datetime]]()
    try:
        document = api.find(admissions_path(names, node), f"read the NodeAdmission of {node}")
        record = parse(document) if document else None
    except RecordError as error:
        found.missing.append(str(error))
    if record is None:
        found.missing.append(f"{node} has no NodeAdmission that can be read: what the admitter did is not known")
    else:
        found.entries += of_admission(record)
        # What people ask has no code, and no second teller.
        steps = {(one.code, one.at) for one in found.entries if one.source is Source.ADMISSION and one.code}
    note, why = note_of(api.find(node_path(node), f"read node {node}"), names)
    if note is None:
        found.missing.append(f"{node}: {why}")
    else:
        found.entries += of_note(node, note)
    events = _events(api, "default", node)
    found.events += events
    for event in events:
        # The admitter tells of each change twice; once is enough for people.
        found.entries += (replace(one, quiet=(one.code, one.at) in steps) for one in of_event(event))
    return record


def _add_files(found: _Gathered, node: str, pods: frozenset[str], files: Files, since: datetime, now: datetime) -> None:
    if files.state is None:
        found.missing.append("reports and plays: give --state, the inventory's fleet_state_dir")
    elif node:
        state = files.state
        found.take(lambda: [*of_report(state / REPORTS, node)])
        found.take(lambda: [*of_history(state / FILE, node, since, now)])
    if not files.audits:
        found.missing.append(
            "what people did by the API: give --audit FILE, a copy of /var/log/kubernetes/audit.log of each API server"
        )
    for path in files.audits:
        try:
            entries, garbage = of_audit(path, node, pods, since)
        except NotLookedAt as error:
            found.missing.append(str(error))
            continue
        found.entries += entries
        found.missing += [garbage] if garbage else []


def _story(
    asked: _Asked, node: str, stands: str, found: _Gathered, effect: Entry | None, api: KubeApi, now: datetime,
    since: datetime,
) -> Story:  # fmt: skip
    oldest = min((at for event in found.events if (at := time_of_event(event))), default=None)
    kept = f"the oldest here is of {oldest:%H:%M}" if oldest else "there are none"
    missing = [*found.missing, f"older events: Kubernetes keeps them for an hour, and {kept}"]
    ahead = skews(found.events).get(node, 0.0)
    ordered = in_order(one for one in found.entries if one.at >= since or one is effect)
    cause = first_cause(ordered, effect, abs(ahead))
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


def _clocks(api: KubeApi, node: str, ahead_s: float, now: datetime) -> tuple[str, ...]:
    """What is known of clocks that differ."""
    told = []
    if ahead_s:
        way = "ahead of" if ahead_s > 0 else "behind"
        told.append(
            f"the clock of {node} is {abs(ahead_s):.0f} s {way} that of the API servers: times of kubelet, agent and "
            "report are its own, and the order of things closer than that is not certain"
        )
    lease = api.find(LEASE_PATH, "read the admitter's lease") or {}
    renewed = time_of((lease.get("spec") or {}).get("renewTime"))
    if renewed and renewed - now > timedelta(seconds=_SKEW_TOLD_S):
        told.append(
            f"the clock of this machine is {(renewed - now).total_seconds():.0f} s or more behind the admitter's"
        )
    return tuple(told)


def _stands(node: str, record: NodeAdmission | None, now: datetime) -> str:
    """What was found, what people ask, and what comes next or keeps it from coming, in this order."""
    if record is None:
        return f"{node} has no NodeAdmission"
    status = record.status
    why = ": ".join(part for part in (status.code, status.message) if part)
    since = f" since {status.since}" if status.since else ""
    asks = "".join(f"; {told}" for told in _asks(record, now) if told not in status.message)
    coming = f"; next: {status.next.what}: {status.next.why}" if status.next else ""
    return f"{node} is {status.state}{since}{f' ({why})' if why else ''}{asks}{coming}"


def _asks(record: NodeAdmission, now: datetime) -> Iterator[str]:
    """What people ask that stands and is not done."""
    spec = record.spec
    for words, ask in (("put in quarantine", spec.quarantine), ("held", spec.hold), ("in repair", spec.repair)):
        if (standing := active(ask, now)) is not None:
            yield ask_sentence(words, standing)
    if (retest := active(spec.retest, now)) is not None and retest.since != record.status.retested:
        yield ask_sentence("asked for a test", retest)


def _pods_stand(asked: _Asked, pods: list[Object], gone: int) -> str:
    phases = sorted(_phase(pod).lower() for pod in pods)
    if asked.kind == "pod":
        return f"{asked.subject}: {phases[0]}" if phases else f"{asked.subject} is gone"
    counts = [f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases)] + [f"{gone} gone"] * bool(gone)
    ended = f"{asked.ended}; " if asked.ended else ""
    return f"{asked.subject}: {ended}pods: {', '.join(counts) or 'none is known'}"


def _phase(pod: Object) -> str:
    leaving = pod["metadata"].get("deletionTimestamp")
    return "leaving" if leaving else str((pod.get("status") or {}).get("phase") or "unknown")


def _pods(api: KubeApi, namespace: str, name: str) -> list[Object]:
    if namespace:
        found = api.find(f"{_in(namespace, 'pods')}/{quote(name, safe='')}", f"read pod {namespace}/{name}")
        return [found] if found else []
    return list(api.items("/api/v1/pods", "look for the pod", fieldSelector=f"metadata.name={name}"))


def _jobs(api: KubeApi, namespace: str, name: str) -> list[Object]:
    path = f"/apis/batch/v1/namespaces/{quote(namespace, safe='')}/jobs" if namespace else "/apis/batch/v1/jobs"
    return list(api.items(path, "look for the job", fieldSelector=f"metadata.name={name}"))


def _events(api: KubeApi, namespace: str, name: str) -> list[Object]:
    return list(
        api.items(_in(namespace, "events"), f"list the events of {name}", fieldSelector=f"involvedObject.name={name}")
    )


def _in(namespace: str, resource: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/{resource}"


def _as_json(entry: Entry) -> dict[str, str]:
    return {
        "at": entry.at.isoformat().replace("+00:00", "Z"),
        "source": str(entry.source),
        "what": str(entry.what),
        "code": entry.code,
        "message": entry.message,
        "who": entry.who,
        "node": entry.node,
        "pod": entry.pod,
    }
