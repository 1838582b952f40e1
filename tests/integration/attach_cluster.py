"""A cluster that others built, for the test of `muster attach`: its admin, its services as processes, its machines."""

from __future__ import annotations

import base64
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
from unittest import mock

import pytest
import yaml

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.attached import (
    ADMITTER_ACCOUNT,
    AGENT_ACCOUNT,
    WEBHOOK,
    Mode,
    parse_gpu_nodes,
)
from gpu_burnin.api.heartbeat import Heartbeat
from gpu_burnin.api.names import SYSTEM_NAMESPACE, Names
from gpu_burnin.cli.muster.main import cli
from gpu_burnin.fleet.attach import course
from gpu_burnin.fleet.attach.settings import WEBHOOK_TAINTS, Settings
from gpu_burnin.node.api import ApiRefused, NodeApi
from gpu_burnin.node.contained import enrol
from gpu_burnin.settings.config import Config, PublishConfig
from gpu_burnin.system import host
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.files import write_atomic
from gpu_burnin.types import Verdict
from tests.integration.gate import NODES, node_info
from tests.integration.kube import (
    NO_BINARIES,
    STRATEGIC_PATCH,
    Server,
    api_server,
    binaries,
    free_ports,
    until,
)
from tests.support.admission_helpers import Signer, new_host_key
from tests.support.clocks import PATIENCE_S, wait_until
from tests.support.command_line import called
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
# What the API server makes for itself.
OWN = {
    "services/default/kubernetes",
    "servicecidrs//kubernetes",
    "ipaddresses//198.19.128.1",
    "configmaps/kube-system/extension-apiserver-authentication",
    "configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
}
# Leases of the API server, events, and what is written of flows and addresses.
_TRANSIENT = ("events", "leases", "flowschemas", "prioritylevelconfigurations", "componentstatuses", "apiservices")


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

    def daemon_set_of_agents(self) -> dict[str, Any]:
        """As it stands in the cluster."""
        return dict(self.api().get(f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/daemonsets/{AGENT_ACCOUNT}"))

    def token(self, account: str, pod: str = "", node: str = "") -> str:
        """A token of an account, of a pod where one is named; one of the DaemonSet's is made for it on `node`."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if pod:
            pods = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
            found = self.api().find(f"{pods}/{pod}")
            if found is None:
                # As its controller makes them, which does not run here.
                owner = self.daemon_set_of_agents()
                template = owner["spec"]["template"]
                of = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": AGENT_ACCOUNT, "controller": True}
                of["uid"] = owner["metadata"]["uid"]
                metadata = {**template["metadata"], "name": pod, "ownerReferences": [of]}
                made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
                found = self.api().create(pods, {**made, "spec": {**template["spec"], "nodeName": node}})
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": found["metadata"]["uid"]}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{account}/token"
        return str(self.api().create(path, request)["status"]["token"])

    def bearer(self, account: str, pod: str = "", node: str = "") -> Path:
        """A kubeconfig with such a token."""
        token = self.directory / f"{account}-{pod or 'none'}.token"
        # A process that was started with the one before goes on with this one.
        write_atomic(token, self.token(account, pod, node).encode())
        place = token.with_suffix(".kubeconfig")
        cluster = {"certificate-authority": str(self.server.authority.ca)}
        return write_kubeconfig(place, f"https://127.0.0.1:{self.server.port}", {"tokenFile": str(token)}, **cluster)

    def agent(self, node: str) -> KubeApi:
        """With the token of the DaemonSet's pod on this node."""
        if node not in self._agents:
            self._agents[node] = KubeApi(self.bearer(AGENT_ACCOUNT, f"agent-{node}", node))
        return self._agents[node]

    def muster(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """The command, as their admin."""
        with mock.patch.dict(os.environ, {"KUBECONFIG": str(self.kubeconfig), **(env or {})}):
            return called(cli, *arguments)

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
            running.wait(PATIENCE_S)

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
        until("the namespace's end", lambda: self.api().find(path) is None)

    def groups(self) -> set[str]:
        """Of its API."""
        return {str(one["name"]) for one in self.api().get("/apis")["groups"]}

    def objects(self) -> dict[str, Any]:
        """All that there is, but for what the API server keeps for itself and what ends by its time."""
        return objects_of(self.api())


@contextmanager
def started(directory: Path, *options: str) -> Iterator[Cluster]:
    """An API server that others built, whose own objects are there; it finds the webhook by its Service, as one in a
    cluster does. Skips the test where there are no binaries."""
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    with api_server(directory, "--enable-aggregator-routing=true", *options, foreign=True) as server:
        made = Cluster(server, directory)
        # What the API server makes for itself beside its first answers.
        wait_until(lambda: made.objects().keys() >= OWN)
        yield made


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


def objects_of(api: KubeApi) -> dict[str, Any]:
    """All objects of a cluster by kind, namespace and name, but for what ends by its time."""
    found = {}
    for version in ("v1", *(g["preferredVersion"]["groupVersion"] for g in api.get("/apis")["groups"])):
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        for kind in api.get(base)["resources"]:
            if "/" in kind["name"] or "list" not in kind["verbs"] or kind["name"] in _TRANSIENT:
                continue
            for item in api.items(f"{base}/{kind['name']}"):
                metadata = item["metadata"]
                name = f"{kind['name']}/{metadata.get('namespace', '')}/{metadata['name']}"
                metadata = {
                    k: v for k, v in metadata.items() if k not in ("managedFields", "resourceVersion", "generation")
                }
                found[name] = {**item, "metadata": metadata}
    return found


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
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def annotations_of(machine: Machine) -> dict[str, str]:
    return dict(machine.node()["metadata"].get("annotations") or {})


def denied(write: Callable[[], object]) -> bool:
    """Whether it is refused by a right or the gate."""
    try:
        write()
    except (ApiError, ApiRefused) as error:
        return error.status == 403
    return False
