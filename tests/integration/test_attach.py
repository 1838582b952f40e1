"""Muster in a cluster that others built: a real etcd and kube-apiserver without static policies, the webhook, and its
services as processes with the tokens of their ServiceAccounts.

Only here: what a real API server does with the gate as objects, and with a token of a pod on another node. No kubelet
runs: the tests make Nodes and pods.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.gate_probe import attached as gate_probe
from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.attached import (
    ADMITTER_ACCOUNT,
    AGENT_ACCOUNT,
    GATE_CONFIG,
    GATE_KEY,
    PROBE_ACCOUNT,
    WEBHOOK,
    Mode,
    parse_gpu_nodes,
)
from gpu_burnin.api.heartbeat import Heartbeat
from gpu_burnin.api.names import SYSTEM_NAMESPACE, Names
from gpu_burnin.fleet.attach import course
from gpu_burnin.fleet.attach.settings import POLICY_TAINTS, WEBHOOK_TAINTS, Settings
from gpu_burnin.node.api import NodeApi
from gpu_burnin.node.contained import enrol
from gpu_burnin.settings.config import Config, PublishConfig
from gpu_burnin.system import host
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.types import Verdict
from tests.integration.gate import NODES, node_info
from tests.integration.kube import (
    MERGE_PATCH,
    NO_BINARIES,
    STRATEGIC_PATCH,
    Server,
    api_server,
    binaries,
    free_ports,
    until,
)
from tests.support.admission_helpers import Signer, new_host_key
from tests.support.clocks import wait_until
from tests.support.server_helpers import write_kubeconfig

T = TypeVar("T")
NAMES = Names()
TAINT = {"key": "muster.dev/preflight", "effect": "NoSchedule"}
LABELS = {"example.com/gpu": "yes"}
_MUSTER = "from gpu_burnin.__main__ import muster; muster()"
SETTINGS = Settings(
    "registry.example.com/muster:1",
    parse_gpu_nodes(("example.com/gpu=yes", "gpu-by-name")),
    Mode.ENFORCING,
    WEBHOOK_TAINTS,
    level="quick",
)
ENROLMENTS = f"/apis/{NAMES.api_version}/nodeenrolments"
ADMISSIONS = f"/apis/{NAMES.api_version}/nodeadmissions"


@dataclass
class Cluster:
    """Of others: `admin` is its cluster admin."""

    server: Server
    directory: Path

    def __post_init__(self) -> None:
        self.kubeconfig = self.server.kubeconfig("their-admin", ["system:masters"])
        self._api, self._agents = KubeApi(self.kubeconfig), {}

    kubeconfig: Path = field(init=False)
    _api: KubeApi = field(init=False)
    _agents: dict[str, KubeApi] = field(init=False)

    def api(self) -> KubeApi:
        """As its admin."""
        return self._api

    def bearer(self, account: str, pod: str = "") -> Path:
        """A kubeconfig with the token of an account, of a pod where one is named."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if pod:
            found = self.api().get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{pod}")
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": found["metadata"]["uid"]}
        made = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{account}/token"
        token = self.directory / f"{account}-{pod or 'none'}.token"
        token.write_text(self.api().create(path, made)["status"]["token"])
        place = token.with_suffix(".kubeconfig")
        cluster = {"certificate-authority": str(self.server.authority.ca)}
        return write_kubeconfig(place, f"https://127.0.0.1:{self.server.port}", {"tokenFile": str(token)}, **cluster)

    def agent(self, node: str) -> KubeApi:
        """With the token of the DaemonSet's pod on this node."""
        if node in self._agents:
            return self._agents[node]
        name = f"agent-{node}"
        pods = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
        if self.api().find(f"{pods}/{name}") is None:
            spec = {
                "nodeName": node,
                "serviceAccountName": AGENT_ACCOUNT,
                "containers": [{"name": "agent", "image": "x"}],
            }
            self.api().create(pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        made = self._agents[node] = KubeApi(self.bearer(AGENT_ACCOUNT, name))
        return made

    def muster(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """The command, as their admin."""
        command = [sys.executable, "-c", _MUSTER, *arguments]
        found = {**os.environ, "KUBECONFIG": str(self.kubeconfig), **(env or {})}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=found)

    def attach(self, mode: Mode) -> course.Written:
        return course.attach(self.api(), replace(SETTINGS, mode=mode), datetime.now(UTC))

    def daemon_set(self, name: str, while_there: Callable[[], T]) -> T:
        """What happens while their cluster has a DaemonSet without our toleration."""
        path, labels = "/apis/apps/v1/namespaces/default/daemonsets", {"app": name}
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "x"}]}}
        spec = {"selector": {"matchLabels": labels}, "template": pod}
        self.api().create(
            path, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": spec}
        )
        try:
            return while_there()
        finally:
            self.api().delete(f"{path}/{name}")

    @contextmanager
    def admitter(self, mode: Mode) -> Iterator[subprocess.Popen[bytes]]:
        """One, as its pod runs it: with the configuration that attach has written, and the token of its account."""
        data = self.api().get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/muster-config")["data"]
        config = yaml.safe_load(data["admitter.yaml"])
        assert config["mode"] == mode
        [port] = free_ports(1)
        config |= {"kubeconfig": str(self.bearer(ADMITTER_ACCOUNT)), "listen": f"127.0.0.1:{port}"}
        # Times that a test can wait for.
        config["rules"] = {"settle_s": 0.2}
        path = self.directory / "admitter.yaml"
        path.write_text(yaml.safe_dump(config))
        with self.process("admitter", "--config", str(path)) as running:
            yield running

    @contextmanager
    def process(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.directory / f"{arguments[0]}.log").open("ab") as log:
            running = subprocess.Popen([sys.executable, "-c", _MUSTER, *arguments], stdout=log, stderr=log)
        try:
            yield running
        finally:
            running.terminate()
            running.wait(20)

    @contextmanager
    def webhook(self) -> Iterator[subprocess.Popen[bytes]]:
        """One, behind its Service: an EndpointSlice as the controller would make it."""
        folders = {"attached": ("configmaps", "muster-attached"), "ca": ("secrets", "muster-webhook-ca")}
        for folder, (kind, name) in folders.items():
            place = self.directory / folder
            place.mkdir(exist_ok=True)
            data = self.api().get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/{kind}/{name}")["data"]
            for key, text in data.items():
                (place / key).write_text(base64.b64decode(text).decode() if kind == "secrets" else text)
        [port] = free_ports(1)
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/endpointslices/webhook"
        made = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "webhook", "labels": {"kubernetes.io/service-name": WEBHOOK}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
        }
        self.api().apply(f"{slices}?fieldManager=test&force=true", made)
        arguments = ["--attached", str(self.directory / "attached"), "--ca", str(self.directory / "ca")]
        with self.process("webhook", *arguments, "--listen", f"0.0.0.0:{port}") as running:
            until("the webhook's port", lambda: listens(port))
            yield running

    def machine(self, name: str) -> Machine:
        key = self.directory / f"{name}-key"
        new_host_key(key)
        return Machine(self, name, key)

    def end_namespace(self) -> None:
        """What the controllers of a cluster do with a namespace that was deleted: its pods, its slices, then itself."""
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
        for kind in ("/api/v1", "/apis/discovery.k8s.io/v1"):
            what = "pods" if kind == "/api/v1" else "endpointslices"
            for item in self.api().items(f"{kind}/namespaces/{SYSTEM_NAMESPACE}/{what}"):
                self.api().delete(
                    f"{kind}/namespaces/{SYSTEM_NAMESPACE}/{what}/{item['metadata']['name']}?gracePeriodSeconds=0"
                )
        found = self.api().find(path)
        if found is not None:
            assert found["status"]["phase"] == "Terminating"
            self.api().replace(f"{path}/finalize", {**found, "spec": {"finalizers": []}})
        until("the namespace's end", lambda: self.api().find(path) is None, 30)

    def objects(self) -> dict[str, Any]:
        """All that there is, but for what the API server keeps for itself and what ends by its time."""
        found = {}
        for version in ("v1", *(g["preferredVersion"]["groupVersion"] for g in self.api().get("/apis")["groups"])):
            base = f"/apis/{version}" if "/" in version else f"/api/{version}"
            for kind in self.api().get(base)["resources"]:
                if "/" in kind["name"] or "list" not in kind["verbs"] or kind["name"] in _TRANSIENT:
                    continue
                for item in self.api().items(f"{base}/{kind['name']}"):
                    metadata = item["metadata"]
                    name = f"{kind['name']}/{metadata.get('namespace', '')}/{metadata['name']}"
                    metadata = {
                        k: v for k, v in metadata.items() if k not in ("managedFields", "resourceVersion", "generation")
                    }
                    found[name] = {**item, "metadata": metadata}
        return found


