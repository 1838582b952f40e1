"""Why a job waits for its nodes, in one sentence, from what Kueue has written on its Workload. Pure.

The order is that of the way of a job: its queue, its quota, its place, then the checks of the nodes that were chosen.
Kueue 0.19 tells the causes of a wait as text alone (its reasons are `Pending` and `Inadmissible`): the texts are those
of pkg/scheduler/flavorassigner and pkg/cache/scheduler; one that is not known is told as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpu_burnin.api.jobs import GPUS, HOSTNAME, QUEUE_NAME
from gpu_burnin.api.kueue import Check, Request, Workload
from gpu_burnin.api.names import LOCAL_QUEUE
from gpu_burnin.api.remedies import KUEUE, QUEUES
from gpu_burnin.system.host_names import fold
from gpu_burnin.system.prose import listed

_MOST_NODES = 4
# Kueue looks at a job within a second or two, where it is up.
_SOON_S = 30.0
_NO_QUEUE = re.compile(r"(LocalQueue|ClusterQueue) (\S+) (?:doesn't exist|is terminating or missing|not found)")
_CLOSED = re.compile(r"(LocalQueue|ClusterQueue) (\S+) is (?:inactive|stopped)")
_MORE = re.compile(r"insufficient unused quota for nvidia\.com/gpu in flavor ([^\s,]+), (\d+) more needed")
_MOST = re.compile(
    r"insufficient quota for nvidia\.com/gpu in flavor ([^\s,]+), previously considered podsets requests \((\d+)\) \+ "
    r"current podset request \((\d+)\) > maximum capacity \((\d+)\)"
)
_PLACE = re.compile(
    r"topology \"[^\"]+\" (?:allows to fit only (\d+) out of (\d+)|doesn't allow to fit any of (\d+)) "
    r"(?:pod|slice)\(s\)(?:\. Total nodes: \d+; excluded: (.*))?"
)
_EXCLUDED = re.compile(r"(taint|resource) \"([^\"]+)\": (\d+)|(nodeSelector|affinity|topologyDomain): (\d+)")
_OF_CHECKS = re.compile(r"AdmissionChecks? in (?:Retry|Rejected) state: (.*)")
_BEFORE = re.compile(r"^(?:Previously: )?(?:Evicted due to )?")


class Why(StrEnum):
    """What keeps a job from its nodes; stable, for programs."""

    NO_QUEUE = "no_queue"
    QUEUE_CLOSED = "queue_closed"
    DEACTIVATED = "deactivated"
    TOO_LARGE = "too_large"  # for all that its team may ever have
    TOO_LARGE_FOR_PLACE = "too_large_for_place"  # for the largest rack, or leaf
    QUOTA = "quota"
    PLACE = "place"  # the quota is there, and nodes are not, or not close enough to each other
    PREEMPTING = "preempting"  # those that have to leave for it are leaving
    BACK_OFF = "back_off"
    CHECK = "check"
    CHECK_RETRY = "check_retry"
    CHECK_REJECTED = "check_rejected"
    NEW = "new"  # Kueue has not looked at it yet
    # It has its nodes, and its pods do not run.
    POD_REFUSED = "pod_refused"
    NO_PODS = "no_pods"
    IMAGE = "image"
    CONTAINER = "container"
    GATED = "gated"
    UNPLACED = "unplaced"
    STARTING = "starting"
    OTHER = "other"


@dataclass(frozen=True)
class Wait:
    """Why, since when, and which nodes it is about. `never`: as it is, it waits for ever."""

    why: Why
    sentence: str
    since: datetime
    nodes: tuple[str, ...] = ()
    never: bool = False


@dataclass(frozen=True)
class Surroundings:
    """What is known of the fleet, as far as whoever asks may read it.

    `models` are the names of flavors for people; `used` and `quotas` the GPUs of its team by flavor; `largest` the most
    GPUs of one domain, by the label of a level; `problems` why a queue takes no jobs, by the queue's name.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    largest: Mapping[str, int] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def why_waits(job: Workload, around: Surroundings, now: datetime) -> Wait | None:
    """Why it has no nodes yet; None for one that has them, or has ended."""
    # One that is being evicted is still admitted until its pods are gone.
    if job.finished or (job.admitted and not job.has("Evicted")):
        return None
    if (refused := _rejected(job)) is not None:
        return refused
    if not job.active:
        return _deactivated(job)
    return _of_checks(job) if job.reserved and not job.has("Evicted") else _of_line(job, around, now)


