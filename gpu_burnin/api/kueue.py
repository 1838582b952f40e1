"""What Kueue's objects say (kueue.x-k8s.io/v1beta2), in the few fields that people are told of. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from gpu_burnin.api.jobs import GPUS, HOSTNAME, JOB_UID, domains_of, number_of
from gpu_burnin.system.clock import NEVER, time_of

Object: TypeAlias = Mapping[str, Any]
# Evictions after which a job stands at the end of its line.
_EVICTED_IN_LINE = ("AdmissionCheck", "PodsReadyTimeout")


@dataclass(frozen=True)
class Condition:
    """One condition. `at` is when its status changed last, NEVER where that is not told."""

    kind: str
    status: bool
    reason: str
    message: str
    at: datetime


@dataclass(frozen=True)
class Check:
    """What one AdmissionCheck says of a Workload: `state` is Pending, Ready, Retry or Rejected."""

    name: str
    state: str
    message: str
    at: datetime


@dataclass(frozen=True)
class Request:
    """What a set of pods asks for. `near` is the label of the level whose one domain it has to fit, "" for none."""

    pods: int
    gpus_of_pod: int
    near: str = ""

    @property
    def gpus(self) -> int:
        """Of all its pods."""
        return self.pods * self.gpus_of_pod


@dataclass(frozen=True)
class Workload:
    """A job as Kueue sees it. `kind` and `name` are the owner's; `queued` is its place in line: earlier goes first.

    `nodes` are those that Kueue has chosen, with the GPUs taken on each; `flavors` the GPUs taken, by flavor.
    """

    namespace: str
    name: str
    kind: str
    own_name: str
    queue: str
    cluster_queue: str
    priority: int
    created: datetime
    queued: datetime
    active: bool
    conditions: Mapping[str, Condition]
    checks: tuple[Check, ...] = ()
    requests: tuple[Request, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)
    flavors: Mapping[str, int] = field(default_factory=dict)
    requeue_at: datetime | None = None
    requeues: int = 0
    uid: str = ""
    job_uid: str = ""

    @property
    def key(self) -> str:
        """NAMESPACE/JOB."""
        return f"{self.namespace}/{self.name}"

    @property
    def gpus(self) -> int:
        """All that it asks for."""
        return sum(request.gpus for request in self.requests)

    @property
    def pods(self) -> int:
        """How many it has when it runs."""
        return sum(request.pods for request in self.requests)

    def has(self, kind: str) -> bool:
        """Whether a condition is there and true."""
        found = self.conditions.get(kind)
        return found is not None and found.status

    @property
    def finished(self) -> bool:
        """Whether its job has ended, well or not."""
        return self.has("Finished")

    @property
    def admitted(self) -> bool:
        """Whether its pods may be made."""
        return self.has("Admitted")

    @property
    def reserved(self) -> bool:
        """Whether it has its quota and nodes."""
        return self.has("QuotaReserved")

    @property
    def waits(self) -> bool:
        """Whether it stands in line for quota."""
        return not (self.finished or self.reserved)


def workload(item: Object) -> Workload:
    """A Workload as the API server sends it."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    conditions = {one.kind: one for one in _conditions(status)}
    owner: Object = next((one for one in metadata.get("ownerReferences") or [] if one.get("controller")), {})
    created = time_of(metadata.get("creationTimestamp")) or NEVER
    requeue = status.get("requeueState") or {}
    admission = status.get("admission") or {}
    return Workload(
        namespace=str(metadata.get("namespace") or ""),
        name=str(owner.get("name") or metadata["name"]),
        kind=str(owner.get("kind") or "Workload"),
        own_name=str(metadata["name"]),
        queue=str(spec.get("queueName") or ""),
        cluster_queue=str(admission.get("clusterQueue") or ""),
        priority=int(spec.get("priority") or 0),
        created=created,
        queued=_queued(conditions, created),
        active=spec.get("active") is not False,
        conditions=conditions,
        checks=tuple(_checks(status)),
        requests=tuple(_requests(spec)),
        nodes=_nodes(spec, admission),
        flavors=_flavors(admission),
        requeue_at=time_of(requeue.get("requeueAt")),
        requeues=int(requeue.get("count") or 0),
        uid=str(metadata.get("uid") or ""),
        job_uid=str((metadata.get("labels") or {}).get(JOB_UID) or ""),
    )


def gpus(quantity: object) -> int:
    """A whole number of GPUs as Kubernetes writes it; 0 for none."""
    return int(number_of(quantity))


def condition(item: Object, kind: str) -> Condition | None:
    """A condition of any object."""
    return next((one for one in _conditions(item.get("status") or {}) if one.kind == kind), None)


def _conditions(status: Object) -> Iterator[Condition]:
    for one in status.get("conditions") or []:
        message = " ".join(str(one.get("message") or "").split())
        at = time_of(one.get("lastTransitionTime")) or NEVER
        yield Condition(str(one.get("type")), one.get("status") == "True", str(one.get("reason") or ""), message, at)


def _queued(conditions: Mapping[str, Condition], created: datetime) -> datetime:
    """Its place in line (pkg/workload/ordering): who was evicted for want of proof or of pods goes to the end of it."""
    evicted = conditions.get("Evicted")
    return evicted.at if evicted and evicted.status and evicted.reason in _EVICTED_IN_LINE else created


def _checks(status: Object) -> Iterator[Check]:
    for one in status.get("admissionChecks") or []:
        at = time_of(one.get("lastTransitionTime")) or NEVER
        message = " ".join(str(one.get("message") or "").split())
        yield Check(str(one.get("name")), str(one.get("state") or "Pending"), message, at)


def _requests(spec: Object) -> Iterator[Request]:
    for pod_set in spec.get("podSets") or []:
        near = str((pod_set.get("topologyRequest") or {}).get("required") or "")
        yield Request(int(pod_set.get("count") or 0), _gpus_of_pod(pod_set), near)


def _gpus_of_pod(pod_set: Object) -> int:
    pod = (pod_set.get("template") or {}).get("spec") or {}
    own = sum(_gpus_of_container(one) for one in pod.get("containers") or [])
    return max([own, *(_gpus_of_container(one) for one in pod.get("initContainers") or [])])


def _gpus_of_container(container: Object) -> int:
    resources = container.get("resources") or {}
    return gpus((resources.get("requests") or {}).get(GPUS) or (resources.get("limits") or {}).get(GPUS))


def _flavors(admission: Object) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in admission.get("podSetAssignments") or []:
        flavor = (one.get("flavors") or {}).get(GPUS)
        if flavor:
            found[str(flavor)] = found.get(str(flavor), 0) + gpus((one.get("resourceUsage") or {}).get(GPUS))
    return found


def _nodes(spec: Object, admission: Object) -> dict[str, int]:
    """The nodes of its topology assignment, by the last of its levels, which is that of hosts."""
    of_pods = {str(one.get("name") or "main"): _gpus_of_pod(one) for one in spec.get("podSets") or []}
    found: dict[str, int] = {}
    for one in admission.get("podSetAssignments") or []:
        assignment = one.get("topologyAssignment") or {}
        if str((assignment.get("levels") or [""])[-1]) != HOSTNAME:
            continue
        for name, pods in domains_of(assignment):
            found[name] = found.get(name, 0) + pods * of_pods.get(str(one.get("name") or "main"), 0)
    return found
