"""Kueue and JobSet beside a real etcd, API server, controller manager and scheduler on loopback, and nodes without
kubelets: what runs on a node is said by `running` and `ended`, as its kubelet would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpu_burnin.api.names import (
    GPU_LABEL,
    LEAF_LABEL,
    RACK_LABEL,
    READY_LABEL,
    Names,
)
from tests.integration.gate import node_info
from tests.integration.kube import (
    APPLY,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Client,
    Part,
    Reply,
    Server,
    until,
)

NAMES = Names()
MODEL = "h100-sxm5-80gb"
GPUS = 8
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


@dataclass(frozen=True)
class Jobs:
    """The stack. Its parts may be killed and started again."""

    server: Server
    controller_manager: Part
    scheduler: Part
    kueue: Part
    jobset: Part

    @cached_property
    def root(self) -> Client:
        """Someone of system:masters."""
        return self.server.client("break-glass", ["system:masters"])

    @cached_property
    def admitter(self) -> Client:
        """Who lets nodes in."""
        return self.server.client("muster:admitter")

    def path(self, item: Mapping[str, Any]) -> str:
        """Where an object is, by what the server says of its kind. Raises KeyError for one that it does not serve."""
        version, metadata = item["apiVersion"], item["metadata"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        kinds = {one["kind"]: one for one in self.root.request("GET", base).body["resources"] if "/" not in one["name"]}
        kind = kinds[item["kind"]]
        namespace = f"/namespaces/{metadata['namespace']}" if kind["namespaced"] else ""
        return f"{base}{namespace}/{kind['name']}/{metadata['name']}"

    def apply(self, item: Mapping[str, Any], client: Client | None = None) -> Reply:
        """Server-side apply, as root unless told."""
        path = f"{self.path(item)}?fieldManager=test&force=true"
        reply = (client or self.root).request("PATCH", path, item, APPLY)
        assert reply.status in (200, 201), f"{item['kind']} {item['metadata']['name']}: {reply.message}"
        return reply

    def get(self, path: str) -> dict[str, Any]:
        """An object or a list, as root."""
        reply = self.root.request("GET", path)
        assert reply.status == 200, reply.message
        return reply.body

    def items(self, path: str) -> list[dict[str, Any]]:
        """The items of a list."""
        found: list[dict[str, Any]] = self.get(path)["items"]
        return found

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        """The pods of a namespace."""
        return self.items(f"/api/v1/namespaces/{namespace}/pods")

    def bound(self, namespace: str) -> dict[str, str]:
        """The node of each pod of a namespace that has one and does not end."""
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.pods(namespace)
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        }

    def workloads(self, namespace: str) -> list[dict[str, Any]]:
        """Kueue's workloads of a namespace."""
        return self.items(f"{KUEUE}/namespaces/{namespace}/workloads")

    def queues_answer(self, *names: str) -> None:
        """Wait until Kueue knows these ClusterQueues and the LocalQueues of them.

        Its readiness does not say so, and a Job of that moment that names no queue would not be its own.
        """

        def known(path: str) -> bool:
            found = self.items(f"{KUEUE}/{path}")
            active = {
                one["spec"].get("clusterQueue", one["metadata"]["name"])
                for one in found
                for condition in one.get("status", {}).get("conditions", [])
                if condition["type"] == "Active" and condition["status"] == "True"
            }
            return active >= {*names}

        until(f"the queues {names}", lambda: known("clusterqueues") and known("localqueues"), 60)

    def add_node(self, name: str, *, rack: str = "r1", leaf: str = "leaf-1", labels: Mapping[str, str] = {}) -> None:
        """A node of 8 GPUs that reports, which the admitter has let in."""
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {"taints": [{"key": NAMES.preflight, "effect": e} for e in ("NoSchedule", "NoExecute")]},
            "status": {"nodeInfo": node_info(f"boot-of-{name}")},
        }
        kubelet = self.server.client(f"system:node:{name}", ["system:nodes"])
        reply = kubelet.request("POST", "/api/v1/nodes", node)
        assert reply.status == 201, reply.message
        amount = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
        conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]
        status = {"capacity": amount, "allocatable": amount, "conditions": conditions}
        reply = kubelet.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC_PATCH)
        assert reply.status == 200, reply.message
        places = {READY_LABEL: "true", GPU_LABEL: MODEL, RACK_LABEL: rack, LEAF_LABEL: leaf, **labels}
        self.let_in(name, places)

    def let_in(self, name: str, labels: Mapping[str, str] = {}) -> None:
        """Take all our taints from a node, and label it."""
        self._taint(name, [], labels)

    def shut(self, name: str, key: str, effect: str = "NoSchedule", value: str = "") -> None:
        """Put a taint of ours on a node, as the admitter does."""
        self._taint(name, [{"key": key, "effect": effect, **({"value": value} if value else {})}], {})

    def _taint(self, name: str, taints: Sequence[Mapping[str, str]], labels: Mapping[str, str]) -> None:
        """Node lifecycle taints of the controller manager stay; the version is tested, as it writes the same list."""

        def patched() -> bool:
            node = self.get(f"/api/v1/nodes/{name}")
            others = [t for t in node["spec"].get("taints", []) if not t["key"].startswith(f"{NAMES.domain}/")]
            patch = [
                {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]},
                {"op": "add", "path": "/spec/taints", "value": [*others, *taints]},
                {"op": "add", "path": "/metadata/labels", "value": {**node["metadata"]["labels"], **labels}},
            ]
            reply = self.admitter.request("PATCH", f"/api/v1/nodes/{name}", patch, JSON_PATCH)
            assert reply.status in (200, 409, 422), reply.message
            return reply.status == 200

        until(f"the taints of {name}", patched, 10)

    def clear(self) -> None:
        """Take away jobs, queues, nodes and teams, so that what comes next begins with none."""
        namespaces = [
            one["metadata"]["name"]
            for one in self.items("/api/v1/namespaces")
            if NAMES.team in one["metadata"].get("labels", {})
        ]
        for name in namespaces:
            for kind in ("jobset.x-k8s.io/v1alpha2", "batch/v1"):
                plural = "jobsets" if "jobset" in kind else "jobs"
                path = f"/apis/{kind}/namespaces/{name}/{plural}?propagationPolicy=Background"
                assert self.root.request("DELETE", path).status == 200

        def nothing_runs() -> bool:
            pods = [(name, pod["metadata"]["name"]) for name in namespaces for pod in self.pods(name)]
            for pod in pods:
                self.gone(*pod)
            return not pods and not any(self.workloads(name) for name in namespaces)

        until("the end of all jobs", nothing_runs, 60)
        for name in namespaces:
            self.root.request("DELETE", f"{KUEUE}/namespaces/{name}/localqueues")
        shared = ("clusterqueues", "cohorts", "resourceflavors", "topologies", "admissionchecks")
        for plural in (*shared, "provisioningrequestconfigs"):
            self.root.request("DELETE", f"{KUEUE}/{plural}")
            until(f"the end of the {plural}", lambda plural=plural: not self.items(f"{KUEUE}/{plural}"), 60)  # type: ignore[misc]
        for name in namespaces:
            label = {"metadata": {"labels": {NAMES.team: None}}}
            assert self.root.request("PATCH", f"/api/v1/namespaces/{name}", label, MERGE_PATCH).status == 200
        assert self.root.request("DELETE", "/api/v1/nodes").status == 200

    def running(self, namespace: str) -> None:
        """Have every bound pod of a namespace run, as kubelets do."""
        for name, node in self.bound(namespace).items():
            now = {"startedAt": "2026-01-01T00:00:00Z"}
            self._status(namespace, name, node, "Running", {"running": now}, ready=True)

    def ended(self, namespace: str, name: str, code: int = 0) -> None:
        """Have a pod's containers end with this exit code."""
        phase, done = "Failed" if code else "Succeeded", {"exitCode": code, "reason": "Error" if code else "Completed"}
        self._status(namespace, name, self.bound(namespace)[name], phase, {"terminated": done}, ready=False)

    def gone(self, namespace: str, name: str) -> None:
        """Have a pod that is being deleted be gone, as its kubelet does."""
        reply = self.root.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
        assert reply.status in (200, 404), reply.message

    def is_active(self, queue: str) -> bool:
        """Whether Kueue takes jobs of a ClusterQueue."""
        conditions = self.get(f"{KUEUE}/clusterqueues/{queue}").get("status", {}).get("conditions", [])
        return any(one["type"] == "Active" and one["status"] == "True" for one in conditions)

    def run_job(self, team: str, name: str, pods: int) -> None:
        """A Job of whole nodes, as a member writes it: no queue, no limits of CPU and memory."""
        container = {
            "name": "main",
            "image": "none",
            "resources": {"requests": {"nvidia.com/gpu": GPUS}, "limits": {"nvidia.com/gpu": GPUS}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        assert self.apply(indexed_job(name, team, pods, container)).status == 201

    def end_job(self, namespace: str, name: str) -> None:
        """Delete a Job; returns when nothing of the work of its namespace is left."""
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}?propagationPolicy=Foreground"
        assert self.root.request("DELETE", path).status == 200

        def gone() -> bool:
            for pod in self.pods(namespace):
                self.gone(namespace, pod["metadata"]["name"])
            return not self.pods(namespace) and not self.workloads(namespace)

        until("the end of the job", gone, 30)

    def _status(self, namespace: str, name: str, node: str, phase: str, state: Any, *, ready: bool) -> None:
        pod = self.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        truth = "True" if ready else "False"
        containers = [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "state": state,
            }
            for one in pod["spec"]["containers"]
        ]
        conditions = [{"type": kind, "status": truth} for kind in ("Ready", "ContainersReady")]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": containers}
        kubelet = self.server.client(f"system:node:{node}", ["system:nodes"])
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        reply = kubelet.request("PATCH", path, {"status": status}, STRATEGIC_PATCH)
        assert reply.status == 200, reply.message


def indexed_job(name: str, namespace: str, pods: int, container: dict[str, Any]) -> dict[str, Any]:
    """A Job of pods that run at once, each with this container."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
