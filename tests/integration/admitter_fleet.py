"""A fleet for the admitter on a real API server: nodes that write for themselves, admitters as processes, a witness."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.evidence import parse_statement, public_key
from gpu_burnin.api.names import ADMITTER_USER, LEASE, PROVISIONER_USER, READY_LABEL, SYSTEM_NAMESPACE, Names
from gpu_burnin.api.record import Identity, NodeAdmission, Proof, Spec, document
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.types import Verdict
from tests.integration.gate import NODES, a_node, node_info
from tests.integration.kube import MERGE_PATCH, STRATEGIC_PATCH, Client, Server, free_ports, until
from tests.integration.ledger import LEDGER
from tests.support.admission_helpers import Signer, new_host_key

NAMES = Names()
LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{LEASE}"
_MUSTER = "from gpu_burnin.__main__ import muster; muster()"


@dataclass
class Machine:
    """A node: its kubelet and its agent, which write with the node's own credential."""

    server: Server
    name: str
    signer: Signer
    boot: str = ""
    sequence: int = 0
    own: Client = field(init=False)

    def __post_init__(self) -> None:
        self.own = self.server.client(f"system:node:{self.name}", ["system:nodes"])
        self.boot = self.boot or str(uuid.uuid4())

    def provision(self, **spec: Any) -> None:
        """Its NodeAdmission, as role node_admission makes it."""
        key = public_key(Path(f"{self.signer.key}.pub").read_text(encoding="utf-8"))
        wanted = replace(Spec(identity=Identity(host_key=key), evidence=Proof(level="quick")), **spec)
        made = document(NodeAdmission(self.name, wanted), NAMES)
        reply = self.server.client(PROVISIONER_USER).request("POST", LEDGER, made)
        assert reply.status == 201, reply.message

    def register(self) -> None:
        """Its Node, with both preflight taints, and its first status."""
        node = a_node(self.name, status={"nodeInfo": self._info(), "conditions": [_reported()]})
        reply = self.own.request("POST", NODES, node)
        assert reply.status == 201, reply.message

    def publish(self, verdict: Verdict = Verdict.PASS, **changes: Any) -> None:
        """Note and evidence of a run that ends now."""
        self.sequence += 1
        stated = {
            "node": self.name,
            "machine_id": "x",
            "boot_id": self.boot,
            "verdict": verdict,
            "sequence": self.sequence,
            "report_sha256": f"{self.sequence:064x}",
            "finished_at": rfc3339(datetime.now(UTC)),
            "code": "" if verdict is Verdict.PASS else "GEMM_MISMATCH",
            "message": "" if verdict is Verdict.PASS else "a product was wrong",
        }
        self.annotate({NAMES.evidence: self.signer.annotation(**{**stated, **changes})})

    def annotate(self, more: dict[str, str]) -> None:
        """Write annotations of the node's own."""
        note = note_text(AgentNote(boot_id=self.boot))
        self._write(f"{NODES}/{self.name}", {"metadata": {"annotations": {NAMES.agent: note, **more}}})

    def reboot(self) -> None:
        """A new boot: the agent speaks first; kubelet's status is refused until the node is tainted."""
        self.boot = str(uuid.uuid4())
        self.annotate({})

    def report(self) -> bool:
        """What kubelet tells each few seconds; whether the API server took it."""
        status = {"status": {"nodeInfo": self._info(), "conditions": [_reported()]}}
        return self.own.request("PATCH", f"{NODES}/{self.name}/status", status, STRATEGIC_PATCH).status == 200

    def node(self) -> dict[str, Any]:
        """Its Node as it is."""
        return self.own.request("GET", f"{NODES}/{self.name}").body

    def open(self) -> bool:
        """Whether it takes work."""
        return is_open(self.node())

    def _info(self) -> dict[str, str]:
        return node_info(self.boot)

    def _write(self, path: str, body: dict[str, Any]) -> None:
        def written() -> bool:
            try:
                return self.own.request("PATCH", path, body, MERGE_PATCH).status == 200
            except OSError:
                return False

        until(f"a write of {self.name}", written)


@dataclass
class Person:
    """Somebody who holds nodes."""

    client: Client
    name: str

    def hold(self, machine: Machine, why: str = "looks at it") -> None:
        """Ask that it take no work."""
        ask = {"who": self.name, "why": why, "since": rfc3339(datetime.now(UTC))}
        self._ask(machine, ask)

    def release(self, machine: Machine) -> None:
        """Take the hold back."""
        self._ask(machine, None)

    def record(self, machine: Machine) -> dict[str, Any]:
        """The NodeAdmission as it is."""
        return self.client.request("GET", f"{LEDGER}/{machine.name}").body

    def _ask(self, machine: Machine, ask: dict[str, str] | None) -> None:
        def is_patched() -> bool:
            try:
                body = {"spec": {"hold": ask}}
                return self.client.request("PATCH", f"{LEDGER}/{machine.name}", body, MERGE_PATCH).status == 200
            except OSError:
                return False

        until("the hold", is_patched)


