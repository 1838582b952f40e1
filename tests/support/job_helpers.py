"""Workloads as Kueue has them when it has chosen nodes, and AdmissionChecks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_burnin.api.names import CHECK, Names

NAMES = Names()
CREATED = "2026-11-21T11:59:00Z"
# How Kueue writes the nodes gpu-1, gpu-2 and gpu-9.
SLICES = [
    {
        "domainCount": 2,
        "valuesPerLevel": [{"individual": {"prefix": "gpu-", "roots": ["1", "2"]}}],
        "podCounts": {"universal": 1},
    },
    {"domainCount": 1, "valuesPerLevel": [{"universal": "gpu-9"}], "podCounts": {"universal": 1}},
]


def topology(*nodes: str, levels: Sequence[str] = ("kubernetes.io/hostname",)) -> dict[str, Any]:
    """A topologyAssignment that names these nodes, with what they have in common written once."""
    values = {"individual": {"prefix": "gpu-", "roots": [node.removeprefix("gpu-") for node in nodes]}}
    return {
        "levels": list(levels),
        "slices": [
            {"domainCount": len(nodes), "valuesPerLevel": [values for _ in levels], "podCounts": {"universal": 1}}
        ],
    }


def condition(kind: str, status: str = "True", since: str = CREATED) -> dict[str, Any]:
    """A condition of a Workload."""
    return {"type": kind, "status": status, "reason": kind, "message": "", "lastTransitionTime": since}


def workload(
    *nodes: str,
    name: str = "job-a",
    queue: str = "vision",
    reserved_at: str = CREATED,
    state: str = "Pending",
    conditions: Sequence[dict[str, Any]] = (),
    **assignment: Any,
) -> dict[str, Any]:
    """A Workload with a reservation of 8 GPUs on each of these nodes, and with our check."""
    assigned = {"name": "main", "flavors": {"nvidia.com/gpu": "h100"}, "resourceUsage": {"nvidia.com/gpu": "8"}}
    if nodes:
        assigned["topologyAssignment"] = topology(*nodes)
    assigned |= assignment
    check = {"name": CHECK, "state": state, "lastTransitionTime": reserved_at, "message": ""}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u", "controller": True}
    return {
        "metadata": {
            "namespace": queue,
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "ownerReferences": [owner],
        },
        "spec": {"active": True, "queueName": "default"},
        "status": {
            "conditions": [condition("QuotaReserved", since=reserved_at), *conditions],
            "admission": {"clusterQueue": queue, "podSetAssignments": [assigned]},
            "admissionChecks": [{"name": "another", "state": "Ready", "lastTransitionTime": CREATED}, check],
        },
    }


def admission_check(name: str = CHECK, controller: str = NAMES.verified_check) -> dict[str, Any]:
    """An AdmissionCheck as the provisioner makes it."""
    return {"metadata": {"name": name, "generation": 1}, "spec": {"controllerName": controller}}
