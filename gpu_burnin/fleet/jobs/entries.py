"""What Kueue and the controllers of jobs say of a job, as entries of its time line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from gpu_burnin.api.kueue import Object, Workload
from gpu_burnin.api.waits import Wait, Why, said_of_eviction
from gpu_burnin.fleet.jobs.found import Job
from gpu_burnin.fleet.why.entry import Entry, Source, What
from gpu_burnin.fleet.why.of_cluster import end_by_policy, key_of, node_of_events, time_of_event
from gpu_burnin.system.clock import NEVER, time_of
from gpu_burnin.system.host_names import name_hosts

_PREEMPTOR = re.compile(r"workload \(UID: ([^,)]*), JobUID: ([^)]*)\)")
_PATHS = re.compile(r"preemptor path: (\S+?)(?:;|$)")
_DELETED = re.compile(r"Deleted pod: (\S+)")
# Why one job had to make room for another (Kueue's preemptionMessage), in words; the longer text comes first.
_WAYS: Mapping[str, str] = {
    "reclamation within the cohort while borrowing": ", which is of a higher priority",
    "reclamation within the cohort": ", which takes back its team's own quota",
    "Fair Sharing within the cohort": ", whose team has less than its fair share",
    "prioritization in the ClusterQueue": ", which is of its own team and of a higher priority",
}
_ENDS = ("Failed", "Complete", "Completed", "FailureTarget")
_PREEMPTED, _EVICTED, _GIVEN_UP, _EVICTED_BECAUSE = "Preempted", "Evicted", "Deactivated", "EvictedDueTo"
# Of each job's way, which its conditions tell too.
_ROUTINE = frozenset({"QuotaReserved", "Admitted", "Pending"})
_SAME = timedelta(seconds=3)
_BY_CONTROLLER = "was deleted by the controller of its job"


def of_job(job: Job) -> Iterator[Entry]:
    """All but its pods and events: when it was made and started, who took it off its nodes, and how it ended."""
    if (at := time_of(job.item["metadata"].get("creationTimestamp"))) is not None:
        yield Entry(at, Source.JOB, What.TOLD, f"{job.kind} {job.key} was made")
    if job.workload is not None:
        yield from _of_workload(job.workload, job.workloads)
    yield from _ends(job.kind, job.item)
    if job.kind == "JobSet":
        for one in job.jobs:
            yield from _ends("Job", one, part=True)


def of_wait(job: Job, wait: Wait) -> Entry:
    """Why it waits, as what is to be explained."""
    given_up = wait.why in (Why.DEACTIVATED, Why.CHECK_REJECTED)
    words = f"{job.key} will not start: " if wait.never else f"{job.key} waits: "
    return Entry(wait.since, Source.KUEUE, What.EVICTED if given_up else What.WAITS, words + wait.sentence)


def ends_of_gone(job: Job, present: Iterable[str], known: Iterable[str]) -> Iterator[Entry]:
    """The ends of pods that are gone without a word of kubelet: their Job says how one failed, or that it deleted it.

    `known` are pods whose end is told otherwise.
    """
    left_out = {*present, *known}
    places = {_pod_of(event): node for event in job.events if (node := node_of_events([event]))}
    for event in sorted(job.events, key=lambda one: one.get("reason") == "SuccessfulDelete"):
        found = _DELETED.search(str(event.get("message"))) if event.get("reason") == "SuccessfulDelete" else None
        key, how = (f"{job.namespace}/{found[1]}", _BY_CONTROLLER) if found else end_by_policy(event) or ("", "")
        at = time_of_event(event)
        if key and at is not None and key not in left_out:
            left_out.add(key)
            yield Entry(at, Source.EVENT, What.ENDED, f"{key} {how}", "", "", places.get(key, ""), key)


def _pod_of(event: Object) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('namespace', '')}/{about.get('name', '')}"


def is_consequence(end: Entry) -> bool:
    """Whether a pod ended because its job did, or was stopped: another one's end comes before it."""
    return end.message.endswith(_BY_CONTROLLER)


def nodes_of(job: Job) -> tuple[str, ...]:
    """The nodes of its pods, those that are gone too: by the pods, by events, and by Kueue's choice."""
    found = {str((pod.get("spec") or {}).get("nodeName") or "") for pod in job.pods}
    found |= {node_of_events([event]) for event in job.events}
    found |= set(job.workload.nodes if job.workload is not None else ())
    return tuple(sorted(found - {""}))


def restarts_of(job: Job) -> str:
    """How often a JobSet was started again, in words; "" for never, or for a Job."""
    if job.kind != "JobSet":
        return ""
    status, policy = job.item.get("status") or {}, (job.item.get("spec") or {}).get("failurePolicy") or {}
    restarts, counted = int(status.get("restarts") or 0), int(status.get("restartsCountTowardsMax") or 0)
    if not restarts:
        return ""
    times = f"started again {restarts} time{'s' * (restarts != 1)}"
    free = f", {restarts - counted} of them free" if restarts != counted else ""
    return f"{times} ({counted} of at most {int(policy.get('maxRestarts') or 0)} count{free})"


