"""Whether somebody else has changed what a Node says of its fitness for work: the fleet's taints and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_burnin.admission.decide.desired import our_taints
from gpu_burnin.admission.view import Patch
from gpu_burnin.api.names import LABEL_PREFIX, Names


class Marks:
    """The marks of each Node as this leader left it or first saw it; of a Node that was deleted nothing is known.

    The gate lets nobody else change them. Who does it all the same acts as the admitter, or goes round the gate.
    """

    def __init__(self, names: Names) -> None:
        self._taints = our_taints(names)
        self._left: dict[str, tuple[str, frozenset[str]]] = {}

    def left(self, node: Mapping[str, Any]) -> None:
        """So it is now, and everybody may know it."""
        self._left[str(node["metadata"]["name"])] = self._of(node)

    def written(self, node: Mapping[str, Any], patch: Patch) -> None:
        """So it is after a patch of ours to this node, of which the API server sent nothing back."""
        spec, labels = dict(node.get("spec") or {}), dict(node["metadata"].get("labels") or {})
        for step in patch:
            path, value = step["path"], step.get("value")
            if path == "/spec/taints":
                spec["taints"] = value
            elif path == "/metadata/labels":
                labels = dict(value or {})
            elif path.startswith("/metadata/labels/"):
                key = path.removeprefix("/metadata/labels/").replace("~1", "/").replace("~0", "~")
                labels = {k: v for k, v in labels.items() if k != key} | ({} if value is None else {key: value})
        self.left({"metadata": {**node["metadata"], "labels": labels}, "spec": spec})

    def forget(self, name: str) -> None:
        """Nobody knows whether a write of ours has come to pass, or the Node is gone."""
        self._left.pop(name, None)

    def changed(self, node: Mapping[str, Any]) -> str:
        """What others took away and added since, in words; "" when nothing, or when nothing is known."""
        (uid, now), known = self._of(node), self._left.get(str(node["metadata"]["name"]))
        if known is None or known[0] != uid:
            return ""
        parts = (("took away", known[1] - now), ("added", now - known[1]))
        return " and ".join(f"{word} {', '.join(sorted(marks))}" for word, marks in parts if marks)

    def _of(self, node: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
        metadata = node["metadata"]
        taints = (node.get("spec") or {}).get("taints") or []
        labels = metadata.get("labels") or {}
        marks = [f"taint {t['key']}:{t['effect']}" for t in taints if t["key"] in self._taints]
        marks += [f"label {key}={value}" for key, value in labels.items() if key.startswith(LABEL_PREFIX)]
        return str(metadata.get("uid", "")), frozenset(marks)
