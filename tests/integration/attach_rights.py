"""Questions that the tests of rights put to a real API server."""

from __future__ import annotations

from typing import Any

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.names import SYSTEM_NAMESPACE


def event(namespace: str, name: str) -> tuple[str, dict[str, Any]]:
    path = f"/api/v1/namespaces/{namespace}/events/{name}?fieldManager=x&force=true"
    about = {"kind": "ConfigMap", "name": "x", "namespace": namespace, "apiVersion": "v1"}
    metadata = {"name": name, "namespace": namespace}
    return path, {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, "reason": "x"}


def looked_at() -> str:
    kinds = ("mutatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings")
    return ",".join(sorted(kinds))


def rules_of(api: KubeApi) -> list[dict[str, Any]]:
    """What RBAC lets an account do in Muster's namespace, but for what it lets anybody."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": SYSTEM_NAMESPACE},
    }
    answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
    return [
        one
        for one in answer["status"]["resourceRules"]
        if not {"authorization.k8s.io", "authentication.k8s.io"} & set(one["apiGroups"])
    ]
