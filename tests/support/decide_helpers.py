"""A node as the admitter's rules see it, and what becomes of it when a decision is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gpu_burnin.admission.decide import Decision, decide, trim_node
from gpu_burnin.admission.view import Budget, Evidence, Pod, Rules, View
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.names import CONDITION, LABEL_PREFIX, Names
from gpu_burnin.api.record import Identity, NodeAdmission, Spec, Status
from tests.support.admission_helpers import BOOT, MACHINE, NOW, STATEMENT, make_node
from tests.support.fake_api import apply_patch

NAMES = Names()
RULES = Rules()
HOST_KEY = "ssh-ed25519 AAAA"
HARDWARE: Mapping[str, Any] = {
    "gpus": [["GPU-a", "1", "96.0"], ["GPU-b", "2", "96.0"]],
    "driver": "580.1",
    "kernel": "6.8.0-45",
}
PASSED = replace(STATEMENT, level="standard")
SPEC = Spec(identity=Identity(host_key=HOST_KEY, machine_id=MACHINE))
GPU_POD = Pod("ml", "train-0", "u1", gpus=8)


def make_view(
    statement: Statement | None = PASSED,
    *,
    node: Mapping[str, Any] | None = None,
    spec: Spec = SPEC,
    **changes: Any,
) -> View:
    """gpu-1 with evidence (the PASS of this boot), and its agent in this boot."""
    record = NodeAdmission("gpu-1", spec, Status(), "1", "u")
    evidence = Evidence(statement, HARDWARE) if statement is not None else Evidence()
    made = View("gpu-1", record, make_node() if node is None else node, evidence, AgentNote(BOOT))
    return replace(made, **changes)


def carried_out(view: View, decision: Decision) -> View:
    """The view after the record, the Node and its pods were written: the Node as the service keeps it."""
    node = view.node
    for patch in (decision.node_patch, decision.node_status_patch):
        if patch and node is not None:
            version = node["metadata"]["resourceVersion"]
            # The service puts the version of the first patch's answer into the second.
            node = apply_patch(node, [{**patch[0], "value": version}, *patch[1:]])
            node["metadata"]["resourceVersion"] = str(int(version) + 1)
    gone = {pod.uid for pod in decision.evict}
    pods = tuple(replace(pod, leaving=True) if pod.uid in gone else pod for pod in view.pods)
    record = replace(view.record, status=decision.status) if view.record is not None else None
    return replace(view, record=record, node=trim_node(node) if node is not None else None, pods=pods)


def settled(view: View, now: datetime = NOW, rules: Rules = RULES) -> View:
    """The view once nothing is left to do at this moment; every brake gives leave."""
    for _ in range(5):
        decision = decide(view, rules, now)
        after = carried_out(view, decision)
        if after == replace(view, node=trim_node(view.node) if view.node is not None else None):
            return after
        view = after
    raise AssertionError(f"it does not settle: {decision}")


def ready_view(**changes: Any) -> View:
    """gpu-1 after its admission, with these changes since."""
    return changed(settled(make_view()), **changes)


def changed(view: View, **changes: Any) -> View:
    """A view with changes: of its fields, or `statement`, `hardware`, `boot`, `kubelet` (Ready), `spec`, `status`."""
    statement = changes.pop("statement", None)
    if statement is not None:
        view = replace(view, evidence=Evidence(statement, changes.pop("hardware", HARDWARE)))
    if boot := changes.pop("boot", ""):
        view = replace(view, node=_with_status(view, nodeInfo={"bootID": boot, "machineID": MACHINE}))
    if kubelet := changes.pop("kubelet", ""):
        assert view.node is not None
        conditions = [
            {**c, "status": kubelet} if c["type"] == "Ready" else c for c in view.node["status"]["conditions"]
        ]
        view = replace(view, node=_with_status(view, conditions=conditions))
    for name in ("capacity", "allocatable"):
        if name in changes:
            view = replace(view, node=_with_status(view, **{name: {"nvidia.com/gpu": changes.pop(name)}}))
    if view.record is not None:
        parts = {name: replace(getattr(view.record, name), **changes.pop(name, {})) for name in ("spec", "status")}
        view = replace(view, record=replace(view.record, **parts))
    return replace(view, **changes)


def _with_status(view: View, **parts: Any) -> dict[str, Any]:
    assert view.node is not None
    return {**view.node, "status": {**view.node["status"], **parts}}


@dataclass(frozen=True)
class Seen:
    """What a Node shows of the decision."""

    state: str
    code: str
    taints: frozenset[str]
    ready: bool
    verdict: str
    condition: str
    needs: Budget | None
    evict: tuple[str, ...]
    request: str
    leave: bool
    decision: Decision = field(compare=False)
    after: View = field(compare=False)


def seen(view: View, now: datetime = NOW, rules: Rules = RULES) -> Seen:
    """Decide, carry it out, and look."""
    return shown(view, decide(view, rules, now))


def shown(view: View, decision: Decision) -> Seen:
    """What the Node shows of this decision once it is carried out."""
    after = carried_out(view, decision)
    node = after.node or {"metadata": {}, "spec": {}, "status": {}}
    labels, notes = node["metadata"].get("labels") or {}, node["metadata"].get("annotations") or {}
    taints = {
        f"{t['key'].partition('/')[2]}{'=' + t['value'] if t.get('value') else ''}:{t['effect']}"
        for t in node["spec"].get("taints", [])
        if t["key"].startswith("muster.dev/")
    }
    conditions = [c for c in node["status"].get("conditions", []) if c["type"] == CONDITION]
    return Seen(
        str(decision.status.state),
        decision.status.code,
        frozenset(taints),
        labels.get(f"{LABEL_PREFIX}ready") == "true",
        labels.get(f"{LABEL_PREFIX}verdict", ""),
        conditions[0]["status"] if conditions else "",
        decision.needs,
        tuple(pod.name for pod in decision.evict),
        notes.get("muster.dev/request", ""),
        "muster.dev/leave" in notes,
        decision,
        after,
    )