def _of_line(job: Workload, around: Surroundings, now: datetime) -> Wait:
    """Of one that stands in line for its quota."""
    told = job.conditions.get("QuotaReserved")
    if told is not None and told.status and (evicted := job.conditions.get("Evicted")) is not None:
        return Wait(Why.BACK_OFF, f"it is being taken off its nodes: {said_of_eviction(evicted.message)}", evicted.at)
    message = told.message if told else ""
    since = told.at if told else job.created
    if (found := _NO_QUEUE.search(message)) is not None:
        return Wait(Why.NO_QUEUE, _no_queue(job, found[1], found[2]), since, never=True)
    if (found := _CLOSED.search(message)) is not None:
        problem = around.problems.get(found[2]) or "its StopPolicy holds jobs, or it names an object that is not there"
        return Wait(Why.QUEUE_CLOSED, f"its queue takes no jobs: {found[1]} {found[2]}: {problem}", since)
    evicted = job.conditions.get("Evicted")
    if job.requeue_at is not None and job.requeue_at > now and evicted is not None:
        count = f" (time {job.requeues})" if job.requeues > 1 else ""
        words = f"it was taken off its nodes: {said_of_eviction(evicted.message)}"
        sentence = f"{words}; it is put in line again at {job.requeue_at:%H:%M:%S}{count}"
        return Wait(Why.BACK_OFF, sentence, evicted.at)
    if (limits := _limits(message)) and not _MORE.search(message) and not _PLACE.search(message):
        return Wait(Why.TOO_LARGE, _too_large(job, around, limits), since, never=True)
    if (never := _beyond_place(job, around, since)) is not None:
        return never
    if (found := _PLACE.search(message)) is not None:
        return _of_place(job, around, found, since)
    if needs := _MORE.findall(message):
        return Wait(Why.QUOTA, _quota(job, around, needs), since)
    if "preempt" in message.lower():
        return Wait(Why.PREEMPTING, f"jobs are leaving for it: {message}", since)
    if not message:
        late = (now - since).total_seconds() > _SOON_S
        up = f": is Kueue up? ({KUEUE})" if late else ""
        return Wait(Why.NEW, f"Kueue has not looked at it yet{up}", since)
    return Wait(Why.OTHER, f"Kueue says: {message}", since)


def said_of_eviction(message: str) -> str:
    """The words of an eviction, without those that say that it was one."""
    words = _BEFORE.sub("", message).removeprefix("The workload is deactivated due to ")
    if words.startswith("Exceeded the PodsReady timeout"):
        return "not all of its pods were ready in time"
    if (found := _OF_CHECKS.search(words)) is not None:
        return f"check {found[1]}".replace('"', "")
    return words.rstrip(".")


def _no_queue(job: Workload, kind: str, name: str) -> str:
    if kind == "ClusterQueue":
        return f"its queue {job.queue} leads to a ClusterQueue {name} that is not there; {QUEUES}"
    label = f"{QUEUE_NAME}: {LOCAL_QUEUE}"
    return f"namespace {job.namespace} has no queue {name}; make the job anew with `{label}` among its labels"


def _limits(message: str) -> dict[str, int]:
    """The most GPUs that its team can have, by flavor, where it asks for more."""
    return {flavor: int(most) for flavor, _, _, most in _MOST.findall(message)}


def _too_large(job: Workload, around: Surroundings, limits: Mapping[str, int]) -> str:
    most = listed([f"{number:,} of {around.models.get(flavor, flavor)}" for flavor, number in limits.items()])
    return (
        f"it asks for {job.gpus:,} GPUs at once, and its team can have {most} at most, with all that it may borrow: as "
        "it is, it never starts"
    )


def _quota(job: Workload, around: Surroundings, needs: list[tuple[str, str]]) -> str:
    """Figures of the flavor of which it needs the fewest."""
    flavor, more = min(needs, key=lambda one: int(one[1]))
    model = around.models.get(flavor, flavor)
    sentence = f"it asks for {job.gpus:,} GPUs, and {int(more):,} of {model} have to become free first"
    if flavor in around.quotas:
        used, quota = around.used.get(flavor, 0), around.quotas[flavor]
        over = "has taken all of its quota" if used >= quota else "has room in its quota, which others have borrowed"
        sentence += f" (its team {over}: {used:,} of {quota:,} GPUs)"
    return sentence


