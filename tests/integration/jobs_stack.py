"""Kueue and JobSet beside a real etcd, API server, controller manager and scheduler on loopback, and nodes without
kubelets: what runs on a node is said by `running` and `ended`, as its kubelet would."""

from __future__ import annotations

import base64
import http.client
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.api.names import (
    GPU_LABEL,
    JOBSET_USER,
    KUEUE_USER,
    LEAF_LABEL,
    RACK_LABEL,
    READY_LABEL,
    SYSTEM_NAMESPACE,
    Names,
)
from tests.integration.gate import node_info
from tests.integration.kube import (
    APPLY,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    TEAM_POLICIES,
    Client,
    Part,
    Reply,
    Server,
    api_server,
    binaries,
    ended,
    free_ports,
    gate_file,
    until,
)
from tests.integration.native import gang_flags

NAMES = Names()
MODEL = "h100-sxm5-80gb"
GPUS = 8
# Kueue's and JobSet's webhooks that have a namespace of a job: those of teams alone.
_OF_JOBS = ("job", "jobset", "pod")
# Of Kueue's 43, those of its own kinds and of the frameworks that are on.
_KUEUES = (
    "admissioncheck", "clusterqueue", "cohort", "job", "jobset", "localqueue", "provisioningrequestconfig",
    "resourceflavor", "topology", "workload", "workloadpriorityclass",
)  # fmt: skip
_JOBSETS = ("jobset", "pod")
# MultiKueue would want every Secret of its namespace, and Kueue does not lead without its rights.
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_GATES = "VisibilityOnDemand=false,MultiKueue=false,FailureRecoveryPolicy=true"


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
        return self.items(f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads")

    def queues_answer(self, *names: str) -> None:
        """Wait until Kueue knows these ClusterQueues and the LocalQueues of them.

        Its readiness does not say so, and a Job of that moment that names no queue would not be its own.
        """

        def known(path: str) -> bool:
            found = self.items(f"/apis/kueue.x-k8s.io/v1beta2/{path}")
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
            self.root.request("DELETE", f"{_KUEUE}/namespaces/{name}/localqueues")
        for plural in ("clusterqueues", "cohorts", "resourceflavors", "topologies", "admissionchecks"):
            self.root.request("DELETE", f"{_KUEUE}/{plural}")
            until(f"the end of the {plural}", lambda plural=plural: not self.items(f"{_KUEUE}/{plural}"), 60)  # type: ignore[misc]
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


@contextmanager
def jobs_stack(directory: Path, *flags: str, gang: str = "kueue") -> Iterator[Jobs]:
    """The stack, with Kueue's and JobSet's kinds served and both answering, until the block ends.

    Further flags are the API server's. `gang`: `fleet_gang`, by which roles give their programs flags.
    Raises FileNotFoundError without the binaries, and TimeoutError.
    """
    with api_server(directory, *flags, *gang_flags("kube_apiserver", gang)) as server:
        # What a fleet with teams has: all that Kueue, JobSet and tests do is under these.
        of_teams = {name: gate_file(name, directory) for name in TEAM_POLICIES}
        server.load({**server.policy_files(), **of_teams})
        ports = free_ports(6)
        jobs = Jobs(server, *_controllers(server, gang), *_programs(server, ports))
        _define(jobs, ports)
        parts = (jobs.controller_manager, jobs.scheduler, jobs.kueue, jobs.jobset)
        with ended(*parts):
            for part in parts:
                part.start()
            for name, port in (("Kueue", ports[1]), ("JobSet", ports[4])):
                until(f"{name}'s readiness", lambda port=port: _answers(port), 120)  # type: ignore[misc]
            yield jobs


def _controllers(server: Server, gang: str = "kueue") -> tuple[Part, Part]:
    place = _place()
    manager = server.kubeconfig("system:kube-controller-manager")
    scheduler = server.kubeconfig("system:kube-scheduler")
    apiserver_key = next(word for word in server.apiserver.command if word.startswith("--service-account-signing-key"))
    return (
        Part(
            [
                str(place / "kube-controller-manager"),
                f"--kubeconfig={manager}",
                "--leader-elect=false",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={apiserver_key.split('=')[1]}",
                f"--root-ca-file={server.authority.ca}",
                # No kubelet renews a Lease here.
                "--node-monitor-grace-period=24h",
                "--kube-api-qps=300",
                "--kube-api-burst=500",
                "--secure-port=0",
                *gang_flags("kube_controller_manager", gang),
            ],
            server.directory / "controller-manager.log",
        ),
        Part(
            [
                str(place / "kube-scheduler"),
                f"--kubeconfig={scheduler}",
                "--leader-elect=false",
                "--kube-api-qps=300",
                "--kube-api-burst=500",
                "--secure-port=0",
                *gang_flags("kube_scheduler", gang),
            ],
            server.directory / "scheduler.log",
        ),
    )


def _programs(server: Server, ports: Sequence[int]) -> tuple[Part, Part]:
    place, certificates = _place(), _serving(server)
    team = {"matchExpressions": [{"key": NAMES.team, "operator": "Exists"}]}
    kueue = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": SYSTEM_NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports[1]}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": ports[0], "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "internalCertManagement": {"enable": False},
        "managedJobsNamespaceSelector": team,
        "waitForPodsReady": {"timeout": "10m", "recoveryTimeout": "5m"},
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
        "resources": {"excludeResourcePrefixes": ["cpu", "memory", "ephemeral-storage"]},
        "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
    }
    jobset = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports[4]}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": ports[3], "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "internalCertManagement": {"enable": False},
    }
    parts = []
    for name, user, config in (("kueue", KUEUE_USER, kueue), ("jobset", JOBSET_USER, jobset)):
        path = server.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [str(place / name), f"--kubeconfig={server.kubeconfig(user)}", f"--config={path}"]
        if name == "kueue":
            command = _in_etc(server.directory / "etc", [*command, f"--feature-gates={_GATES}"])
        parts.append(Part(command, server.directory / f"{name}.log"))
    return parts[0], parts[1]


