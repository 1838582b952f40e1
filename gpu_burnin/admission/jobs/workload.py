"""What the check reads of a Workload of Kueue (kueue.x-k8s.io/v1beta2), and how little of one is kept. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpu_burnin.admission.client import Object
from gpu_burnin.admission.decide.times import when
from gpu_burnin.admission.service.cache import GPU_RESOURCE
from gpu_burnin.api.jobs import HOSTNAME, domains_of, kueue_path

WORKLOADS, CHECKS = kueue_path("workloads"), kueue_path("admissionchecks")


class CheckState(StrEnum):
    """States of an AdmissionCheck of one Workload, as Kueue has them. Rejected, which ends a job, is never written."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of status.admissionChecks, at its place in that list."""

    place: int
    name: str
    state: str
    message: str = ""
    since: str = ""
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Owner:
    """Who made the Workload: a Job or a JobSet."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload that has a reservation. `nodes` are those that Kueue chose, each once, sorted.

    `level` is the lowest level of its topology where that names no nodes; `delayed`: nodes are chosen when all checks
    are Ready. `reserved_at` is None where nobody can read it. `most_s` is when Kueue ends it by itself, None for never.
    """

    namespace: str
    name: str
    uid: str
    version: str = field(compare=False)
    queue: str
    reserved_at: datetime | None
    admitted: bool
    gpus: bool
    nodes: tuple[str, ...]
    level: str = ""
    delayed: bool = False
    most_s: float | None = None
    owner: Owner | None = None
    checks: tuple[Check, ...] = ()

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Where it is."""
        return path_of(self.key)

    def check(self, names: frozenset[str]) -> Check | None:
        """Its entry of one of these checks."""
        return next((one for one in self.checks if one.name in names), None)


def read(item: Object) -> Workload | None:
    """The Workload, None while nothing is to be judged of it: no reservation, put out, ended or about to go.

    Raises KeyError, TypeError and ValueError for what is none.
    """
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or []}
    admission = status.get("admission")
    if not admission or not _is_true(conditions, "QuotaReserved") or "deletionTimestamp" in metadata:
        return None
    if _is_true(conditions, "Evicted") or _is_true(conditions, "Finished") or spec.get("active") is False:
        return None
    assignments = admission.get("podSetAssignments") or []
    topologies = [one["topologyAssignment"] for one in assignments if one.get("topologyAssignment")]
    most_s = spec.get("maximumExecutionTimeSeconds")
    lowest = {str(one["levels"][-1]) for one in topologies} - {HOSTNAME}
    return Workload(
        namespace=sys.intern(str(metadata["namespace"])),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        version=str(metadata["resourceVersion"]),
        queue=sys.intern(str(admission.get("clusterQueue") or "")),
        reserved_at=when(str(conditions["QuotaReserved"].get("lastTransitionTime") or "")),
        admitted=_is_true(conditions, "Admitted"),
        gpus=any(_has_gpus(one) for one in assignments),
        nodes=() if lowest else tuple(sorted({sys.intern(node) for one in topologies for node, _ in domains_of(one)})),
        level=min(lowest, default=""),
        delayed=any(one.get("delayedTopologyRequest") == "Pending" for one in assignments),
        most_s=float(most_s) if most_s is not None else None,
        owner=_owner(metadata.get("ownerReferences") or []),
        checks=tuple(_check(place, one) for place, one in enumerate(status.get("admissionChecks") or [])),
    )


def path_of(key: str) -> str:
    """Where the Workload of this namespace and name is."""
    namespace, _, name = key.partition("/")
    return kueue_path("workloads", namespace, name)


def _is_true(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return (conditions.get(kind) or {}).get("status") == "True"


def _has_gpus(assignment: Mapping[str, Any]) -> bool:
    """Whether this part of the job has GPUs, by what it takes of its quota."""
    usage, flavors = assignment.get("resourceUsage") or {}, assignment.get("flavors") or {}
    return any(GPU_RESOURCE.fullmatch(name) and str(usage.get(name, "1")) != "0" for name in {*usage, *flavors})


def _owner(references: list[Mapping[str, Any]]) -> Owner | None:
    found = next((one for one in references if one.get("controller")), None)
    return Owner(str(found["apiVersion"]), str(found["kind"]), str(found["name"])) if found is not None else None


def _check(place: int, entry: Mapping[str, Any]) -> Check:
    since, retries = str(entry.get("lastTransitionTime") or ""), int(entry.get("retryCount") or 0)
    return Check(place, str(entry["name"]), str(entry["state"]), str(entry.get("message") or ""), since, retries)