def _of_place(job: Workload, around: Surroundings, found: re.Match[str], since: datetime) -> Wait:
    fit, asked = (int(found[1]), int(found[2])) if found[1] else (0, int(found[3]))
    close = next((one for one in job.requests if one.near), None)
    left_out = _left_out(found[4] or "")
    if close is None:
        sentence = f"the quota is there, and nodes for only {fit:,} of {asked:,} pods are free{left_out}"
        return Wait(Why.PLACE, sentence, since)
    level = _level(close)
    return Wait(
        Why.PLACE,
        f"its {asked:,} pods have to fit in one {level}, and no {level} has room for more than {fit:,} now{left_out}",
        since,
    )


def _beyond_place(job: Workload, around: Surroundings, since: datetime) -> Wait | None:
    """Of one that asks for more in one place than the largest has, whatever else it waits for now."""
    for request in job.requests:
        largest = around.largest.get(request.near) if request.near else None
        if largest is not None and largest < request.gpus:
            level = _level(request)
            sentence = (
                f"it asks for {request.gpus:,} GPUs in one {level}, and the largest {level} has {largest:,}, all its "
                f"nodes counted: as it is, it never starts; ask for fewer, or not for one {level}"
            )
            return Wait(Why.TOO_LARGE_FOR_PLACE, sentence, since, never=True)
    return None


def _left_out(excluded: str) -> str:
    """Why nodes were passed over, in words; "" where Kueue names none."""
    words = [*_excluded(excluded)]
    return f"; passed over: {', '.join(words)}" if words else ""


def _excluded(excluded: str) -> Iterator[str]:
    for kind, name, count, other, of_other in _EXCLUDED.findall(excluded):
        if kind == "resource":
            yield f"{count} full" if name == GPUS else f"{count} with too little {name} free"
        elif kind == "taint":
            yield f"{count} with taint {name}"
        else:
            words = {"nodeSelector": "not of its kind or not ready", "affinity": "by its affinity"}
            yield f"{of_other} {words.get(other, 'elsewhere')}"


def _level(request: Request) -> str:
    return "host" if request.near == HOSTNAME else request.near.rpartition("/")[2]


def _of_checks(job: Workload) -> Wait:
    """Of one whose nodes are chosen."""
    nodes = tuple(sorted(job.nodes))
    chosen = f"its nodes are chosen ({_names(nodes)})" if nodes else "it has its quota"
    for check in sorted(job.checks, key=lambda one: one.state != "Retry"):
        about = tuple(node for node in nodes if _names_it(check.message, node)) or nodes
        if check.state == "Retry":
            again = f" (at {job.requeue_at:%H:%M:%S})" if job.requeue_at else ""
            sentence = f"{chosen}, and check {check.name} wants others: {check.message or 'it gives no reason'}{again}"
            return Wait(Why.CHECK_RETRY, sentence, check.at, about)
        if check.state == "Pending":
            return Wait(
                Why.CHECK,
                f"{chosen}, and check {check.name} has not let it go: {_pending(job, check)}",
                check.at,
                about,
            )
    reserved = job.conditions["QuotaReserved"]
    return Wait(Why.NEW, f"{chosen}; Kueue is about to start it", reserved.at, nodes)


def _pending(job: Workload, check: Check) -> str:
    if check.message and not check.message.startswith("Reset to Pending"):
        return check.message
    before = job.conditions.get("Evicted")
    asked = "whoever judges it has not spoken yet"
    return f"{asked} (before: {said_of_eviction(before.message)})" if before else asked


def _rejected(job: Workload) -> Wait | None:
    for check in job.checks:
        if check.state == "Rejected":
            words = check.message or "it gives no reason"
            return Wait(Why.CHECK_REJECTED, f"check {check.name} refused it for good: {words}", check.at, never=True)
    return None


def _deactivated(job: Workload) -> Wait:
    evicted = job.conditions.get("Evicted")
    if evicted is None or not evicted.reason.startswith("Deactivated"):
        sentence = f"somebody has set its Workload {job.own_name} inactive (spec.active: false)"
        return Wait(Why.DEACTIVATED, sentence, evicted.at if evicted else job.created, never=True)
    if (found := _OF_CHECKS.search(evicted.message)) is not None:
        words = found[1].replace('"', "")
        return Wait(Why.CHECK_REJECTED, f"a check refused it for good: {words}", evicted.at, never=True)
    sentence = f"Kueue has given it up, after {said_of_eviction(evicted.message)}; make it anew to try again"
    return Wait(Why.DEACTIVATED, sentence, evicted.at, never=True)


def _names_it(message: str, node: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", message) is not None


def _names(nodes: tuple[str, ...]) -> str:
    words, _, left = fold(nodes, _MOST_NODES)
    return ", ".join([*words, f"{left:,} more"] if left else words)
