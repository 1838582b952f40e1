"""Nodes without machines: made, published, booted again, as their kubelets and agents do it."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.evidence import Statement, encode_annotation
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Hardware, Identity, NodeAdmission, Proof, Spec, document
from gpu_burnin.system.hardware_identity import digest
from gpu_burnin.types import JSON, Verdict
from tests.bench.admission.api import Api, Refused, each
from tests.integration.kube import STRATEGIC_PATCH
from tests.support.ssh_signature import public_line, sign

NAMES = Names()
NODES = "/api/v1/nodes"
ADMISSIONS = f"/apis/{NAMES.api_version}/nodeadmissions"
MACHINE = "a" * 32
GPUS = 8
ADDRESS = "198.18.0.1"
KUBELET_RETRY_S = 10.0
# What makes a real Node large: its images, of which kubelet lists 50 at the most (nodeStatusMaxImages).
_IMAGES = [{"names": [f"registry.example/team/image-{n}@sha256:{n:064x}"], "sizeBytes": 10**9} for n in range(50)]


@dataclass
class Fleet:
    """Nodes from the number `first` to below `count`, which share one host key.

    `boots` counts how often all of them have booted; `labels` are those of their Nodes.
    """

    api: Api
    count: int
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    boots: int = 1
    first: int = 0
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> Sequence[str]:
        """Their names."""
        return [f"gpu-{number:05d}" for number in range(self.first, self.count)]

    def boot_id(self, name: str) -> str:
        """The boot that the node runs now."""
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}-{self.boots}"))

    def make(self, provisioner: Api) -> None:
        """Write their NodeAdmissions and register all of them."""
        self.provision(provisioner)
        self.register()

    def provision(self, provisioner: Api) -> None:
        """Write the NodeAdmissions."""
        identity = Identity(public_line(self.key), MACHINE, addresses=(ADDRESS,))
        spec = Spec(identity, Hardware(GPUS), Proof("quick"))
        each(lambda n: provisioner.request("POST", ADMISSIONS, document(NodeAdmission(n, spec), NAMES)), self.names)

    def register(self) -> None:
        """Make the Nodes, with the preflight taint."""
        each(lambda name: self.api.request("POST", NODES, self._node(name)), self.names)

    def publish(self) -> None:
        """Evidence and note of the present boot on each, as its own agent writes them."""

        def one(name: str) -> None:
            self.api.merge(f"{NODES}/{name}", {"metadata": {"annotations": self._notes(name)}}, node=name)

        each(one, self.names)

    def boot_again(self) -> None:
        """All of them boot at once: each agent says so. kubelet's word comes later (see report_boots)."""
        self.boots += 1

        def one(name: str) -> None:
            notes = {NAMES.agent: note_text(AgentNote(self.boot_id(name)))}
            self.api.merge(f"{NODES}/{name}", {"metadata": {"annotations": notes}}, node=name)

        each(one, self.names)

    def report_boots(self) -> None:
        """Each kubelet reports the new boot until the gate takes it, and the agent its test.

        The gate takes it when the node is tainted. kubelet asks again each 10 s, the agent's test is over at once.
        """
        waiting = list(self.names)
        while waiting:
            round_ends_s = time.monotonic() + KUBELET_RETRY_S
            waiting = [name for name in each(self._report_boot, waiting) if name]
            if waiting:
                time.sleep(max(0.0, round_ends_s - time.monotonic()))

    def _report_boot(self, name: str) -> str:
        """The name where the gate did not take the report."""
        change = {"status": {"nodeInfo": {"bootID": self.boot_id(name)}}}
        try:
            self.api.merge(f"{NODES}/{name}/status", change, node=name)
        except Refused:
            return name
        self.api.merge(f"{NODES}/{name}", {"metadata": {"annotations": self._notes(name)}}, node=name)
        return ""

    def report_status(self, name: str) -> None:
        """What each kubelet writes every five minutes though nothing has changed."""
        condition = {"type": "Ready", "lastHeartbeatTime": _now()}
        path = f"{NODES}/{name}/status"
        self.api.request("PATCH", path, {"status": {"conditions": [condition]}}, STRATEGIC_PATCH, name)

    def _node(self, name: str) -> dict[str, Any]:
        now = _now()
        kinds = ("MemoryPressure", "DiskPressure", "PIDPressure")
        texts = ("systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion")
        info = {
            **dict.fromkeys(texts, "x"),
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        }
        condition = {"reason": "x", "message": "x", "lastHeartbeatTime": now, "lastTransitionTime": now}
        amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": self.labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "spec": {
                "taints": [{"key": NAMES.preflight, "effect": effect} for effect in ("NoSchedule", "NoExecute")],
            },
            "status": {
                "phase": "Running",
                "nodeInfo": {**info, "machineID": MACHINE, "bootID": self.boot_id(name)},
                "capacity": amounts,
                "allocatable": amounts,
                "images": _IMAGES,
                "conditions": [
                    *({"type": kind, "status": "False", **condition} for kind in kinds),
                    {"type": "Ready", "status": "True", **condition},
                ],
            },
        }

    def _notes(self, name: str) -> dict[str, str]:
        gpus: list[JSON] = [[f"GPU-{name}-{gpu}", f"{gpu:013d}", "96.00.D0.00.03"] for gpu in range(GPUS)]
        hardware: dict[str, JSON] = {"driver": "580.95.05", "gpus": gpus, "kernel": "6.12"}
        statement = Statement(
            node=name,
            machine_id=MACHINE,
            boot_id=self.boot_id(name),
            report_sha256="1" * 64,
            verdict=Verdict.PASS,
            level="quick",
            plan_sha256="2" * 64,
            hardware_sha256=digest(hardware),
            simulated=False,
            sequence=self.boots,
            finished_at=_now(),
        )
        data = statement.canonical()
        evidence = encode_annotation(data, sign(data, self.key), hardware)
        return {NAMES.evidence: evidence, NAMES.agent: note_text(AgentNote(self.boot_id(name)))}


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
