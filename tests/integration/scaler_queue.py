"""One queue whose jobs wait for machines: Kueue's objects with both checks, its jobs, and nodes that offer GPUs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpu_burnin.api.names import CHECK, GPU_LABEL, KUEUE_PROVISIONING, READY_LABEL
from gpu_burnin.scaler.requests import REQUIRED
from tests.integration.admitter_fleet import admitters
from tests.integration.gate import NODES
from tests.integration.jobs_stack import GPUS, NAMES, Jobs
from tests.integration.kube import MERGE_PATCH, STRATEGIC_PATCH
from tests.integration.scaler_site import MODEL, Cloud, machines_known
from tests.integration.teams import container

_SETTINGS: dict[str, Any] = {"joins_per_s": 1000, "max_unready_share": 1.0, "tests": {"nodes": 0}}
POWERED = "powered"
_FLAVOR = "scaled"
_KUEUE = "kueue.x-k8s.io/v1beta2"


def queue_objects(
    teams: Sequence[str], *, nodes: int, levels: Sequence[str] = (), retry: Mapping[str, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Teams whose queues have both checks and a quota of so many whole nodes.

    `levels` are labels of places, the widest first; `retry` is Kueue's `retryStrategy`, its own by default.
    """
    config = {"kind": "ProvisioningRequestConfig", "apiGroup": "kueue.x-k8s.io", "name": POWERED}
    shared: list[tuple[str, str, dict[str, Any]]] = [
        (
            "ProvisioningRequestConfig",
            POWERED,
            {
                "provisioningClassName": NAMES.domain,
                "managedResources": ["nvidia.com/gpu"],
                **({"retryStrategy": dict(retry)} if retry else {}),
            },
        ),
        ("AdmissionCheck", CHECK, {"controllerName": NAMES.verified_check}),
        ("AdmissionCheck", POWERED, {"controllerName": KUEUE_PROVISIONING, "parameters": config}),
        ("Topology", _FLAVOR, {"levels": [{"nodeLabel": label} for label in (*levels, "kubernetes.io/hostname")]}),
        ("ResourceFlavor", _FLAVOR, {"nodeLabels": {READY_LABEL: "true", GPU_LABEL: MODEL}, "topologyName": _FLAVOR}),
    ]
    for kind, name, spec in shared:
        yield {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}
    for team in teams:
        flavor = {"name": _FLAVOR, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(nodes * GPUS)}]}
        queue = {
            "namespaceSelector": {"matchLabels": {NAMES.team: team}},
            "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
            "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}, {"name": POWERED}]},
        }
        metadata = {"name": "default", "namespace": team}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team, "labels": {NAMES.team: team}}}
        yield {"apiVersion": _KUEUE, "kind": "ClusterQueue", "metadata": {"name": team}, "spec": queue}
        yield {"apiVersion": _KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": team}}


class Machines(Cloud):
    """Those whose nodes offer GPUs to a real scheduler."""

    def _boot(self, machine: Any) -> None:
        super()._boot(machine)
        amount = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
        labels = {"metadata": {"labels": {"kubernetes.io/hostname": machine.name}}}
        machine.own.request("PATCH", f"{NODES}/{machine.name}", labels, MERGE_PATCH)
        body = {"status": {"capacity": amount, "allocatable": amount}}
        machine.own.request("PATCH", f"{NODES}/{machine.name}/status", body, STRATEGIC_PATCH)


@contextmanager
def queues_open(jobs: Jobs, cloud: Machines, teams: Mapping[str, str], *, nodes: int, **objects: Any) -> Iterator[None]:
    """Teams' queues, by the level that each asks for, an admitter, and machines that live, until the block ends.

    `nodes` and `objects` as for `queue_objects`.
    """
    living = threading.Thread(target=cloud.live, daemon=True)
    settings = {**_SETTINGS, "jobs": {"queues": {team: {"level": level} for team, level in teams.items()}}}
    with machines_known(jobs.server), admitters(jobs.server, cloud.folder, ["api-1"], **settings):
        living.start()
        for item in queue_objects(tuple(teams), nodes=nodes, **objects):
            jobs.apply(item)
        jobs.queues_answer(*teams)
        yield
        cloud.close()
        living.join(70)


def gang(jobs: Jobs, team: str, name: str, pods: int, within: str = "") -> None:
    """A Job of whole nodes in the team's queue; all of them under one value of the label `within`, "" for anywhere."""
    spec = {"containers": [container(asks={"nvidia.com/gpu": str(GPUS)})], "restartPolicy": "Never"}
    annotations = {REQUIRED: within} if within else {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": "default"}},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"metadata": {"annotations": annotations}, "spec": spec},
        },
    }
    jobs.apply(job)
