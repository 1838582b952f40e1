"""Muster in a cluster of real kubelets that others built (tests/lab/foreign.py), as its admin sees it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.attached import AGENT_ACCOUNT
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.cli.muster.main import cli
from tests.integration.attach_cluster import ADMISSIONS, NAMES, objects_of
from tests.integration.attach_pod import SIMULATED
from tests.integration.gate import NODES
from tests.integration.kube import until
from tests.lab.foreign import DRIVER_ROOT, GPU_LABEL, HEALTHY, KERNEL_LOG, SANDBOX_IMAGE, SICK, ForeignCluster
from tests.support.command_line import called

APP = "app.kubernetes.io/name"
PODS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
_POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
_AGENT = {**SIMULATED, "kernel_log": KERNEL_LOG}
_CONFIG = "/etc/stand-in"
# What stands in for GPUs: a policy of this cluster's own changes the agent's pods. It is none of the objects that
# attach writes: attach compares these with what it asked for.
_CONDITION = f"object.metadata.?labels['{APP}'].orValue('') == '{AGENT_ACCOUNT}'"
_PATCH = f"""[
  JSONPatch{{op: 'replace', path: '/spec/containers/0/args/2', value: '{_CONFIG}/agent.yaml'}},
  JSONPatch{{op: 'add', path: '/spec/containers/0/env/-', value: Object.spec.containers.env{{
    name: 'MUSTER_FAKE_NVML_SCENARIO', value: '/driver/etc/fake-nvml/scenario'}}}},
  JSONPatch{{op: 'add', path: '/spec/containers/0/volumeMounts/-', value: Object.spec.containers.volumeMounts{{
    name: 'stand-in', mountPath: '{_CONFIG}', readOnly: true}}}},
  JSONPatch{{op: 'add', path: '/spec/volumes/-', value: Object.spec.volumes{{
    name: 'stand-in', hostPath: Object.spec.volumes.hostPath{{path: '{_CONFIG}'}}}}}}
]"""


_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class Attached:
    """`image` is the reference of Muster's image in each host's containerd."""

    def __init__(self, hosts: ForeignCluster, image: str) -> None:
        self.hosts, self.api = hosts, KubeApi(hosts.kubeconfig)
        label = "=".join(GPU_LABEL)
        self.words = ["attach", "--image", image, "--gpu-nodes", label, "--cluster", "test", "--level", "quick"]
        self.words += ["--driver-root", DRIVER_ROOT, "--taint-by", "webhook"]

    def muster(self, *arguments: str, code: int = 0) -> str:
        """Standard output of a command as the cluster's admin, which ends with this code."""
        with mock.patch.dict(os.environ, {"KUBECONFIG": str(self.hosts.kubeconfig)}):
            done: subprocess.CompletedProcess[str] = called(cli, *arguments)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout

    def stand_in_for_gpus(self, scratch: Path) -> None:
        """Have agents use the CPU and the simulated NVML of their host: with what `muster attach` writes for them."""
        self.muster(*self.words, "--render", str(scratch))
        maps = {one["metadata"]["name"]: one for one in yaml.safe_load_all((scratch / "30-config.yaml").read_text())}
        config = maps["muster-config"]["data"]["agent.yaml"] + yaml.safe_dump(_AGENT)
        for node in (HEALTHY, SICK):
            self.hosts.on(node, f"mkdir -p {_CONFIG}; cat > {_CONFIG}/agent.yaml <<'END'\n{config}END")
        pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        name = "stand-in.example.com"
        spec = {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [pods]},
            "matchConditions": [{"name": "agents", "expression": _CONDITION}],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _PATCH}}],
        }
        made = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
        self.api.create(_POLICIES, {**made, "kind": "MutatingAdmissionPolicy", "spec": spec})
        bindings = _POLICIES.replace("policies", "policybindings")
        self.api.create(bindings, {**made, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": name}})

        def in_force() -> bool:
            container = {"name": "a", "image": "x", "args": ["a"] * 3, "env": [{"name": "A"}]}
            mounts = {"volumeMounts": [{"name": "t", "mountPath": "/t"}]}
            spec = {"containers": [container | mounts], "volumes": [{"name": "t", "emptyDir": {}}]}
            test = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {APP: AGENT_ACCOUNT}}}
            reply = self.api.create("/api/v1/namespaces/default/pods?dryRun=All", {**test, "spec": spec})
            return _CONFIG in json.dumps(reply)

        until("the policy that stands in for GPUs", in_force, 30)

    def settled(self) -> bool:
        """Whether all nodes are ready, and what a cluster makes for itself is there."""
        nodes = list(self.api.items(NODES))
        maps = [self.api.find(f"/api/v1/namespaces/{one}/configmaps/kube-root-ca.crt") for one in _NAMESPACES]
        return len(nodes) == 3 and all(maps) and not any(one["spec"].get("taints") for one in nodes)

    def claims(self) -> dict[str, str]:
        """Fingerprints by node."""
        found = json.loads(self.muster("attach", "nodes", "--json"))
        return {str(one["node"]): str(one.get("fingerprint", "")) for one in found}

    def boot(self, name: str) -> str:
        """The boot that kubelet has reported last."""
        return str((self.node(name) or {})["status"]["nodeInfo"]["bootID"])

    def have_gpus(self, node: str) -> None:
        """As a device plugin has kubelet say it."""
        body = {"status": {"capacity": {"nvidia.com/gpu": "2"}}}
        self.api.merge(f"{NODES}/{node}/status", body)

    def pods(self, app: str, *, ending: bool = False) -> list[dict[str, Any]]:
        """Of Muster's, those that do not end; or these too."""
        found = self.api.items(PODS, labelSelector=f"{APP}={app}")
        return [dict(one) for one in found if ending or "deletionTimestamp" not in one["metadata"]]

    def ready(self, app: str, count: int) -> bool:
        """Whether so many pods of a kind are there, all of them ready."""
        found = self.pods(app)
        return len(found) == count and all(
            one["status"].get("containerStatuses", [{}])[0].get("ready", False) for one in found
        )

    def agent(self, node: str) -> str:
        """The name of the agent's pod on a node."""
        return next(str(one["metadata"]["name"]) for one in self.pods(AGENT_ACCOUNT) if one["spec"]["nodeName"] == node)

    def agent_log(self, node: str) -> str:
        return self.hosts.kubectl("logs", "--namespace", SYSTEM_NAMESPACE, self.agent(node))

    def node(self, name: str) -> dict[str, Any] | None:
        found = self.api.find(f"{NODES}/{name}")
        return None if found is None else dict(found)

    def taints(self, name: str) -> list[dict[str, str]]:
        """Muster's of a Node."""
        node = self.node(name)
        found = ((node or {}).get("spec") or {}).get("taints") or []
        ours = (one for one in found if one["key"].startswith(NAMES.domain))
        return [{k: v for k, v in one.items() if k in ("key", "value", "effect")} for one in ours]

    def state(self, name: str) -> tuple[str, str]:
        found = self.api.find(f"{ADMISSIONS}/{name}") or {}
        status = found.get("status") or {}
        return str(status.get("state", "")), str(status.get("code", ""))

    def admitted(self, name: str) -> bool:
        return self.state(name) == ("ready", "PASS") and self.taints(name) == []

    def work(self, name: str, node: str, **annotations: str) -> None:
        """A pod of somebody's that uses a GPU."""
        gpus = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "work", "image": SANDBOX_IMAGE, **gpus}],
        }
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}}
        self.api.create("/api/v1/namespaces/default/pods", {**made, "spec": spec})

    def phase(self, work: str) -> str:
        """Of somebody's pod; "" when it is gone."""
        found = self.api.find(f"/api/v1/namespaces/default/pods/{work}")
        return "" if found is None else str(found["status"]["phase"])

    def unschedulable(self, work: str) -> bool:
        """Whether the scheduler has looked for a place for somebody's pod, and found none."""
        found = self.api.get(f"/api/v1/namespaces/default/pods/{work}")["status"].get("conditions", [])
        scheduled = [one for one in found if one["type"] == "PodScheduled"]
        return [(one["status"], one.get("reason")) for one in scheduled] == [("False", "Unschedulable")]

    def memory_mib(self) -> dict[str, float]:
        """The largest working set of a pod of each kind, as kubelets say it."""
        most: dict[str, float] = {}
        for node in self.api.items(NODES):
            summary = self.api.get(f"{NODES}/{node['metadata']['name']}/proxy/stats/summary")
            for pod in summary["pods"]:
                if pod["podRef"]["namespace"] == SYSTEM_NAMESPACE:
                    app = pod["podRef"]["name"].rsplit("-", 1)[0]
                    used = pod["containers"][0]["memory"].get("workingSetBytes", 0) / (1 << 20)
                    most[app] = max(most.get(app, 0.0), round(used, 1))
        return most

    def objects(self) -> dict[str, Any]:
        """What a cluster has, without what its own services write all the time: of Nodes what others may set."""
        found = {}
        for name, one in objects_of(self.api).items():
            if name.startswith("nodes/"):
                metadata = {key: one["metadata"].get(key) for key in ("labels", "annotations")}
                found[name] = {"metadata": metadata, "taints": one["spec"].get("taints")}
            elif not name.startswith(("csinodes/", "pods/", "endpointslices/", "endpoints/")):
                found[name] = one
            else:
                found[name] = {}
        return found


def timed(what: str, condition: Callable[[], bool], timeout_s: float, since_s: float | None = None) -> None:
    """Wait for it, and print how long it took: since a time of the monotonic clock, where one is given."""
    began_s = time.monotonic() if since_s is None else since_s
    until(what, condition, timeout_s)
    print(f"{what}: {time.monotonic() - began_s:.1f} s", flush=True)


def reference(archive: Path) -> str:
    """Of the image in an archive of `make dist`."""
    return f"localhost/muster:{archive.name.removeprefix('muster-').removesuffix('-image.tar')}"
