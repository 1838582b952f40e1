"""How a Node should look for a plan, and the JSON Patches (RFC 6902) that make it so. Pure.

api/names.py has the names of taints, labels and annotations; the gate policies on the API servers let only the
admitter change them. Each patch tests the resourceVersion: `.spec.taints` is an atomic list, so any merge would fight
with the node lifecycle controller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from gpu_burnin.admission.decide.between import fabric_test
from gpu_burnin.admission.decide.draining import Draining, leave_annotation
from gpu_burnin.admission.decide.facts import Facts, doubted
from gpu_burnin.admission.decide.finding import Finding, VerdictLabel
from gpu_burnin.admission.decide.nodes import condition, effects, taints
from gpu_burnin.admission.decide.plan import Plan
from gpu_burnin.admission.decide.retest import request_annotation
from gpu_burnin.admission.decide.times import stamp
from gpu_burnin.admission.decide.unproven import observes
from gpu_burnin.admission.view import Node, Patch
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.names import (
    CONDITION,
    FEED_LABEL,
    GPU_LABEL,
    LEAF_LABEL,
    NO_EXECUTE,
    NO_SCHEDULE,
    RACK_LABEL,
    READY_LABEL,
    SIMULATED_LABEL,
    TEAM_LABEL,
    VERDICT_LABEL,
    Names,
)
from gpu_burnin.api.record import Spec, State, Status
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.codec import to_json


@dataclass(frozen=True)
class DesiredState:
    """How the Node should look: of our taints (key, effect) to value; labels and annotations, None for not there."""

    taints: Mapping[tuple[str, str], str] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


def desired_state(facts: Facts, own: Finding, plan: Plan, leaving: Draining, status: Status) -> DesiredState:
    """All that is ours on the Node."""
    names, node, request, restored = facts.rules.names, facts.node, plan.test.request, doubted(facts.spec, status)
    accepted = status.accepted if plan.open else None
    # In a cluster of others NoExecute would end the pods that bring the driver, which the test needs.
    attached = facts.rules.mode is not Mode.BUILT
    wanted: dict[tuple[str, str], str] = {}
    if not plan.open:
        # NoExecute only after a boot: it would end what still runs on a node that is merely in doubt.
        wanted |= _shut(node, names, execute=facts.rebooted and not attached)
    if leaving.code:
        wanted[names.quarantine, NO_SCHEDULE] = leaving.code
        was_lost = {"key": names.quarantine, "value": leaving.code, "effect": NO_EXECUTE}
        if (leaving.lost and not attached) or any(was_lost.items() <= taint.items() for taint in taints(node)):
            wanted[names.quarantine, NO_EXECUTE] = leaving.code
    between_nodes = fabric_test(facts)
    if plan.open and (plan.shown.state is State.TESTING or between_nodes is not None):
        wanted[names.testing, NO_SCHEDULE] = ""
    if facts.windows.why and not observes(facts):
        wanted[names.maintenance, NO_SCHEDULE] = ""
    wanted |= team_taint(status.team, names)
    labels = {
        READY_LABEL: "true" if proven(facts, own, plan) else None,
        VERDICT_LABEL: str(VerdictLabel.EXPIRED if own.code == "EVIDENCE_EXPIRED" else own.verdict),
        SIMULATED_LABEL: "true" if accepted is not None and accepted.simulated else None,
        **ledger_labels(facts.spec, status.team),
    }
    annotations = {
        names.request: request_annotation(request) if request is not None and plan.test.sent else None,
        names.leave: leave_annotation(leaving.leave) if leaving.leave is not None else None,
        names.restored: restored.since if restored is not None else None,
    }
    if between_nodes is None:
        annotations[names.fabric_test] = None
    if accepted is not None:
        note = {key: value for key, value in to_json(accepted).items() if key != "hardware"}
        annotations[names.admitted] = canonical_json(note).decode("ascii")
    return DesiredState(wanted, labels, annotations)


def proven(facts: Facts, own: Finding, plan: Plan) -> bool:
    """Whether the node may take work and is said to be fit. What attaching leaves at work may be open without proof."""
    return plan.open and ((own.fit and not plan.shown.who) or facts.rules.mode is Mode.BUILT)


def shut(node: Node, names: Names) -> DesiredState:
    """A Node that nobody admits."""
    labels = {READY_LABEL: None, SIMULATED_LABEL: None, **ledger_labels(Spec())}
    return DesiredState(_shut(node, names, execute=False), labels)


def team_taint(team: str, names: Names) -> dict[tuple[str, str], str]:
    """The taint that keeps all others from a node that is dedicated to a team."""
    return {(names.team, NO_SCHEDULE): team} if team else {}


def ledger_labels(spec: Spec, team: str = "") -> dict[str, str | None]:
    """What the ledger says of every Node that it has: place, model of its GPUs, team; None for what it does not.

    They say nothing of its fitness for work.
    """
    place = spec.place
    places = {RACK_LABEL: place.rack, LEAF_LABEL: place.leaf, FEED_LABEL: place.feed}
    found = {**places, GPU_LABEL: spec.hardware.model, TEAM_LABEL: team}
    return {label: value or None for label, value in found.items()}


def node_patch(node: Node, desired: DesiredState, ours: Collection[str]) -> Patch | None:
    """Taints, labels and annotations in one patch, or None when all are as they should be.

    `ours` are the keys of the taints that `desired` is the whole truth of; others stay. What stays of ours keeps its
    place and its time; an effect with another value is put anew.
    """
    metadata, present, missing = node["metadata"], taints(node), dict(desired.taints)
    wanted, patch = [], cast(Patch, [])
    for taint in present:
        key, effect = str(taint.get("key")), str(taint.get("effect"))
        if key not in ours:
            wanted.append(taint)
        elif missing.get((key, effect)) == str(taint.get("value") or ""):
            wanted.append(taint)
            del missing[key, effect]
    wanted += [{"key": key, "effect": effect} | ({"value": v} if v else {}) for (key, effect), v in missing.items()]
    if wanted != present:
        patch.append({"op": "add", "path": "/spec/taints", "value": wanted})
    patch += map_patch("/metadata/labels", metadata.get("labels"), desired.labels)
    patch += map_patch("/metadata/annotations", metadata.get("annotations"), desired.annotations)
    return [version_test(node), *patch] if patch else None


def condition_patch(node: Node, status: str, reason: str, message: str, now: datetime) -> Patch | None:
    """The GPUVerified condition (nodes/status), or None when nothing is to change. The others are not touched."""
    old = condition(node, CONDITION)
    wanted = {"status": status, "reason": reason, "message": message}
    if old is not None and all(old.get(key) == value for key, value in wanted.items()):
        return None
    time = stamp(now)
    since = old.get("lastTransitionTime", time) if old is not None and old.get("status") == status else time
    new = {"type": CONDITION, **wanted, "lastHeartbeatTime": time, "lastTransitionTime": since}
    present = (node.get("status") or {}).get("conditions")
    path, op, value = "/status/conditions", "add", cast(Any, [new])
    if present is not None:
        places = [place for place, one in enumerate(present) if one.get("type") == CONDITION]
        # The place holds, since the version is tested.
        path, op, value = f"{path}/{places[0] if places else '-'}", "replace" if places else "add", new
    return [version_test(node), {"op": op, "path": path, "value": value}]


def our_taints(names: Names) -> tuple[str, ...]:
    """The keys of all taints of the admitter."""
    return names.preflight, names.quarantine, names.testing, names.maintenance, names.team


def map_patch(path: str, current: Mapping[str, str] | None, wanted: Mapping[str, str | None]) -> Patch:
    """What makes labels or annotations as wanted, None for gone; nothing where they are so."""
    have = current or {}
    changes = {key: value for key, value in wanted.items() if have.get(key) != value}
    if not changes:
        return []
    if current is None:
        return [{"op": "add", "path": path, "value": {k: v for k, v in changes.items() if v is not None}}]
    return [
        {"op": "remove", "path": f"{path}/{_escape(key)}"}
        if value is None
        else {"op": "add", "path": f"{path}/{_escape(key)}", "value": value}
        for key, value in changes.items()
    ]


def version_test(node: Node) -> dict[str, Any]:
    """The operation that holds for this version of the Node alone."""
    return {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}


def _shut(node: Node, names: Names, *, execute: bool) -> dict[tuple[str, str], str]:
    execute = execute or NO_EXECUTE in effects(node, names.preflight)
    return {(names.preflight, effect): "" for effect in ((NO_SCHEDULE, NO_EXECUTE) if execute else (NO_SCHEDULE,))}


def _escape(key: str) -> str:
    # RFC 6901: "~" before "/".
    return key.replace("~", "~0").replace("/", "~1")
