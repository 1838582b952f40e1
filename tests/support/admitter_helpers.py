"""A fleet in a fake API server, as the provisioner, kubelets and agents leave it, and an admitter at work on it."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.service import Service
from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.evidence import public_key
from gpu_burnin.api.names import READY_LABEL, Names
from gpu_burnin.api.record import Identity, NodeAdmission, Proof, Spec, document
from gpu_burnin.system.clock import rfc3339
from tests.support.admission_helpers import BOOT, MACHINE, Signer, make_node
from tests.support.fake_api import FakeApi

NAMES = Names()
# What a person asks of a node.
ASK = {"who": "ada", "why": "loud fan", "since": "2026-11-22T12:00:00Z"}
WAIT_S = 20.0


def until(what: str, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    """Wait for a condition. Raises TimeoutError."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(0.01)


def settled(condition_holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it holds all the time for so long: that nothing happens has no event to wait for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not condition_holds():
            return False
        time.sleep(0.02)
    return True


def now_text() -> str:
    """This moment as statements have it."""
    return rfc3339(datetime.now(UTC))


@dataclass
class Fleet:
    """Nodes of one host key, which stands for all."""

    api: FakeApi
    signer: Signer
    names: list[str] = field(default_factory=list)

    def provision(self, name: str, **spec: Any) -> None:
        """What role node_admission makes of the inventory."""
        key = public_key(Path(f"{self.signer.key}.pub").read_text(encoding="utf-8"))
        identity = Identity(host_key=key, machine_id=MACHINE)
        wanted = replace(Spec(identity=identity, evidence=Proof(level="quick")), **spec)
        self.api.put("nodeadmissions", document(NodeAdmission(name, wanted), NAMES))

    def register(self, name: str, boot: str = BOOT) -> None:
        """What kubelet does at its start."""
        self.names.append(name)
        self.api.put_node(make_node(name, boot=boot))

    def publish(self, name: str, **changes: Any) -> None:
        """What the agent does after a run: its note and the evidence."""
        node = self.api.nodes[name]
        boot = changes.get("boot_id", node["status"]["nodeInfo"]["bootID"])
        changes = {"boot_id": boot, "finished_at": now_text(), **changes}
        annotations = {
            NAMES.agent: note_text(AgentNote(boot_id=boot)),
            NAMES.evidence: self.signer.annotation(node=name, **changes),
        }
        self.api.merge("nodes", name, {"metadata": {"annotations": annotations}})

    def prove(self, *names: str) -> None:
        """These nodes, provisioned, registered, and with the evidence of a pass."""
        for name in names:
            self.provision(name)
            self.register(name)
            self.publish(name)

    def ask(self, name: str, **asks: Any) -> None:
        """What a person writes in the spec."""
        self.api.merge("nodeadmissions", name, {"spec": asks})

    def ready(self, name: str) -> bool:
        """Whether it may take work: labelled, and without a taint of ours."""
        node = self.api.nodes[name]
        return READY_LABEL in (node["metadata"].get("labels") or {}) and not self.taints(name)

    def taints(self, name: str) -> set[str]:
        """Our taints on it as KEY:EFFECT."""
        taints = self.api.nodes[name]["spec"].get("taints") or []
        return {f"{t['key'].partition('/')[2]}:{t['effect']}" for t in taints if t["key"].startswith(NAMES.domain)}

    def status(self, name: str) -> dict[str, Any]:
        """The record's status."""
        found: dict[str, Any] = self.api.objects["nodeadmissions"][name].get("status") or {}
        return found


@dataclass
class Working:
    """An admitter at work in this process."""

    service: Service
    out: io.StringIO

    def lines(self, kind: str = "") -> list[dict[str, Any]]:
        """What it wrote so far."""
        lines = [json.loads(line) for line in self.out.getvalue().splitlines()]
        return [line for line in lines if not kind or line["kind"] == kind]

    def messages(self) -> list[str]:
        """Its sentences on itself."""
        return [line["message"] for line in self.lines("message")]


@contextmanager
def working(api: FakeApi, directory: Path, identity: str = "api-1", **settings: Any) -> Iterator[Working]:
    """An admitter that leads, until the block ends."""
    kubeconfig = api.kubeconfig(directory / f"{identity}.kubeconfig")
    config = AdmitterConfig(
        **{"kubeconfig": str(kubeconfig), "listen": "127.0.0.1:0", "identity": identity, "workers": 2, **settings}
    )
    out = io.StringIO()
    service = Service(config, Journal(out))
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    try:
        yield Working(service, out)
    finally:
        service.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()
