"""Why the pods of a job that has its nodes do not run yet, in one sentence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from gpu_burnin.api.jobs import HOSTNAME
from gpu_burnin.api.kueue import Object
from gpu_burnin.api.waits import Wait, Why
from gpu_burnin.fleet.why.of_cluster import NO_IMAGE, time_of_event
from gpu_burnin.system.clock import NEVER, time_of

_NO_CONTAINER = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_CRASHES = "CrashLoopBackOff"
# What a job's controller says of a pod that a policy or a quota of the namespace has refused.
_POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request: (.*)")
_FORBIDDEN = re.compile(r'Error creating: pods "[^"]*" is forbidden: (.*)')
_UNSCHEDULABLE, _GATED = "Unschedulable", "SchedulingGated"
# What the scheduler says of a pod of a native gang that has a place and waits for one that has none.
_FOR_PEERS = "pod group is unschedulable"


def why_pods_wait(pods: Sequence[Object], wanted: int, events: Iterable[Object], since: datetime) -> Wait | None:
    """Why not all of `wanted` pods run; None where they do. `since` is when the job had its nodes."""
    alive = [pod for pod in pods if not _is_over(pod)]
    if len(alive) < wanted and (refused := _refused(events, since)) is not None:
        return refused
    for look in (_container, _unplaced, _starting):
        if (found := look(alive, since)) is not None:
            return found
    if not pods and wanted:
        return Wait(Why.NO_PODS, "it has its nodes, and no pod of it is made yet", since)
    return None


def _is_over(pod: Object) -> bool:
    over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return over or bool(pod["metadata"].get("deletionTimestamp"))


def _refused(events: Iterable[Object], since: datetime) -> Wait | None:
    """The newest refusal of a pod since the job has had its nodes."""
    told = [one for one in events if one.get("reason") == "FailedCreate"]
    told = [one for one in told if (time_of_event(one) or NEVER) >= since]
    last = max(told, key=lambda one: time_of_event(one) or NEVER, default=None)
    if last is None:
        return None
    first = min(filter(None, map(time_of_event, told)))
    return Wait(Why.POD_REFUSED, refusal(str(last.get("message") or "")), first)


def refusal(message: str) -> str:
    """Which policy refuses pods, and its words."""
    words = " ".join(message.split())
    if (found := _POLICY.search(words)) is not None:
        return f"its pods are refused by policy {found[1]}: {found[2]}"
    if (found := _FORBIDDEN.search(words)) is not None:
        return f"its pods are refused: {found[1]}"
    return f"its pods cannot be made: {words}"


def _container(pods: Iterable[Object], since: datetime) -> Wait | None:
    """An image that cannot be had comes before all else: the other pods have the same one."""
    for reasons, why, words in (
        (NO_IMAGE, Why.IMAGE, "its image cannot be had"),
        (_NO_CONTAINER, Why.CONTAINER, "its container cannot be made"),
        (frozenset({_CRASHES}), Why.CONTAINER, "its container ends each time it is started"),
    ):
        stuck = [(pod, one) for pod in pods for one in _waiting(pod) if one[1] in reasons]
        if stuck:
            pod, (image, reason, message) = stuck[0]
            count = f"{len(stuck):,} pods" if len(stuck) > 1 else f"pod {pod['metadata']['name']}"
            node = str((pod.get("spec") or {}).get("nodeName") or "")
            on = f" on {node}" if node else ""
            told = f": {message}" if message else ""
            return Wait(why, f"{words}: {image} ({reason}, {count}{on}){told}", _since(pod, since))
    return None


def _waiting(pod: Object) -> list[tuple[str, str, str]]:
    """Image, reason and message of each container that waits."""
    status, found = pod.get("status") or {}, []
    for one in (*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])):
        waiting: Mapping[str, object] = (one.get("state") or {}).get("waiting") or {}
        if waiting:
            message = " ".join(str(waiting.get("message") or "").split())
            found.append((str(one.get("image") or one.get("name")), str(waiting.get("reason") or ""), message))
    return found


def _unplaced(pods: Iterable[Object], since: datetime) -> Wait | None:
    for reason, why in ((_UNSCHEDULABLE, Why.UNPLACED), (_GATED, Why.GATED)):
        stuck = [(pod, one) for pod in pods if (one := _not_scheduled(pod)) is not None and one.get("reason") == reason]
        if not stuck:
            continue
        peers = [one for one in stuck if str(one[1].get("message") or "").startswith(_FOR_PEERS)]
        stuck = [one for one in stuck if one not in peers] or stuck
        pod, told = stuck[0]
        count = f"{len(stuck):,} of its pods have" if len(stuck) > 1 else f"pod {pod['metadata']['name']} has"
        at = time_of(told.get("lastTransitionTime")) or since
        if reason == _GATED:
            gates = ", ".join(str(one.get("name")) for one in (pod.get("spec") or {}).get("schedulingGates") or [])
            sentence = f"{count} no node yet: Kueue has not taken their gate away ({gates or 'no name'})"
            return Wait(why, sentence, at)
        places = tuple(sorted({place for one, _ in stuck if (place := _place(one))}))
        only = f", which may only run on {', '.join(places[:3])}" if places else ""
        message = " ".join(str(told.get("message") or "").split()).partition(" no new claims")[0]
        waiting = f"wait{'s' if len(peers) == 1 else ''} for that"
        rest = f"; {len(peers):,} more of its gang {waiting}" if peers and peers != stuck else ""
        return Wait(why, f"{count} no node{only}: {message.rstrip('.')}{rest}", at, places)
    return None


def _starting(pods: Sequence[Object], since: datetime) -> Wait | None:
    stuck = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Pending"]
    if not stuck:
        return None
    nodes = tuple(sorted({str((pod.get("spec") or {}).get("nodeName") or "") for pod in stuck} - {""}))
    on = f" on {', '.join(nodes[:3])}{' and others' if len(nodes) > 3 else ''}" if nodes else ""
    return Wait(Why.STARTING, f"{len(stuck):,} of its pods are being started{on}", _since(stuck[0], since), nodes)


def _not_scheduled(pod: Object) -> Object | None:
    for one in (pod.get("status") or {}).get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            found: Object = one
            return found
    return None


def _place(pod: Object) -> str:
    """The one node that Kueue has chosen for a pod."""
    return str(((pod.get("spec") or {}).get("nodeSelector") or {}).get(HOSTNAME) or "")


def _since(pod: Object, since: datetime) -> datetime:
    return time_of((pod.get("status") or {}).get("startTime")) or since