def pods_by_key(job: Job) -> dict[str, Object]:
    """Its pods that are there."""
    return {key_of(pod): pod for pod in job.pods}


def _of_workload(job: Workload, others: Iterable[Workload]) -> Iterator[Entry]:
    reserved, admitted = job.conditions.get("QuotaReserved"), job.conditions.get("Admitted")
    if reserved is not None and reserved.status:
        nodes = f", and its nodes were chosen: {name_hosts(job.nodes)}" if job.nodes else ""
        yield Entry(reserved.at, Source.KUEUE, What.TOLD, f"it got its quota in {job.cluster_queue}{nodes}")
    if admitted is not None and admitted.status:
        yield Entry(admitted.at, Source.KUEUE, What.TOLD, "it was admitted: its pods may be made")
    for check in job.checks:
        said = f": {check.message}" if check.message else ""
        yield Entry(check.at, Source.KUEUE, What.TOLD, f"check {check.name} is {check.state}{said}")
    preempted, evicted = job.conditions.get(_PREEMPTED), job.conditions.get(_EVICTED)
    if preempted is not None and preempted.status:
        yield _of_preemption(preempted.at, Source.KUEUE, preempted.message, others)
    # What was given up is told as what is to be explained.
    if evicted is not None and evicted.status and not evicted.reason.startswith((_PREEMPTED, _GIVEN_UP)):
        yield _of_eviction(evicted.at, Source.KUEUE, evicted.message)


def of_workload_event(event: Object, others: Iterable[Workload], known: Iterable[Entry]) -> Iterator[Entry]:
    """What Kueue told of a Workload: its conditions hold the newest of each kind alone, and are `known`."""
    at, reason, message = time_of_event(event), str(event.get("reason") or ""), str(event.get("message") or "")
    message = " ".join(message.split())
    if at is None or reason == f"{_EVICTED_BECAUSE}{_PREEMPTED}":
        return
    if reason == _PREEMPTED:
        told = _of_preemption(at, Source.EVENT, message, others)
    elif reason.startswith(_EVICTED_BECAUSE):
        told = _of_eviction(at, Source.EVENT, message)
    else:
        told = Entry(at, Source.EVENT, What.TOLD, f"{reason}: {message}", routine=reason in _ROUTINE)
    if not any(one.what is told.what and abs(one.at - at) <= _SAME and told.what is not What.TOLD for one in known):
        yield told


def preemptor_team(job: Workload) -> str:
    """The team for which it had to leave; "" where it did not have to."""
    told = job.conditions.get(_PREEMPTED)
    found = _PATHS.search(told.message) if told is not None and told.status else None
    return found[1].rpartition("/")[2] if found is not None else ""


def _of_preemption(at: datetime, source: Source, message: str, others: Iterable[Workload]) -> Entry:
    return Entry(at, source, What.PREEMPTED, _preempted(message, others))


def _of_eviction(at: datetime, source: Source, message: str) -> Entry:
    return Entry(at, source, What.EVICTED, f"Kueue took it off its nodes: {said_of_eviction(message)}")


def _preempted(message: str, others: Iterable[Workload]) -> str:
    """By whom, as far as whoever asks may know: the name of another team's job is that team's."""
    who, path = _PREEMPTOR.search(message), _PATHS.search(message)
    team = path[1].rpartition("/")[2] if path is not None else ""
    by = next((one.key for one in others if who is not None and one.uid == who[1]), "")
    by = by or (f"a job of team {team}" if team else "another job")
    way = next((words for text, words in _WAYS.items() if f"due to {text}" in message), "")
    return f"it had to leave for {by}{way}"


def _ends(kind: str, item: Object, *, part: bool = False) -> Iterator[Entry]:
    name = str(item["metadata"]["name"])
    for one in (item.get("status") or {}).get("conditions") or []:
        if one.get("type") not in _ENDS or one.get("status") != "True":
            continue
        at = time_of(one.get("lastTransitionTime"))
        reason, message = str(one.get("reason") or ""), str(one.get("message") or "")
        well = one["type"] in ("Complete", "Completed")
        late = reason == "DeadlineExceeded"
        how = "ended well" if well else "is about to fail" if one["type"] == "FailureTarget" else "failed"
        what = What.DEADLINE if late else What.TOLD
        if at is not None and not (part and well):
            yield Entry(at, Source.JOB, what, f"{kind} {name} {how}: {message}", reason)


def is_failing(job: Job) -> bool:
    """Whether a Job of it has failed, and its pods are still there."""
    return any(
        one.get("type") == "FailureTarget" and one.get("status") == "True"
        for item in job.jobs
        for one in (item.get("status") or {}).get("conditions") or []
    )


def ended_at(job: Job) -> Entry | None:
    """Its failure in its own words, as what is to be explained where no pod's end is known; None while it goes on."""
    for one in (job.item.get("status") or {}).get("conditions") or []:
        if one.get("type") == "Failed" and one.get("status") == "True":
            at = time_of(one.get("lastTransitionTime")) or NEVER
            said = ": ".join(str(one[key]) for key in ("reason", "message") if one.get(key))
            return Entry(at, Source.JOB, What.ENDED, f"{job.key} failed ({said})")
    return None