@dataclass
class Machine:
    """A node with its kubelet, and its agent in a pod: it writes what `gpu-burnin watch --contained` does."""

    cluster: Cluster
    name: str
    key: Path
    boot: str = ""
    sequence: int = 0
    machine_id: str = ""

    def register(self, **labels: str) -> dict[str, Any]:
        """As kubelet does, which knows nothing of Muster."""
        reply = self.try_to_register(labels=labels or LABELS)
        assert reply.status == 201, reply.message
        body: dict[str, Any] = reply.body
        return body

    def try_to_register(self, **changes: Any) -> Any:
        self.boot, self.machine_id = self.boot or str(uuid.uuid4()), self.machine_id or uuid.uuid4().hex
        metadata = {"name": self.name, "labels": changes.pop("labels", LABELS)}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": self._status(), **changes}
        return self.kubelet().request("POST", NODES, node)

    def kubelet(self) -> Any:
        return self.cluster.server.client(f"system:node:{self.name}", ["system:nodes"])

    def report(self) -> int:
        path = f"{NODES}/{self.name}/status"
        return int(self.kubelet().request("PATCH", path, {"status": self._status()}, STRATEGIC_PATCH).status)

    def enrol(self) -> None:
        """As node/contained.py does."""
        root = self.cluster.directory / f"root-{self.name}"
        for place, text in ((host.MACHINE_ID, self.machine_id), (host.BOOT_ID, self.boot)):
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_text(f"{text}\n")
        config = self.config()
        assert "says who it is" in enrol(config, NodeApi(config), root)
        assert "waits for approval" in enrol(config, NodeApi(config), root)

    def config(self) -> Config:
        """The agent's, with the token of its pod."""
        self.cluster.agent(self.name)
        token = self.cluster.directory / f"{AGENT_ACCOUNT}-agent-{self.name}.token"
        server = f"https://127.0.0.1:{self.cluster.server.port}"
        publish = PublishConfig(server=server, ca=self.cluster.server.authority.ca, token=token)
        return Config(node_name=self.name, host_key=self.key, publish=publish)

    def beat(self) -> None:
        now = rfc3339(datetime.now(UTC))
        NodeApi(self.config()).renew(Heartbeat(self.boot, now, now))

    def publish(self, verdict: Verdict = Verdict.PASS, code: str = "") -> None:
        self.sequence += 1
        signer = Signer(self.key, self.cluster.directory / "unused")
        stated = {
            "node": self.name,
            "machine_id": self.machine_id,
            "boot_id": self.boot,
            "verdict": verdict,
            "level": "quick",
            "sequence": self.sequence,
            "report_sha256": f"{self.sequence:064x}",
            "finished_at": rfc3339(datetime.now(UTC)),
            "code": code,
            "message": "a product was wrong" if code else "",
        }
        self.annotate({NAMES.evidence: signer.annotation(**stated)})

    def annotate(self, notes: dict[str, str]) -> None:
        note = note_text(AgentNote(boot_id=self.boot, heartbeat=True))
        NodeApi(self.config()).annotate({NAMES.agent: note, **notes})

    def node(self) -> dict[str, Any]:
        return dict(self.cluster.api().get(f"{NODES}/{self.name}"))

    def taints(self) -> list[Any]:
        found = (self.node().get("spec") or {}).get("taints") or []
        ours = (one for one in found if one["key"].startswith(NAMES.domain))
        return [{k: v for k, v in one.items() if k in ("key", "value", "effect")} for one in ours]

    def state(self) -> tuple[str, str]:
        status = self.cluster.api().get(f"{ADMISSIONS}/{self.name}").get("status") or {}
        return str(status.get("state", "")), str(status.get("code", ""))

    def _status(self) -> dict[str, Any]:
        now = rfc3339(datetime.now(UTC))
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now}
        return {"nodeInfo": {**node_info(self.boot), "machineID": self.machine_id}, "conditions": [ready]}


