"""A fleet behind a fake API server, with machines that a provider switches, an admitter and a scaler at work on it."""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.machine_power import MachinePower, MachineSpec, Supply, machine_document, parse_machine
from gpu_burnin.api.names import GPU_LABEL, READY_LABEL, Names
from gpu_burnin.api.record import Hardware, Place
from gpu_burnin.power.port import PowerError, Provider, Target
from gpu_burnin.scaler import service as services
from gpu_burnin.scaler.model import Rules
from gpu_burnin.scaler.service import Service
from gpu_burnin.scaler.settings import ScalerConfig
from gpu_burnin.types import Verdict
from tests.support.admitter_helpers import Fleet, until
from tests.support.job_helpers import condition, workload

NAMES = Names()
MODEL = "h100-sxm5-80gb"
QUICK = Rules(idle_s=1.0, settle_s=0.2, on_per_feed=100, feed_s=1.0, ready_within_s=60.0, retry_s=1.0)


@dataclass
class Cloud:
    """The machines as they are. `faults` by name: sick (its burn-in fails), deaf (takes orders and does nothing)."""

    fleet: Fleet
    on: set[str] = field(default_factory=set)
    faults: dict[str, str] = field(default_factory=dict)
    orders: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda what, name: None

    def is_on(self, target: Target) -> bool:
        """See port.Provider."""
        self.before("is_on", target.name)
        return target.name in self.on

    def turn_on(self, target: Target) -> None:
        """See port.Provider."""
        self.before("on", target.name)
        self.orders.append(("on", target.name))
        if self.faults.get(target.name) == "deaf":
            raise PowerError(f"{target.name}: its BMC took the order, and the power is still off; restart the BMC")
        if target.name not in self.on:
            self.on.add(target.name)
            self.boot(target.name)

    def turn_off(self, target: Target) -> None:
        """See port.Provider."""
        self.before("off", target.name)
        self.orders.append(("off", target.name))
        self.on.discard(target.name)
        self.silence(target.name)

    def boot(self, name: str) -> None:
        """The burn-in of a new boot, and kubelet after a pass."""
        api, boot = self.fleet.api, str(uuid.uuid4())
        sick = self.faults.get(name) == "sick"
        if name not in api.nodes:
            self.fleet.register(name, boot)
            self._ready(name, "False" if sick else "True", boot)
        elif not sick:
            self._ready(name, "True", boot)
        sequence = 1 + int(self.fleet.status(name).get("highestSequence") or 0)
        fault = {"verdict": Verdict.FAIL, "code": "GEMM_MISMATCH"} if sick else {}
        self.fleet.publish(name, boot_id=boot, sequence=sequence, report_sha256=f"{sequence:064x}", **fault)
        api.merge("nodes", name, {"metadata": {"annotations": {NAMES.agent: note_text(AgentNote(boot_id=boot))}}})

    def silence(self, name: str) -> None:
        """What Kubernetes makes of a kubelet that has stopped."""
        if name in self.fleet.api.nodes:
            self._ready(name, "Unknown", "")

    def _ready(self, name: str, status: str, boot: str) -> None:
        api = self.fleet.api
        node = api.nodes[name]
        conditions = [one for one in node["status"]["conditions"] if one["type"] != "Ready"]
        ready = {"type": "Ready", "status": status, "lastTransitionTime": "2026-11-21T11:00:00Z"}
        info = {**node["status"]["nodeInfo"], **({"bootID": boot} if boot else {})}
        unschedulable = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}
        taints = [t for t in node["spec"].get("taints") or [] if not t["key"].startswith("node.kubernetes.io/")]
        taints += [unschedulable] if status != "True" else []
        api.merge(
            "nodes",
            name,
            {"spec": {"taints": taints}, "status": {"nodeInfo": info, "conditions": [*conditions, ready]}},
        )


