"""All that is known of a node, a pod or a job, read and put into one time line."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from urllib.parse import quote

from gpu_burnin.admission.client import ApiError, KubeApi, admissions_path, node_path
from gpu_burnin.admission.decide.words import active, ask_sentence
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, Transition
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.jobs.found import find
from gpu_burnin.fleet.why.entry import Entry, Source, What
from gpu_burnin.fleet.why.gather import (
    FORBIDDEN,
    Asked,
    Gathered,
    add_files,
    add_node,
    events_about,
    in_namespace,
    put_together,
)
from gpu_burnin.fleet.why.of_admission import is_braked, out_of_service
from gpu_burnin.fleet.why.of_cluster import (
    Object,
    end_of_events,
    key_of,
    node_of_events,
    of_event,
    of_pod,
    pods_of_events,
)
from gpu_burnin.fleet.why.of_job import story_of_job
from gpu_burnin.fleet.why.told import Files, Story
from gpu_burnin.system.clock import time_of

# How a node is named that has the name of a job too.
_NODE_FORM = "node"
_FOUND = (What.XID, What.AFTERMATH, What.FAULT)
# Of the pods of a node that is asked for.
_OF_PODS = frozenset({What.ENDED, What.DRAINED, What.OUT_OF_MEMORY, What.PREEMPTED, What.PRESSURE})


def story_of(
    api: KubeApi, names: Names, subject: str, files: Files, since: datetime, now: datetime, *, team: str = ""
) -> Story:
    """The story of NODE, NAMESPACE/POD, or a job. Raises GpuBurninError when nobody knows it.

    `team` is the namespace where a name without one is looked for by those who may not look in all of them.
    """
    namespace, _, name = subject.rpartition("/")
    if namespace == _NODE_FORM and _is_node(api, names, name):
        return _of_node(api, names, name, files, since, now)
    is_node = not namespace and _is_node(api, names, name)
    try:
        jobs = find(api, namespace, name, team)
    except GpuBurninError:
        # It is a node: that jobs of its name cannot be looked for is no reason to say nothing of it.
        if not is_node:
            raise
        jobs = []
    places = ", ".join(sorted(key_of(item) for _, item in jobs))
    if is_node and jobs:
        raise GpuBurninError(f"{subject} is a node and a job ({places}); give {_NODE_FORM}/{name}, or NAMESPACE/JOB")
    if is_node:
        return _of_node(api, names, name, files, since, now)
    if len(jobs) > 1:
        kinds = "" if len({key_of(item) for _, item in jobs}) > 1 else ", of two kinds: delete one of them"
        raise GpuBurninError(
            f"{subject}: there are several jobs of this name ({places}{kinds}); give NAMESPACE/JOB or --team TEAM"
        )
    if jobs:
        return story_of_job(api, names, *jobs[0], files, since, now)
    pods = _pods(api, namespace, name, team)
    if len({key_of(pod) for pod in pods}) > 1:
        places = ", ".join(sorted(key_of(pod) for pod in pods))
        raise GpuBurninError(f"{subject}: there are several pods of this name ({places}); give NAMESPACE/POD")
    namespace = str(pods[0]["metadata"]["namespace"]) if pods else namespace or team
    if not pods and (not namespace or not events_about(api, namespace, name)):
        raise GpuBurninError(
            f"{subject}: {api.server} knows no node, pod or job of this name, and no event of it is left (they are "
            "kept for an hour); give NODE, NAMESPACE/POD or NAMESPACE/JOB, or the node on which it ran"
        )
    kind = "pod" if pods or not pods_of_events(events_about(api, namespace, name)) else "job"
    return _of_pods(api, names, Asked(f"{namespace}/{name}", kind, namespace, name), pods, files, since, now)


def _is_node(api: KubeApi, names: Names, name: str) -> bool:
    """Whether there is a node of this name, as far as whoever asks may know."""
    for path in (admissions_path(names, name), node_path(name)):
        try:
            if api.find(path):
                return True
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
    return False


def _of_node(api: KubeApi, names: Names, node: str, files: Files, since: datetime, now: datetime) -> Story:
    found = Gathered()
    record = add_node(found, api, names, node)
    pods = list(api.items("/api/v1/pods", "list the node's pods", fieldSelector=f"spec.nodeName={node}"))
    for pod in pods:
        found.entries += (entry for entry in of_pod(pod) if entry.what in _OF_PODS)
    add_files(found, api, node, frozenset(key_of(pod) for pod in pods), files, since, now)
    out = out_of_service(record) if record else None
    effect = next((one for one in found.entries if out and _is_of(one, out)), None)
    if record is None or record.status.accepted is None:
        # It never was in service: what its burn-in found keeps it out, which the cluster does not hear of.
        effect = next((one for one in found.entries if one.source is Source.REPORT and one.what in _FOUND), effect)
    if record is not None and is_braked(record):
        # It is at work, so that nothing took it out: what should have is explained.
        effect = max((one for one in found.entries if one.what in _FOUND), key=lambda one: one.at, default=effect)
    stands = found.unread[node] if record is None else _stands(node, record, now)
    return put_together(Asked(node, "node", "", node), node, stands, found, effect, api, now, since)


def _is_of(entry: Entry, step: Transition) -> bool:
    """Whether an entry is this change of state: of its second there may be an ask or a test too."""
    of_it = entry.source is Source.ADMISSION and entry.at == time_of(step.at) and entry.code == step.code
    return of_it and entry.message.endswith(step.message)


def _of_pods(
    api: KubeApi, names: Names, asked: Asked, pods: list[Object], files: Files, since: datetime, now: datetime
) -> Story:
    """Of a pod, or of the pods of a job: that which ended first is explained, since the others often follow it."""
    found = Gathered()
    for pod in pods:
        found.entries += of_pod(pod)
    present = {key_of(pod) for pod in pods}
    events = events_about(api, asked.namespace, asked.name)
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
    of_it = gone.get(key) or (events if key == asked.subject else events_about(api, *key.split("/", 1)))
    place = next((str(pod["spec"].get("nodeName") or "") for pod in pods if key_of(pod) == key), "")
    node = place or node_of_events(of_it) or next((str(pod["spec"].get("nodeName") or "") for pod in pods), "")
    found.events += of_it
    for event in found.events:
        found.entries += of_event(event, node)
    if node:
        add_node(found, api, names, node)
    add_files(found, api, node, frozenset({key, *present, *gone}), files, since, now)
    return put_together(asked, node, _pods_stand(asked, pods, len(gone)), found, effect, api, now, since)


def _events_of_pods(api: KubeApi, namespace: str, names: frozenset[str]) -> dict[str, list[Object]]:
    """The events of pods that are gone, in one list of the namespace however many they are."""
    found: dict[str, list[Object]] = {f"{namespace}/{name}": [] for name in names}
    if found:
        selector = "involvedObject.kind=Pod"
        for event in api.items(in_namespace(namespace, "events"), "list the events of pods", fieldSelector=selector):
            if (told := found.get(f"{namespace}/{event['involvedObject'].get('name')}")) is not None:
                told.append(event)
    return found


def _stands(node: str, record: NodeAdmission, now: datetime) -> str:
    """What was found, what people ask, and what comes next or keeps it from coming, in this order."""
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


def _pods_stand(asked: Asked, pods: list[Object], gone: int) -> str:
    phases = sorted(_phase(pod).lower() for pod in pods)
    if asked.kind == "pod":
        return f"{asked.subject}: {phases[0]}" if phases else f"{asked.subject} is gone"
    counts = [f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases)] + [f"{gone} gone"] * bool(gone)
    ended = f"{asked.ended}; " if asked.ended else ""
    return f"{asked.subject}: {ended}pods: {', '.join(counts) or 'none is known'}"


def _phase(pod: Object) -> str:
    leaving = pod["metadata"].get("deletionTimestamp")
    return "leaving" if leaving else str((pod.get("status") or {}).get("phase") or "unknown")


def _pods(api: KubeApi, namespace: str, name: str, team: str) -> list[Object]:
    if namespace:
        found = api.find(f"{in_namespace(namespace, 'pods')}/{quote(name, safe='')}", f"read pod {namespace}/{name}")
        return [found] if found else []
    try:
        return list(api.items("/api/v1/pods", "look for the pod", fieldSelector=f"metadata.name={name}"))
    except ApiError as error:
        if error.status != FORBIDDEN or not team:
            raise
        return _pods(api, team, name, "")