_NODES = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["nodes"], "scope": "*"}
# Leases of the API server, events, and what is written of flows and addresses.
OWN = {
    "services/default/kubernetes",
    "servicecidrs//kubernetes",
    "ipaddresses//198.19.128.1",
    "configmaps/kube-system/extension-apiserver-authentication",
    "configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
}
_TRANSIENT = ("events", "leases", "flowschemas", "prioritylevelconfigurations", "componentstatuses", "apiservices")


def own_address() -> str:
    """An address of this machine that is not loopback, which no EndpointSlice may have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.18.0.1", 9))
        return str(probe.getsockname()[0])


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def rss_mib(process: subprocess.Popen[bytes]) -> float:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    directory = tmp_path_factory.mktemp("foreign")
    # The API server finds the webhook by its Service, as one in a cluster does.
    with api_server(directory, "--enable-aggregator-routing=true", foreign=True) as server:
        made = Cluster(server, directory)
        # What the API server makes for itself beside its first answers.
        wait_until(lambda: made.objects().keys() >= OWN)
        yield made


def test_all_of_it(cluster: Cluster) -> None:
    """The way of a cluster: observed, enforced, attacked, left."""
    api = cluster.api()
    old = cluster.machine("gpu-old")
    uid = old.register()["metadata"]["uid"]
    before = cluster.objects()

    # It looks, and writes nothing; nor into another cluster than is meant.
    words = ["attach", "--image", SETTINGS.image, "--gpu-nodes", "example.com/gpu=yes", "--gpu-nodes", "gpu-by-name"]
    assert cluster.muster(*words).returncode == 2
    assert cluster.muster(*words, "--cluster", "other").returncode == 2
    looked = cluster.muster(*words, "--cluster", "test", "--dry-run", "--json")
    assert looked.returncode == 0, looked.stderr
    found = json.loads(looked.stdout)
    assert (found["gpu_nodes"], found["without_gpus"], found["taints_by"]) == (["gpu-old"], ["gpu-old"], "policy")
    assert cluster.objects() == before
    rendered = cluster.muster(*words, "--enforce", "--render", str(cluster.directory / "manifests"))
    assert rendered.returncode == 0, rendered.stderr
    nobody = cluster.server.kubeconfig("somebody")
    cannot = cluster.muster(*words, "--cluster", "test", env={"KUBECONFIG": str(nobody)})
    assert cannot.returncode == 1 and "you may not write" in cannot.stderr
    # It observes: what is there is said, and nothing is tainted.
    done = cluster.muster(*words, "--cluster", "test", "--level", "quick", "--taint-by", "webhook")
    assert done.returncode == 0, done.stderr
    assert cluster.muster("attach", "nodes").returncode == 0
    healthy, sick = cluster.machine("gpu-1"), cluster.machine("gpu-2")
    for machine in (old, healthy, sick):
        if machine is not old:
            machine.register()
        machine.enrol()
    with cluster.admitter(Mode.OBSERVING) as running:
        for machine in (old, healthy, sick):
            approved = cluster.muster("attach", "approve", machine.name, "--level", "quick")
            assert approved.returncode == 0, approved.stderr
            machine.beat()
        entry = api.get(f"{ADMISSIONS}/gpu-old")["spec"]["identity"]
        assert (entry["trust"], entry["nodeUID"], entry["machineID"]) == ("first-use", uid, old.machine_id)
        healthy.publish()
        sick.publish(Verdict.FAIL, "GEMM_MISMATCH")
        until("the sick node is named", lambda: sick.state()[1] == "GEMM_MISMATCH", 30)
        until("the healthy node passes", lambda: healthy.state() == ("ready", "PASS"), 30)
        assert sick.taints() == healthy.taints() == []
        assert labels_of(sick).get("muster.node-restriction.kubernetes.io/ready") is None
        assert labels_of(healthy)["muster.node-restriction.kubernetes.io/ready"] == "true"
        assert api.get(f"{ADMISSIONS}/gpu-2")["status"]["next"]["why"].startswith("Muster only observes")
        print("admitter MiB", rss_mib(running))

    told = cluster.muster("status")
    assert "observing" in told.stdout and "gpu-2, gpu-old would be kept from work" in " ".join(told.stdout.split()), (
        told.stdout
    )

    # It enforces: the webhook taints what is new, and what is in doubt is kept from work.
    refused = cluster.daemon_set("driver", lambda: cluster.muster(*words, "--cluster", "test", "--enforce"))
    assert refused.returncode == 1 and "default/driver" in refused.stderr
    enforcing = [*words, "--cluster", "test", "--enforce", "--level", "quick", "--taint-by", "webhook"]
    assert cluster.muster(*enforcing).returncode == 0
    fresh, other = cluster.machine("gpu-3"), cluster.machine("cpu-1")
    with cluster.webhook() as webhook:
        until("the webhook is used", lambda: tainted(fresh), 30)
        other.register(role="web")
        assert other.taints() == []
        print("webhook MiB", rss_mib(webhook))
    # The webhook is away: an untainted GPU Node does not join, one that its node group taints does, and others too.
    late = cluster.machine("gpu-4")
    refused = late.try_to_register()
    assert refused.status == 403 and "muster-node-gate.attached" in refused.message
    assert late.try_to_register(spec={"taints": [TAINT]}).status == 201
    assert cluster.machine("cpu-2").try_to_register(labels={"role": "web"}).status == 201
    with cluster.admitter(Mode.ENFORCING) as running:
        fresh.enrol()
        assert cluster.muster("attach", "approve", "--all", "--level", "quick").returncode == 0
        until("the sick node is tainted", lambda: TAINT in sick.taints(), 30)
        assert {one["effect"] for one in sick.taints()} == {"NoSchedule"}
        assert healthy.taints() == []
        fresh.beat()
        fresh.annotate({})
        until("it is asked for its first test", lambda: NAMES.request in annotations_of(fresh), 30)
        fresh.beat()
        fresh.publish()
        until("the fresh node is let in", lambda: fresh.state() == ("ready", "PASS") and not fresh.taints(), 30)
        # A boot is not reported before the admitter has closed the node; NoExecute never comes.
        healthy.boot = str(uuid.uuid4())
        assert healthy.report() == 403
        healthy.annotate({})
        until("the rebooted node is tainted", lambda: healthy.taints() == [TAINT], 30)
        assert healthy.report() == 200
        healthy.beat()
        healthy.publish()
        until("it is let in again", lambda: healthy.state() == ("ready", "PASS") and not healthy.taints(), 30)
        # A Node that was made anew is not the one that was approved.
        assert api.delete(f"{NODES}/gpu-3")
        fresh.try_to_register(spec={"taints": [TAINT]})
        fresh.beat()
        fresh.publish()
        until("a Node made anew is named", lambda: fresh.state()[1] == "EVIDENCE_NODE", 30)
        assert cluster.muster("attach", "approve", "gpu-3").returncode == 1
        assert cluster.muster("attach", "approve", "gpu-3", "--again", "--level", "quick").returncode == 0
        until("it is let in", lambda: fresh.state() == ("ready", "PASS") and not fresh.taints(), 30)
        print("admitter MiB", rss_mib(running))

    by_policy(cluster)
    attack(cluster, sick, healthy)
    watch_the_gate(cluster)
    leave(cluster, before, sick)


def by_policy(cluster: Cluster) -> None:
    """Where the API server can add the taint itself, nothing is needed that could be away."""
    changed = course.attach(cluster.api(), replace(SETTINGS, taints_by=POLICY_TAINTS), datetime.now(UTC))
    assert f"MutatingWebhookConfiguration/{WEBHOOK}" in changed.removed
    fresh, kept = cluster.machine("gpu-by-name"), {"key": "example.com/kept", "effect": "NoSchedule"}
    until("the policy is used", lambda: fresh.try_to_register(labels={"a": "b"}).status == 201, 30)
    assert fresh.taints() == [TAINT]
    other = cluster.machine("gpu-6")
    assert other.try_to_register(spec={"taints": [kept]}).status == 201
    assert other.taints() == [TAINT]
    assert "example.com/kept" in json.dumps(other.node()["spec"]["taints"])
    cluster.attach(Mode.ENFORCING)


def attack(cluster: Cluster, sick: Machine, healthy: Machine) -> None:
    """What attach mode claims to stop; the page names what it does not."""
    admin = cluster.server.client("their-admin", ["system:masters"])
    ready = {"metadata": {"labels": {"muster.node-restriction.kubernetes.io/ready": "true"}}}
    verified = {"status": {"conditions": [{"type": "GPUVerified", "status": "True"}]}}
    forged: list[dict[str, Any]] = [{"spec": {"taints": []}}, {"spec": {"taints": None}}, ready]
    for who in (admin, sick.kubelet()):
        for body in forged:
            reply = who.request("PATCH", f"{NODES}/{sick.name}", body, MERGE_PATCH)
            assert reply.status == 403, (body, reply.message)
        reply = who.request("PATCH", f"{NODES}/{sick.name}/status", verified, STRATEGIC_PATCH)
        assert reply.status == 403, reply.message
    # A stolen token of the pod on the sick node: its own Node's notes, and nothing else of any Node.
    stolen = cluster.agent(sick.name)
    note = {"metadata": {"annotations": {NAMES.evidence: "x"}}}
    assert denied(lambda: stolen.merge(f"{NODES}/{healthy.name}", note))
    assert denied(lambda: stolen.merge(f"{NODES}/{sick.name}", {"spec": {"taints": []}}))
    assert denied(lambda: stolen.merge(f"{NODES}/{sick.name}", {"spec": {"unschedulable": True}}))
    assert denied(lambda: stolen.merge(f"{NODES}/{sick.name}", {"metadata": {"labels": {"example.com/gpu": None}}}))
    assert denied(lambda: stolen.merge(f"{NODES}/{sick.name}/status", verified))
    assert denied(lambda: stolen.delete(f"{NODES}/{healthy.name}"))
    beat = {"spec": {"renewTime": "2030-01-01T00:00:00Z"}}
    assert denied(lambda: stolen.merge(f"/apis/{NAMES.api_version}/agentheartbeats/{healthy.name}", beat))
    assert denied(lambda: stolen.merge(f"{ENROLMENTS}/{healthy.name}", {"spec": {"ends": "x"}}))
    # Its own enrolment was decided on: another key would be another machine.
    assert denied(lambda: stolen.merge(f"{ENROLMENTS}/{sick.name}", {"spec": {"ends": "x"}}))
    assert denied(lambda: stolen.merge(f"{ADMISSIONS}/{sick.name}", {"spec": {"hold": None}}))
    # A token of the account that no pod has is of no node.
    loose = KubeApi(cluster.bearer(AGENT_ACCOUNT))
    assert denied(lambda: loose.merge(f"{NODES}/{sick.name}", note))
    # The admin may ask for holds in his own name, and says not who a machine is, nor what its state is.
    identity = {"spec": {"identity": {"hostKey": "ssh-ed25519 AAAA"}}}
    assert admin.request("PATCH", f"{ADMISSIONS}/{sick.name}", identity, MERGE_PATCH).status == 403
    state = {"status": {"state": "ready"}}
    assert admin.request("PATCH", f"{ADMISSIONS}/{sick.name}/status", state, MERGE_PATCH).status == 403
    # The webhook has no credential, and the admitter none that could point it elsewhere.
    admitter = KubeApi(cluster.bearer(ADMITTER_ACCOUNT))
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    assert denied(lambda: admitter.merge(f"{hooks}/{WEBHOOK}", {"webhooks": []}))
    assert denied(lambda: admitter.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/muster-webhook-ca"))
    # What it does not stop: a kubelet that does not say that it has GPUs is none of Muster's.
    hidden = cluster.machine("gpu-hidden")
    assert hidden.try_to_register(labels={"role": "web"}).status == 201
    assert hidden.taints() == []
    # And who takes the gate away, which the probe tells.


def watch_the_gate(cluster: Cluster) -> None:
    api, folder = cluster.api(), cluster.directory / "gate"
    folder.mkdir()
    data = api.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{GATE_CONFIG}")["data"]
    (folder / GATE_KEY).write_text(data[GATE_KEY])
    probe, said = KubeApi(cluster.bearer(PROBE_ACCOUNT)), list[str]()
    assert gate_probe.once(probe, folder, said.append).exit_code == 0, said
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/muster-node-gate.attached"
    bindings = policies.replace("policies/", "policybindings/")
    api.merge(policies, {"spec": {"matchConstraints": {"excludeResourceRules": [_NODES]}}})
    assert gate_probe.once(probe, folder, said.append).exit_code == 1
    assert "was changed at spec.matchConstraints.excludeResourceRules" in said[0]
    # Who attaches again takes an exception away, too.
    assert cluster.attach(Mode.ENFORCING)
    until("the gate is in force", lambda: gate_probe.once(probe, folder, said.append).exit_code == 0, 30)
    said.clear()
    api.delete(bindings)
    until(
        "the gate is seen open",
        lambda: len(gate_probe.look(probe, gate_probe.read_wanted(folder)).wrong) == 2,
        30,
    )
    assert gate_probe.once(probe, folder, said.append).exit_code == 1
    assert "ValidatingAdmissionPolicyBinding/muster-node-gate.attached is gone" in said[0]
    event = api.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/events/muster-gate")
    assert "GATE OPEN" in cluster.muster("status").stdout
    assert event["reason"] == gate_probe.EVENT and "is gone" in event["message"]
    # The numbers are those of a fleet's probe, so its alert is.
    watch = gate_probe.Watch(probe, folder, 60.0)
    watch.look(said.append)
    assert b"muster_gate_refused 0\n" in watch.numbers() and b"muster_gate_objects_changed 1\n" in watch.numbers()
    # Whoever attaches again has it back.
    cluster.attach(Mode.ENFORCING)
    until("the gate is in force again", lambda: gate_probe.once(probe, folder, said.append).exit_code == 0, 30)


def leave(cluster: Cluster, before: dict[str, Any], sick: Machine) -> None:
    """Nothing of Muster is left, and what was there is as it was."""
    done = cluster.muster("detach", "--cluster", "somewhere-else")
    assert done.returncode == 2, done.stderr
    assert sick.taints() != []
    done = cluster.muster("detach", "--cluster", "test")
    assert done.returncode == 0, done.stderr
    again = cluster.muster("detach", "--cluster", "test", "--json")
    assert again.returncode == 0, again.stderr
    # Their cluster, not ours: the machines that came meanwhile, their pods, what controllers would have removed.
    cluster.end_namespace()
    after = cluster.objects()
    added = {name for name in after.keys() - before.keys() if not name.startswith(("nodes/", "pods/"))}
    assert added == set()
    assert before.keys() - after.keys() == set()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert changed == {}
    for item in cluster.api().items(NODES):
        text = json.dumps({**item, "metadata": {**item["metadata"], "managedFields": None}})
        assert "muster" not in text, item["metadata"]["name"]


def labels_of(machine: Machine) -> dict[str, str]:
    return dict(machine.node()["metadata"].get("labels") or {})


def annotations_of(machine: Machine) -> dict[str, str]:
    return dict(machine.node()["metadata"].get("annotations") or {})


def tainted(machine: Machine) -> bool:
    """Whether a Node that registers now gets the taint; while the webhook is not known yet the gate refuses it."""
    reply = machine.try_to_register()
    return reply.status == 201 and TAINT in machine.taints()


def denied(write: Callable[[], object]) -> bool:
    """Whether it is refused by a right or the gate."""
    try:
        write()
    except ApiError as error:
        return error.status == 403
    return False
