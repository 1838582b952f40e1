"""NodeAdmissions as the API server sends them, for the tests of `muster`."""

from __future__ import annotations

from typing import Any

from gpu_burnin.api.names import Names

NAMES = Names()


def admission(name: str, state: str = "ready", *, code: str = "", message: str = "", **status: Any) -> dict[str, Any]:
    """One, proven at 2026-11-20T10:00:00Z."""
    found = {
        "state": state,
        "since": "2026-11-21T10:00:00Z",
        "code": code,
        "message": message,
        "proofs": {"standard": "2026-11-20T10:00:00Z"},
    }
    return {
        "apiVersion": NAMES.api_version,
        "kind": "NodeAdmission",
        "metadata": {"name": name},
        "spec": {"identity": {"hostKey": "", "machineID": ""}},
        "status": {**found, **status},
    }


def node(name: str, ready: str = "True", **spec: Any) -> dict[str, Any]:
    """A Node that takes work, unless it is told otherwise."""
    condition = {"type": "Ready", "status": ready, "reason": "Kubelet", "message": "kubelet says so"}
    labels = {"muster.node-restriction.kubernetes.io/ready": "true"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"conditions": [condition]}}


def lease(holder: str, renewed: str) -> dict[str, Any]:
    """The admitter's."""
    return {
        "metadata": {"name": "muster-admitter", "namespace": "muster-system"},
        "spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15},
    }


def pause(**data: str) -> dict[str, Any]:
    """The pause switch."""
    return {"metadata": {"name": "muster-pause", "namespace": "muster-system"}, "data": data}
