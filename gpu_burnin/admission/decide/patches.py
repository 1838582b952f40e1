"""The JSON Patches (RFC 6902) that say on the Node what was decided. Pure.

api/names.py has the names of taints, labels and annotations; the gate policies on the API servers let only the
admitter change them. Each patch tests the resourceVersion: `.spec.taints` is an atomic list, so any merge would fight
with the node lifecycle controller.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from gpu_burnin.admission.decide.nodes import condition, taints
from gpu_burnin.admission.decide.times import stamp
from gpu_burnin.admission.view import Node, Patch
from gpu_burnin.api.names import CONDITION, Names


@dataclass(frozen=True)
class DesiredState:
    """How the Node should look: of our taints (key, effect) to value; labels and annotations, None for not there."""

    taints: Mapping[tuple[str, str], str] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)


def node_patch(node: Node, desired: DesiredState, ours: Collection[str]) -> Patch | None:
    """Taints, labels and annotations in one patch, or None when all are as they should be.

    `ours` are the keys of the taints that `look` is the whole truth of; others stay.
    """
    metadata = node["metadata"]
    present = taints(node)
    wanted = _taints(present, desired.taints, ours)
    patch: Patch = []
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
    return names.preflight, names.quarantine, names.testing, names.maintenance


def _taints(present: list[Any], wanted: Mapping[tuple[str, str], str], ours: Collection[str]) -> list[Any]:
    """What stays keeps its place and its time; an effect with another value is put anew."""
    kept, missing = [], dict(wanted)
    for taint in present:
        key, effect = str(taint.get("key")), str(taint.get("effect"))
        if key not in ours:
            kept.append(taint)
        elif missing.get((key, effect)) == str(taint.get("value") or ""):
            kept.append(taint)
            del missing[key, effect]
    new = [
        {"key": key, "effect": effect} | ({"value": value} if value else {}) for (key, effect), value in missing.items()
    ]
    return kept + new


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


def _escape(key: str) -> str:
    # RFC 6901: "~" before "/".
    return key.replace("~", "~0").replace("/", "~1")


def version_test(node: Node) -> dict[str, Any]:
    """The operation that holds for this version of the Node alone."""
    return {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