@dataclass
class Process:
    """One admitter as its unit runs it."""

    identity: str
    config: Path
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run it."""
        command = [sys.executable, "-c", _MUSTER, "admitter", "--config", str(self.config)]
        with self.log.open("ab") as output:
            self.running = subprocess.Popen(command, stdout=output, stderr=output)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.running is not None
        os.kill(self.running.pid, number)

    def kill(self) -> None:
        """End it as a lost machine does."""
        if self.running is not None:
            self.running.kill()
            self.running.wait()

    def lines(self) -> list[dict[str, Any]]:
        """What it told."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@contextmanager
def admitters(server: Server, directory: Path, identities: Sequence[str], **settings: Any) -> Iterator[list[Process]]:
    """Admitters of this API server, until the block ends."""
    kubeconfig = server.kubeconfig(ADMITTER_USER)
    processes = []
    for identity, port in zip(identities, free_ports(len(identities)), strict=True):
        config = directory / f"{identity}.yaml"
        content = {"kubeconfig": str(kubeconfig), "listen": f"127.0.0.1:{port}", "identity": identity, **settings}
        config.write_text(yaml.safe_dump(content))
        processes.append(Process(identity, config, directory / f"{identity}.log"))
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            process.kill()


def leader(root: Client) -> str:
    """Who holds the Lease: the process' own name, which no other ever has; "" for nobody or not known."""
    try:
        spec = root.request("GET", LEASE_PATH).body.get("spec") or {}
    except OSError:
        return ""
    return str(spec.get("holderIdentity") or "")


def is_open(node: dict[str, Any]) -> bool:
    """Whether a Node takes work: labelled, and without any taint of the admitter's that keeps pods away."""
    labels = node.get("metadata", {}).get("labels") or {}
    taints = node.get("spec", {}).get("taints") or []
    return READY_LABEL in labels and not any(taint["key"].startswith(NAMES.domain) for taint in taints)


@dataclass
class Witness:
    """Sees the versions of every Node and NodeAdmission, and judges each opening by what that very version says.

    A Node that opens carries the evidence that it is opened for: its patch tested that version. A hold is lost when
    the ledger says `ready` in a version that has the hold. `gaps` are the times that an API server forgot versions.
    """

    client: Client
    openings: int = 0
    gaps: int = 0
    false_admits: list[str] = field(default_factory=list)
    lost_holds: list[str] = field(default_factory=list)
    seen: int = 0
    _was_open: dict[str, bool] = field(default_factory=dict)
    _stopped: bool = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Until the block ends."""
        kinds: list[tuple[str, Callable[[dict[str, Any]], None]]] = [(NODES, self._node), (LEDGER, self._record)]
        threads = [threading.Thread(target=self._watch, args=kind, daemon=True) for kind in kinds]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped = True

    def _watch(self, path: str, judge: Callable[[dict[str, Any]], None]) -> None:
        version = ""
        while not self._stopped:
            try:
                if not version:
                    version = self._listed(path)
                for event in self.client.stream(f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=30"):
                    if event["type"] == "ERROR":
                        # An API server that has started anew does not know the versions before it.
                        self.gaps, version = self.gaps + 1, ""
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    self.seen += 1
                    judge(event["object"])
            except (OSError, KeyError, ValueError):
                time.sleep(0.1)

    def _listed(self, path: str) -> str:
        """The version of a list. What it shows is no opening: what came between is not known."""
        listed = self.client.request("GET", path).body
        for item in listed["items"]:
            name = item["metadata"]["name"]
            if path == NODES:
                self._was_open[name] = is_open(item)
            else:
                self._was_open[f"record {name}"] = (item.get("status") or {}).get("state") == "ready"
        return str(listed["metadata"]["resourceVersion"])

    def _node(self, node: dict[str, Any]) -> None:
        name, now_open = node["metadata"]["name"], is_open(node)
        if now_open and not self._was_open.get(name, False):
            self.openings += 1
            if why := _unproven(node):
                self.false_admits.append(f"{name}: {why}")
        self._was_open[name] = now_open

    def _record(self, record: dict[str, Any]) -> None:
        state, before = (record.get("status") or {}).get("state"), self._was_open
        key = f"record {record['metadata']['name']}"
        ready = state == "ready"
        if ready and not before.get(key, False) and (record.get("spec") or {}).get("hold"):
            self.lost_holds.append(f"{record['metadata']['name']}: ready though held")
        before[key] = ready


def _unproven(node: dict[str, Any]) -> str:
    """Why this version of a Node may not be open, "" when it may."""
    text = (node["metadata"].get("annotations") or {}).get(NAMES.evidence)
    if not text:
        return "no evidence"
    statement = parse_statement(json.loads(text)["statement"].encode("ascii"))
    boot = node["status"]["nodeInfo"]["bootID"]
    if statement.verdict is not Verdict.PASS:
        return f"its evidence is a {statement.verdict}"
    return "" if statement.boot_id == boot else "its evidence is of another boot"


def _reported() -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready", "lastHeartbeatTime": now}


def make_machines(server: Server, directory: Path, prefix: str, count: int) -> list[Machine]:
    """Provisioned and registered, all with one host key."""
    key = directory / f"{prefix}-host-key"
    new_host_key(key)
    machines = [Machine(server, f"{prefix}-{number}", Signer(key, directory / "unused")) for number in range(count)]
    for machine in machines:
        machine.provision()
        machine.register()
    return machines
