"""A team whose queue has the check `verified`, on real Kueue: its objects, its jobs, and what the check says of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_burnin.api.names import CHECK, READY_LABEL
from tests.integration.admitter_fleet import Machine
from tests.integration.jobs_stack import GPUS, NAMES, Jobs, indexed_job
from tests.integration.kube import STRATEGIC_PATCH

TEAM = "checked"
_KUEUE = "kueue.x-k8s.io/v1beta2"


def team_objects(nodes: int) -> Iterator[dict[str, Any]]:
    """A team whose queue has the check, and a quota of so many nodes of 8 GPUs."""
    flavor = {"name": TEAM, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(nodes * GPUS)}]}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": {NAMES.team: TEAM}}}
    specs: dict[str, tuple[str, dict[str, Any]]] = {
        "AdmissionCheck": (CHECK, {"controllerName": NAMES.verified_check}),
        "Topology": (TEAM, {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}),
        "ResourceFlavor": (TEAM, {"nodeLabels": {READY_LABEL: "true", "of": TEAM}, "topologyName": TEAM}),
        "ClusterQueue": (
            TEAM,
            {
                "namespaceSelector": {"matchLabels": {NAMES.team: TEAM}},
                "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
                "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]},
            },
        ),
    }
    for kind, (name, spec) in specs.items():
        yield {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}
    metadata = {"name": "default", "namespace": TEAM}
    yield {"apiVersion": _KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": TEAM}}


def join_team(machine: Machine) -> None:
    """Give a node its 8 GPUs, and what the team's flavor asks for."""
    amount = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    labels = {"metadata": {"labels": {"kubernetes.io/hostname": machine.name, "of": TEAM}}}
    status = {"status": {"capacity": amount, "allocatable": amount}}
    for subresource, body in (("", labels), ("/status", status)):
        path = f"/api/v1/nodes/{machine.name}{subresource}"
        reply = machine.own.request("PATCH", path, body, STRATEGIC_PATCH)
        assert reply.status == 200, reply.message


def job_of(name: str, nodes: int) -> dict[str, Any]:
    """A Job of whole nodes, as a person makes it."""
    gpus = {"nvidia.com/gpu": str(GPUS)}
    container = {"name": "train", "image": "x", "resources": {"requests": gpus, "limits": gpus}}
    return indexed_job(name, TEAM, nodes, container)


def check_state(jobs: Jobs) -> dict[str, Any]:
    """The check of the one workload, and the nodes that were chosen for it; nothing before Kueue has chosen."""
    for item in jobs.workloads(TEAM):
        status = item.get("status", {})
        found = next((one for one in status.get("admissionChecks", []) if one["name"] == CHECK), None)
        if found is not None and status.get("admission"):
            (part,) = status["admission"]["podSetAssignments"]
            values = [one["valuesPerLevel"][-1] for one in part["topologyAssignment"]["slices"]]
            return {**found, "nodes": [name for value in values for name in _names(value)]}
    return {"state": "", "message": "", "nodes": []}


def _names(value: dict[str, Any]) -> list[str]:
    if "universal" in value:
        return [value["universal"]]
    one = value["individual"]
    return [f"{one.get('prefix', '')}{root}{one.get('suffix', '')}" for root in one["roots"]]
