"""An API server for tests between nodes: Nodes and NodeAdmissions of hosts, and the stores of them, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from gpu_burnin.admission.client import Conflict
from gpu_burnin.admission.decide import trim_node
from gpu_burnin.admission.service.cache import Nodes, Records
from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Identity, NodeAdmission, Place, Spec, Status, document, status_document
from gpu_burnin.api.rendezvous import Nic
from tests.support.fake_api import apply_patch
from tests.support.rendezvous_hosts import Host

NAMES = Names()
NODE, RECORD = "/api/v1/nodes/", f"/apis/{NAMES.api_version}/nodeadmissions/"


@dataclass
class FabricCluster:
    """Writes of `failing` names meet a conflict."""

    hosts: dict[str, Host]
    failing: set[str] = field(default_factory=set)
    objects: dict[str, Any] = field(default_factory=dict)
    version: int = 100

    def __post_init__(self) -> None:
        """Empty stores."""
        self.nodes, self.records = Nodes(trim_node), Records(NAMES)

    def add(self, host: Host, address: str, leaf: str, status: Status, boot_id: str = "") -> None:
        """A host with one NIC; `boot_id`: of another boot than its own."""
        spec = Spec(Identity(host.key), place=Place(leaf=leaf), fabric=(Nic(0, address),))
        made = NodeAdmission(host.name, spec, status)
        self.put(RECORD + host.name, {**document(made, NAMES), "status": status_document(made.status)})
        notes = {NAMES.agent: note_text(AgentNote(boot_id or host.boot_id))}
        info = {"nodeInfo": {"bootID": boot_id or host.boot_id}}
        self.put(NODE + host.name, {"metadata": {"name": host.name, "annotations": notes}, "spec": {}, "status": info})

    def put(self, path: str, item: dict[str, Any]) -> dict[str, Any]:
        """A write, which the watch brings at once."""
        self.version += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        self.objects[path] = item
        (self.nodes if path.startswith(NODE) else self.records).put(item)
        return item

    def patch(self, path: str, patch: list[dict[str, Any]], what: str = "") -> dict[str, Any]:
        """See KubeApi."""
        path = path.removesuffix("/status")
        name = path.rpartition("/")[2]
        if name in self.failing or patch[0]["value"] != self.objects[path]["metadata"]["resourceVersion"]:
            raise Conflict(f"{name}: it has changed", 409)
        return self.put(path, apply_patch(self.objects[path], patch))

    def find(self, path: str) -> dict[str, Any] | None:
        """See KubeApi."""
        return cast("dict[str, Any] | None", self.objects.get(path))

    def notes(self, name: str) -> dict[str, str]:
        """The annotations of a Node."""
        return cast("dict[str, str]", self.objects[NODE + name]["metadata"]["annotations"])

    def annotate(self, name: str, key: str, value: str | None) -> None:
        """What its agent writes."""
        item = self.objects[NODE + name]
        notes = {k: v for k, v in self.notes(name).items() if k != key} | ({key: value} if value else {})
        if notes != self.notes(name):
            self.put(NODE + name, {**item, "metadata": {**item["metadata"], "annotations": notes}})

    def taint(self, name: str) -> None:
        """The testing taint, which decide() has follow the request on the Node."""
        item = self.objects[NODE + name]
        taints = [{"key": NAMES.testing, "effect": "NoSchedule"}] if NAMES.fabric_test in self.notes(name) else []
        if item["spec"].get("taints", []) != taints:
            self.put(NODE + name, {**item, "spec": {"taints": taints}})

    def status(self, name: str, **changes: Any) -> None:
        """Fields of its record."""
        item = self.objects[RECORD + name]
        self.put(RECORD + name, {**item, "status": {**item["status"], **changes}})

    def proof(self, name: str) -> dict[str, Any]:
        """What tests with others have found of it."""
        return cast("dict[str, Any]", self.objects[RECORD + name]["status"].get("fabric") or {})
