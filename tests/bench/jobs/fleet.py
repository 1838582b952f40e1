"""A fleet without machines: the stack of jobs, nodes in racks and leaves, teams, and kwok that runs their pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import Fleet as Places
from ansible_collections.muster.fleet.plugins.module_utils.jobs.objects import objects
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import Team

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.jobs import number_of
from gpu_burnin.api.names import ADMITTER_USER, GPU_LABEL, LEAF_LABEL, RACK_LABEL, READY_LABEL
from tests.bench.admission.kwok import STAGE, ensure_kwok
from tests.integration.gate import node_info
from tests.integration.jobs_stack import GPUS, MODEL, NAMES, Jobs
from tests.integration.jobs_start import jobs_stack

NODES_OF_RACK, RACKS_OF_LEAF = 8, 4
SECONDS = f"{NAMES.domain}/seconds"
_THREADS = 16
_MANAGED = "kwok.x-k8s.io/node"
# A stage of nodes makes kwok take nodes for its own, without which it runs no pod of theirs; this one holds for none.
_STAGES = """\
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-none}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
      - {key: .metadata.name, operator: In, values: [none]}
  next: {statusTemplate: "{}"}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Pending]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      - {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Ready}
      - {lastTransitionTime: {{ $now | Quote }}, status: "True", type: ContainersReady}
      containerStatuses:
      {{ range .spec.containers }}
      - image: {{ .image | Quote }}
        name: {{ .name | Quote }}
        ready: true
        restartCount: 0
        state: {running: {startedAt: {{ $now | Quote }}}}
      {{ end }}
      phase: Running
      startTime: {{ $now | Quote }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-complete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Running]}
  delay: {durationFrom: {expressionFrom: '.metadata.annotations["SECONDS"]'}}
  next:
    statusTemplate: |
      {{ $now := Now }}
      containerStatuses:
      {{ range .spec.containers }}
      - image: {{ .image | Quote }}
        name: {{ .name | Quote }}
        ready: false
        restartCount: 0
        state:
          terminated:
            {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}
      {{ end }}
      phase: Succeeded
"""


@dataclass(frozen=True)
class Fleet:
    """A running fleet of so many nodes, and the teams that share it."""

    jobs: Jobs
    nodes: int
    teams: tuple[Team, ...]
    api: KubeApi

    def submit(self, team: str, name: str, nodes: int, seconds: float, level: str = "") -> None:
        """A Job: a gang of whole nodes that runs so long, in one place of a level where one is named."""
        self.api.create(f"/apis/batch/v1/namespaces/{team}/jobs", a_job(team, name, nodes, seconds, level))

    def usage(self) -> dict[str, int]:
        """GPUs that Kueue has given, by team."""
        found = self.api.items("/apis/kueue.x-k8s.io/v1beta2/clusterqueues")
        return {
            one["metadata"]["name"]: sum(
                round(number_of(resource["total"]))
                for flavor in (one.get("status") or {}).get("flavorsReservation", ())
                for resource in flavor["resources"]
            )
            for one in found
        }


def a_job(team: str, name: str, nodes: int, seconds: float, level: str = "") -> dict[str, Any]:
    """The object."""
    gpus = {"nvidia.com/gpu": str(GPUS)}
    container = {"name": "train", "image": "x", "resources": {"requests": {"cpu": "1", **gpus}, "limits": gpus}}
    kind = (
        {"kueue.x-k8s.io/podset-required-topology": level}
        if level
        else {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": "default"}},
        "spec": {
            "parallelism": nodes,
            "completions": nodes,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": 0,
            "suspend": True,
            "template": {
                "metadata": {"annotations": {**kind, SECONDS: f"{seconds:g}s"}},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        },
    }


@contextmanager
def fleet(directory: Path, nodes: int, teams: Sequence[Team]) -> Iterator[Fleet]:
    """The fleet, until the block ends. Its queues have no check: who proves nodes is measured by bench admission."""
    with jobs_stack(directory) as jobs, _kwok(jobs, directory):
        root = KubeApi(jobs.server.kubeconfig("root", ["system:masters"]))
        places = Places({MODEL: nodes * GPUS}, {MODEL: frozenset({GPUS})}, ("leaf", "rack"))
        for item in objects(teams, places, NAMES):
            item.get("spec", {}).pop("admissionChecksStrategy", None)
            if item["kind"] == "Namespace":
                # Pods of the benchmark have no security context.
                item["metadata"]["labels"] = {NAMES.team: item["metadata"]["name"]}
            jobs.apply(item)
        jobs.queues_answer(*(team.name for team in teams))
        add_nodes(jobs, root, range(nodes))
        yield Fleet(jobs, nodes, tuple(teams), root)


def add_nodes(jobs: Jobs, root: KubeApi, numbers: Sequence[int]) -> None:
    """Nodes as kubelets register them and the admitter lets them in."""
    admitter = KubeApi(jobs.server.kubeconfig(ADMITTER_USER))
    amount = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}

    def add(number: int) -> None:
        name, rack = f"gpu-{number}", number // NODES_OF_RACK
        labels = {
            READY_LABEL: "true",
            GPU_LABEL: MODEL,
            RACK_LABEL: f"r{rack}",
            LEAF_LABEL: f"leaf-{rack // RACKS_OF_LEAF}",
            "kubernetes.io/hostname": name,
        }
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": {_MANAGED: "fake"}},
            "spec": {"taints": [{"key": NAMES.preflight, "effect": e} for e in ("NoSchedule", "NoExecute")]},
            "status": {
                "nodeInfo": node_info(f"boot-of-{name}"),
                "capacity": amount,
                "allocatable": amount,
                "conditions": [ready],
            },
        }
        root.create("/api/v1/nodes", node)
        changes: dict[str, Any] = {"/spec/taints": [], "/metadata/labels": labels}
        patch = [{"op": "add", "path": path, "value": value} for path, value in changes.items()]
        admitter.patch(f"/api/v1/nodes/{name}", patch)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(add, numbers))


@contextmanager
def _kwok(jobs: Jobs, directory: Path) -> Iterator[None]:
    stages = directory / "stages.yaml"
    stages.write_text(f"{STAGE}---\n{_STAGES.replace('SECONDS', SECONDS)}")
    command = [
        str(ensure_kwok()),
        f"--kubeconfig={jobs.server.kubeconfig('kwok', ['system:masters'])}",
        f"--config={stages}",
        f"--manage-nodes-with-annotation-selector={_MANAGED}=fake",
        "--node-lease-duration-seconds=0",
    ]
    with (directory / "kwok.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