@dataclass
class Ground:
    """The fleet with its machines and the requests of Kueue."""

    fleet: Fleet
    cloud: Cloud

    def machine(self, name: str, **spec: Any) -> None:
        """What the provisioner makes of the inventory."""
        self.fleet.provision(name, hardware=Hardware(8, model=MODEL), place=Place("r1", "l1", "a"))
        wanted = MachineSpec(**{"supply": Supply("cloud"), "gpus": 8, "model": MODEL, **spec})
        self.fleet.api.put("machinepowers", machine_document(MachinePower(name, wanted), NAMES))

    def power(self, name: str) -> MachinePower:
        """Its MachinePower."""
        return parse_machine(self.fleet.api.objects["machinepowers"][name])

    def asks(self, name: str) -> dict[str, Any]:
        """The spec of its ledger entry."""
        found: dict[str, Any] = self.fleet.api.objects["nodeadmissions"][name]["spec"]
        return found

    def request(self, name: str, pods: int) -> None:
        """What Kueue makes for a job of whole nodes that waits."""
        selector = {READY_LABEL: "true", GPU_LABEL: MODEL}
        limits = {"limits": {"nvidia.com/gpu": "8"}}
        template = {"spec": {"nodeSelector": selector, "containers": [{"name": "c", "resources": limits}]}}
        api = self.fleet.api
        api.put("podtemplates", {"metadata": {"namespace": "vision", "name": name}, "template": template})
        waiting = workload(name=f"job-{name}")
        api.put("workloads", waiting)
        owner = {"kind": "Workload", "name": f"job-{name}"}
        metadata = {"namespace": "vision", "name": name, "generation": 1, "ownerReferences": [owner]}
        metadata["creationTimestamp"] = "2026-11-22T12:00:00Z"
        spec = {"provisioningClassName": "muster.dev", "podSets": [{"podTemplateRef": {"name": name}, "count": pods}]}
        api.put("provisioningrequests", {"metadata": metadata, "spec": spec})

    def conditions(self, name: str) -> dict[str, dict[str, Any]]:
        """What the request was told, by type."""
        item = self.fleet.api.objects["provisioningrequests"][f"vision/{name}"]
        return {one["type"]: one for one in (item.get("status") or {}).get("conditions", [])}

    def provisioned(self, name: str) -> bool:
        """Whether it was told that its machines take work."""
        return self.conditions(name).get("Provisioned", {}).get("status") == "True"

    def begin(self, name: str, *nodes: str) -> None:
        """Kueue starts the job on these nodes, and its pods run."""
        self.fleet.api.put("workloads", workload(*nodes, name=f"job-{name}", conditions=[condition("Admitted")]))
        for node in nodes:
            self.work(node)

    def work(self, node: str, gpus: int = 8, name: str = "") -> None:
        """A pod on a node."""
        limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
        spec = {"nodeName": node, "containers": [{"name": "c", "resources": limits}]}
        metadata = {"namespace": "vision", "name": name or f"pod-{node}", "uid": f"uid-{node}-{name}"}
        self.fleet.api.put("pods", {"metadata": metadata, "spec": spec})

    def end(self, name: str) -> None:
        """The job is over, and all of it goes."""
        api = self.fleet.api
        for key in [key for key in api.objects.get("pods", {}) if key.startswith("vision/")]:
            api.remove("pods", key)
        api.remove("workloads", f"vision/job-{name}")
        api.remove("provisioningrequests", f"vision/{name}")


@dataclass
class Scaling:
    """A scaler at work in this process."""

    service: Service
    out: io.StringIO

    def messages(self) -> list[str]:
        """What it told."""
        return [json.loads(line)["message"] for line in self.out.getvalue().splitlines()]


@contextmanager
def scaling(
    ground: Ground,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    rules: Rules = QUICK,
    providers: Mapping[str, Provider] | None = None,
    identity: str = "api-1",
    **settings: Any,
) -> Iterator[Scaling]:
    """A scaler that leads, until the block ends."""
    kubeconfig = ground.fleet.api.kubeconfig(directory / f"scaler-{identity}.kubeconfig")
    config = ScalerConfig(
        **{
            "kubeconfig": str(kubeconfig),
            "listen": "127.0.0.1:0",
            "identity": identity,
            "observe_s": 1.0,
            "rules": rules,
            **settings,
        }
    )
    monkeypatch.setattr(
        services, "providers", lambda _: providers if providers is not None else {"cloud": ground.cloud}
    )
    monkeypatch.setattr("gpu_burnin.scaler.term.TICK_S", 0.2)
    monkeypatch.setattr("gpu_burnin.scaler.term._SPACING_S", 0.05)
    out = io.StringIO()
    service = Service(config, Journal(out))
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    try:
        until("the leadership", service.leadership.held)
        yield Scaling(service, out)
    finally:
        service.stop()
        thread.join(20)
        assert not thread.is_alive()