def _in_etc(folder: Path, command: Sequence[str]) -> list[str]:
    """A command that sees `folder` as /etc: where Kueue takes its metrics' certificate from is fixed in its main.go."""
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *own, "--mount", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(folder), *command]


def _serving(server: Server) -> Path:
    """The folder of the certificate that both show as webhooks, and Kueue with its metrics."""
    folder = server.directory / "etc/kueue/metrics/certs"
    folder.mkdir(parents=True)
    certificate, key = server.authority.issue("webhooks", server=True)
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    (folder / "tls.key").write_bytes(key.read_bytes())
    return folder


def _define(jobs: Jobs, ports: Sequence[int]) -> None:
    """Kinds, rights and webhooks from the modules' manifests."""
    bundle = base64.b64encode(jobs.server.authority.ca.read_bytes()).decode()
    for name, user, port, kept in (
        ("kueue", KUEUE_USER, ports[0], _KUEUES),
        ("jobset", JOBSET_USER, ports[3], _JOBSETS),
    ):
        for item in json.loads((_place() / f"{name}-manifests.json").read_text()):
            for hook in item.get("webhooks", ()):
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
                if hook["name"].split(".")[0][1:] in _OF_JOBS:
                    hook["namespaceSelector"] = {"matchExpressions": [{"key": NAMES.team, "operator": "Exists"}]}
            if "webhooks" in item:
                item["webhooks"] = [hook for hook in item["webhooks"] if hook["name"].split(".")[0][1:] in kept]
                item["metadata"]["name"] = name
            if item["kind"] == "ClusterRole":
                item["metadata"]["name"] = f"muster:{name}"
                jobs.apply(_binding(f"muster:{name}", user))
            jobs.apply(item)
    until("Kueue's kinds", lambda: jobs.root.request("GET", "/apis/kueue.x-k8s.io/v1beta2/workloads").status == 200)
    until("JobSet's kind", lambda: jobs.root.request("GET", "/apis/jobset.x-k8s.io/v1alpha2/jobsets").status == 200)


def _binding(role: str, user: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _place() -> Path:
    place = binaries()
    if place is None:
        raise FileNotFoundError("no binaries")
    return place
