"""What the admission reads of a Node, and how little of one the service has to keep. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_burnin.admission.view import Node
from gpu_burnin.api.names import CONDITION, LABEL_PREFIX, NO_SCHEDULE, READY_LABEL, Names

# Of the annotations the fleet's own: kubelet's and the cloud's are not read.
_OURS = ("/evidence", "/agent", "/request", "/leave", "/admitted", "/restored", "/fabric-test", "/fabric")
_METADATA = ("name", "uid", "resourceVersion", "deletionTimestamp")
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")


def trim_node(node: Node) -> dict[str, Any]:
    """Only what decide() reads of a Node: about 1 of 20 KiB. Of foreign conditions the types stay, for their places."""
    metadata, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    if metadata.get("labels") is not None:
        kept["labels"] = {key: v for key, v in metadata["labels"].items() if key.startswith(LABEL_PREFIX)}
    if metadata.get("annotations") is not None:
        kept["annotations"] = {key: v for key, v in metadata["annotations"].items() if key.endswith(_OURS)}
    info = status.get("nodeInfo") or {}
    conditions = [
        {key: one[key] for key in (_CONDITION if one.get("type") in ("Ready", CONDITION) else ("type",)) if key in one}
        for one in status.get("conditions") or []
    ]
    trimmed: dict[str, Any] = {"nodeInfo": {key: info[key] for key in ("bootID", "machineID") if key in info}}
    trimmed |= {key: status[key] for key in ("capacity", "allocatable") if key in status}
    if status.get("conditions") is not None:
        trimmed["conditions"] = conditions
    return {"metadata": kept, "spec": {"taints": spec["taints"]} if "taints" in spec else {}, "status": trimmed}


def boot_id(node: Node) -> str:
    """The boot that kubelet last reported, or ""."""
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID", ""))


def machine_id(node: Node) -> str:
    """The machine id that kubelet last reported, or ""."""
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("machineID", ""))


def condition(node: Node, kind: str) -> Mapping[str, Any] | None:
    """A condition of the node by its type."""
    found = (c for c in (node.get("status") or {}).get("conditions") or [] if c.get("type") == kind)
    return next(found, None)


def taints(node: Node) -> list[Any]:
    """All its taints."""
    return list((node.get("spec") or {}).get("taints") or [])


def effects(node: Node, key: str) -> frozenset[str]:
    """With which effects a taint is on it."""
    return frozenset(str(taint.get("effect")) for taint in taints(node) if taint.get("key") == key)


def taint_value(node: Node, key: str) -> str:
    """The value of a taint that is on it, "" for none."""
    return next((str(taint.get("value") or "") for taint in taints(node) if taint.get("key") == key), "")


def gated(node: Node, names: Names) -> bool:
    """Whether the preflight taint keeps new pods away."""
    return NO_SCHEDULE in effects(node, names.preflight)


def labelled_ready(node: Node) -> bool:
    """Whether it carries the label of a node that may take work."""
    return READY_LABEL in (node["metadata"].get("labels") or {})


def annotation(node: Node, key: str) -> str | None:
    """An annotation by its name."""
    value = (node["metadata"].get("annotations") or {}).get(key)
    return None if value is None else str(value)


def amount(node: Node, kind: str, resource: str) -> int | None:
    """How many of a resource it has: `kind` is capacity or allocatable. None where it does not name the resource.

    A number that is none counts as 0: device plugins offer whole devices.
    """
    value = ((node.get("status") or {}).get(kind) or {}).get(resource)
    if value is None:
        return None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
