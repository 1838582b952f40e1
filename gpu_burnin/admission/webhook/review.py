"""From an AdmissionReview to its answer. Pure: it only ever adds one taint, and never refuses."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from gpu_burnin.api.attached import GpuNodes, preflight_taint
from gpu_burnin.api.names import Names
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.types import JSON


class ReviewError(GpuBurninError):
    """A request that is no AdmissionReview."""


def answer(review: Mapping[str, Any], gpu_nodes: GpuNodes, names: Names) -> dict[str, JSON]:
    """What the API server is told. Raises ReviewError."""
    request = review.get("request")
    if review.get("kind") != "AdmissionReview" or not isinstance(request, Mapping) or not request.get("uid"):
        raise ReviewError("this is no AdmissionReview; only the API server has business here")
    response: dict[str, JSON] = {"uid": str(request["uid"]), "allowed": True}
    if patch := taint_patch(request, gpu_nodes, names):
        text = base64.b64encode(canonical_json(patch)).decode("ascii")
        response |= {"patchType": "JSONPatch", "patch": text}
    return {"apiVersion": str(review.get("apiVersion")), "kind": "AdmissionReview", "response": response}


def taint_patch(request: Mapping[str, Any], gpu_nodes: GpuNodes, names: Names) -> list[dict[str, Any]]:
    """The patch for a GPU Node that is created without the taint; nothing for all else."""
    kind, node = request.get("kind") or {}, request.get("object") or {}
    is_node = isinstance(kind, Mapping) and (kind.get("group"), kind.get("kind")) == ("", "Node")
    if request.get("operation") != "CREATE" or not is_node or not gpu_nodes.matches(node):
        return []
    taint, present = preflight_taint(names), (node.get("spec") or {}).get("taints")
    if any((one.get("key"), one.get("effect")) == (taint["key"], taint["effect"]) for one in present or []):
        return []
    if "spec" not in node:
        return [{"op": "add", "path": "/spec", "value": {"taints": [taint]}}]
    if not present:
        return [{"op": "add", "path": "/spec/taints", "value": [taint]}]
    return [{"op": "add", "path": "/spec/taints/-", "value": taint}]
