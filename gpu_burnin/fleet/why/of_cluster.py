"""What pods and Kubernetes' events say, as entries. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from gpu_burnin.api.jobs import START_AGAIN
from gpu_burnin.fleet.why.entry import Entry, Source, What, kind_of_finding
from gpu_burnin.system.clock import time_of

Object: TypeAlias = Mapping[str, Any]
_COMPONENT = "muster-admitter"
# Reasons of Kubernetes' own events that explain something (pkg/kubelet/events, the node lifecycle controller, the
# scheduler, the taint manager); all others are told and explain nothing.
_OF_REASON: Mapping[str, What] = {
    "OOMKilling": What.OUT_OF_MEMORY,
    "SystemOOM": What.OUT_OF_MEMORY,
    "Preempted": What.PREEMPTED,
    "Evicted": What.PRESSURE,
    "EvictionThresholdMet": What.PRESSURE,
    "TaintManagerEviction": What.DRAINED,
    "MusterAskedToLeave": What.DRAINED,
    "NodeNotReady": What.LOST,
    "NodeNotSchedulable": What.PERSON,
    "Released": What.PERSON,
    "Rebooted": What.BOOTED,
    # Of Jobs and their pods (the job controller, the scheduler).
    "FailedCreate": What.REFUSED,
    "DeadlineExceeded": What.DEADLINE,
    "FailedScheduling": What.UNPLACED,
}
_IMAGE = re.compile(r"\bpull(?:ing)?\b.* image|ErrImage|ImagePullBackOff|InvalidImageName", re.IGNORECASE)
# Kubernetes' own words on a container that a Job's podFailurePolicy has a rule for.
_FAILED_WITH = re.compile(r"for pod (\S+) failed with exit code (\d+)")
_DISRUPTED = re.compile(r"Pod (\S+) has condition (\S+) matching")
# Reasons of a container that waits (kubelet's pkg/kubelet/images).
NO_IMAGE = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
# Exit codes of a process that SIGKILL or SIGTERM ended: somebody else's doing.
_KILLED = frozenset({0, 137, 143})
_MOST_LAST_WORDS = 300
# Who tells of a Node what comes at each of its starts; a warning of them is told as it is, but for those of each start.
_OF_STARTS = frozenset({"kubelet", "kube-proxy", "node-controller", "node-lifecycle-controller", "cidrAllocator"})
_WARNINGS_OF_STARTS = frozenset({"InvalidDiskCapacity", "CgroupV1"})
# Reasons of a pod's condition DisruptionTarget (KEP-3329).
_OF_DISRUPTION: Mapping[str, What] = {
    "PreemptionByScheduler": What.PREEMPTED,
    "DeletionByTaintManager": What.DRAINED,
    "EvictionByEvictionAPI": What.DRAINED,
    "DeletionByPodGC": What.LOST,
    "TerminationByKubelet": What.PRESSURE,
}
_MUSTER_STATE = re.compile(r"Muster([A-Z][a-z]+)")
_ASSIGNED = re.compile(r"Successfully assigned \S+ to (\S+)")
_CREATED = re.compile(r"Created pod: (\S+)")
_CODE = re.compile(r"([A-Z][A-Z0-9_]{2,}): (.*)", re.DOTALL)
# Fewer events than these say nothing of a clock, and less than these seconds is the time that a request takes.
_LEAST_EVENTS, _LEAST_SKEW_S = 3, 5.0


def key_of(pod: Object) -> str:
    """NAMESPACE/NAME."""
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata'].get('name', '')}"


def of_pod(pod: Object) -> Iterator[Entry]:
    """How a pod ran: its start, its containers' ends, who disrupted it, and its end."""
    status, key = pod.get("status") or {}, key_of(pod)
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    ends: list[datetime] = []
    if at := time_of(status.get("startTime")):
        yield Entry(at, Source.POD, What.TOLD, f"{key} started on {node or '-'}", node=node, pod=key)
    for condition in status.get("conditions") or []:
        at = time_of(condition.get("lastTransitionTime"))
        if at and condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            kind = _OF_DISRUPTION.get(str(condition.get("reason")), What.TOLD)
            message = str(condition.get("message") or "its end was asked for")
            yield Entry(at, Source.POD, kind, message, str(condition.get("reason") or ""), node=node, pod=key)
    for container in (*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in NO_IMAGE and (at := time_of(status.get("startTime"))):
            said = " ".join(f"{waiting['reason']}: {waiting.get('message') or container.get('image')}".split())
            yield Entry(at, Source.POD, What.IMAGE, f"{key} cannot have its image: {said}", node=node, pod=key)
        ended = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
        if not ended or not (at := time_of(ended.get("finishedAt"))):
            continue
        ends.append(at)
        code, reason = ended.get("exitCode"), str(ended.get("reason") or "")
        message = f"container {container.get('name')} of {key} ended with exit code {code}"
        message += f" ({reason})" if reason else ""
        message += ": it saved its work and asks to be started again" if code == START_AGAIN else _last_words(ended)
        kind = What.OUT_OF_MEMORY if reason == "OOMKilled" else _of_exit(code)
        yield Entry(at, Source.POD, kind, message, node=node, pod=key)
    deleted = _deleted(pod)
    phase = str(status.get("phase") or "")
    if phase in ("Failed", "Succeeded") or deleted:
        said = ": ".join(str(status[name]) for name in ("reason", "message") if status.get(name))
        how = {"Failed": "failed", "Succeeded": "ended well"}.get(phase, "was deleted")
        if at := max(ends, default=deleted or time_of(status.get("startTime"))):
            message = f"{key} {how}{f' ({said})' if said else ''}"
            kind = What.TOLD if phase == "Succeeded" else What.ENDED
            yield Entry(at, Source.POD, kind, message, node=node, pod=key)


def _deleted(pod: Object) -> datetime | None:
    """When its deletion was asked for: deletionTimestamp is the end of the time that it has to leave."""
    until = time_of(pod["metadata"].get("deletionTimestamp"))
    return until - timedelta(seconds=int(pod["metadata"].get("deletionGracePeriodSeconds") or 0)) if until else None


def _of_exit(code: object) -> What:
    """A program that ended itself, unless it was killed or ended well."""
    return What.EXITED if isinstance(code, int) and code not in _KILLED else What.TOLD


def _last_words(ended: Object) -> str:
    """The end of what a container has left as its message, which may be of its log (terminationMessagePolicy)."""
    words = printable(" ".join(str(ended.get("message") or "").split()))
    return f": {'... ' * (len(words) > _MOST_LAST_WORDS)}{words[-_MOST_LAST_WORDS:]}" if words else ""


def printable(text: str) -> str:
    """A line of a program without what would steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def time_of_event(event: Object) -> datetime | None:
    """When it was seen last."""
    series = event.get("series") or {}
    for text in (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime")):
        if text and (at := time_of(text)):
            return at
    return time_of(event.get("firstTimestamp")) or time_of((event.get("metadata") or {}).get("creationTimestamp"))


def of_event(event: Object, node: str = "") -> Iterator[Entry]:
    """One event, of a Node, or of a pod on `node`."""
    about, reason = event.get("involvedObject") or {}, str(event.get("reason") or "")
    message, at = " ".join(str(event.get("message") or "").split()), time_of_event(event)
    if at is None:
        return
    is_pod = about.get("kind") == "Pod"
    key = f"{about.get('namespace', '')}/{about.get('name', '')}" if is_pod else ""
    place = node or (str(about.get("name") or "") if about.get("kind", "Node") == "Node" else "")
    kind, code = _OF_REASON.get(reason, What.TOLD), ""
    if is_pod and kind is What.TOLD and event.get("type") != "Normal" and _IMAGE.search(message):
        kind = What.IMAGE
    elif reason == "PodFailurePolicy" and (failed := _FAILED_WITH.search(message)) is not None:
        kind, key = _of_exit(int(failed[2])), failed[1]
    component = str((event.get("source") or {}).get("component") or event.get("reportingComponent") or "")
    if component == _COMPONENT and _MUSTER_STATE.fullmatch(reason):
        # The NodeAdmission has the same change, with its time to the second.
        code, message = match.groups() if (match := _CODE.fullmatch(message)) else ("", message)
        kind = What.TOLD
    elif kind is What.TOLD and "xid" in message.lower():
        kind = kind_of_finding("", message)
    routine = kind is What.TOLD and not is_pod and component in _OF_STARTS
    routine &= event.get("type") != "Warning" or reason in _WARNINGS_OF_STARTS
    count = int(event.get("count") or 1)
    times = f" ({count} times)" if count > 1 else ""
    yield Entry(at, Source.EVENT, kind, f"{reason}: {message}{times}", code, "", place, key, routine=routine)


def node_of_events(events: Iterable[Object]) -> str:
    """The node that a pod was placed on, by the scheduler's event; "" where that is gone."""
    for event in events:
        if event.get("reason") == "Scheduled" and (match := _ASSIGNED.search(str(event.get("message")))):
            return match[1]
    return ""


def pods_of_events(events: Iterable[Object]) -> frozenset[str]:
    """Names of the pods that a job made, by its own events: a pod that was evicted is gone, and these are left."""
    found = (_CREATED.search(str(e.get("message"))) for e in events if e.get("reason") == "SuccessfulCreate")
    return frozenset(match[1] for match in found if match)


def end_by_policy(event: Object) -> tuple[str, str] | None:
    """The pod whose end a Job tells by a rule of its podFailurePolicy, and how it ended; None for other events."""
    if event.get("reason") != "PodFailurePolicy":
        return None
    message = str(event.get("message"))
    if (found := _FAILED_WITH.search(message)) is not None:
        return found[1], f"ended with exit code {found[2]}"
    if (found := _DISRUPTED.search(message)) is not None:
        return found[1], f"was ended from outside ({found[2]})"
    return None


def end_of_job(job: Object) -> str:
    """How a job ended, in its own words; "" while it goes on."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("type") in ("Failed", "Complete", "Completed") and condition.get("status") == "True":
            said = ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
            return f"{'failed' if condition['type'] == 'Failed' else 'ended well'}{f' ({said})' if said else ''}"
    return ""


def end_of_events(entries: Iterable[Entry], pod: str) -> Entry | None:
    """The end of a pod that is gone, by kubelet's last word on it: the event Killing."""
    ends = [one for one in entries if one.pod == pod and one.message.startswith(("Killing:", "TaintManagerEviction:"))]
    last = max(ends, key=lambda one: one.at, default=None)
    if last is None:
        return None
    return Entry(last.at, Source.EVENT, What.ENDED, f"{pod} was stopped", "", "", last.node, pod)


def skews(events: Iterable[Object]) -> dict[str, float]:
    """By how many seconds the clocks of kubelets are ahead of the API servers', where that is worth telling.

    An event that came once has the time of who saw it, and that of the API server which took it.
    """
    found: dict[str, list[float]] = {}
    for event in events:
        source = event.get("source") or {}
        seen = time_of(event.get("firstTimestamp"))
        taken = time_of((event.get("metadata") or {}).get("creationTimestamp"))
        if source.get("component") == "kubelet" and source.get("host") and seen and taken:
            found.setdefault(str(source["host"]), []).append((seen - taken).total_seconds())
    medians = {host: statistics.median(values) for host, values in found.items() if len(values) >= _LEAST_EVENTS}
    return {host: value for host, value in medians.items() if abs(value) >= _LEAST_SKEW_S}
