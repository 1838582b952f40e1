"""A cluster with one team, as far as a launch asks it; its objects by path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from gpu_burnin.admission.client import JSON_TYPE, METADATA_ONLY, ApiError, Conflict, KubeApi, NotFound
from gpu_burnin.api.names import GPU_LABEL, LEAF_LABEL, RACK_LABEL, READY_LABEL

H100, H200 = "h100-sxm5-80gb", "h200-sxm-141gb"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"


def flavor(name: str, model: str) -> dict[str, Any]:
    labels = {GPU_LABEL: model, READY_LABEL: "true"}
    return {"metadata": {"name": name}, "spec": {"nodeLabels": labels, "topologyName": "fleet"}}


def queue(name: str, quotas: dict[str, dict[str, Any]], cohort: str | None = "fleet") -> dict[str, Any]:
    flavors = [{"name": of, "resources": [{"name": "nvidia.com/gpu", **quota}]} for of, quota in quotas.items()]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]
    return {
        "metadata": {"name": name},
        "spec": {"resourceGroups": groups, **({"cohortName": cohort} if cohort else {})},
    }


@dataclass
class Cluster:
    """`refused` are (namespace, resource) that the user may not make, `forbidden` paths that he may not read."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: set[tuple[str, str]] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)
    made: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    breaks: dict[str, Exception] = field(default_factory=dict)
    logs: dict[str, list[list[bytes | Exception]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @property
    def api(self) -> KubeApi:
        return cast(KubeApi, self)

    def find(self, path: str, what: str = "") -> Any:
        try:
            return self.get(path, what)
        except NotFound:
            return None

    def get(self, path: str, what: str = "", *, answer: str = JSON_TYPE) -> Any:
        if path in self.breaks:
            raise self.breaks[path]
        if path in self.forbidden:
            raise ApiError(f"cannot {what}: forbidden", 403)
        assert "/secrets/" not in path or answer == METADATA_ONLY, "a Secret's values were asked for"
        if (found := self.objects.get(path)) is None:
            raise NotFound(f"cannot {what}: not found", 404)
        return {"metadata": found["metadata"]} if answer == METADATA_ONLY else found

    def items(self, path: str, what: str = "", *, labelSelector: str = "", resourceVersion: str = "") -> Iterator[Any]:
        if path in self.forbidden:
            raise ApiError(f"cannot {what}: forbidden", 403)
        wanted = dict(one.split("=") for one in labelSelector.split(",") if one)
        for key, found in list(self.objects.items()):
            labels = found["metadata"].get("labels") or {}
            if key.rpartition("/")[0] == path and wanted.items() <= labels.items():
                yield found

    def create(self, path: str, document: Any, what: str = "") -> Any:
        if path.endswith("selfsubjectaccessreviews"):
            asked = document["spec"]["resourceAttributes"]
            return {"status": {"allowed": (asked["namespace"], asked["resource"]) not in self.refused}}
        if path in self.breaks:
            raise self.breaks[path]
        self.made.append((path, document))
        if f"{path}/{document['metadata']['name']}" in self.objects:
            raise Conflict(f"cannot {what}: already exists")
        return {**document, "metadata": {**document["metadata"], "uid": "u1"}}

    def delete(self, path: str, what: str = "") -> Any:
        self.deleted.append(path)
        return {}

    def stream(self, path: str, what: str = "") -> Iterator[bytes]:
        self.asked.append(path)
        parts = urlsplit(path)
        since = parse_qs(parts.query).get("sinceTime", [""])[0]
        for one in self.logs[parts.path].pop(0):
            if isinstance(one, Exception):
                raise one
            if one.decode()[:19] >= since[:19]:
                yield one


def cluster() -> Cluster:
    """vision has 64 H100 and 16 H200 of its own, audio lends 32 H100 of its 64; bob's team has neither."""
    made = Cluster()
    put = made.objects
    put[f"{KUEUE}/namespaces/vision/localqueues/default"] = {
        "metadata": {"name": "default"},
        "spec": {"clusterQueue": "vision"},
    }
    mine = {H100: {"nominalQuota": "64"}, H200: {"nominalQuota": 16, "borrowingLimit": 0}}
    put[f"{KUEUE}/clusterqueues/vision"] = queue("vision", mine)
    put[f"{KUEUE}/clusterqueues/audio"] = queue("audio", {H100: {"nominalQuota": 64, "lendingLimit": 32}})
    put[f"{KUEUE}/clusterqueues/alone"] = queue("alone", {H100: {"nominalQuota": 8}}, cohort=None)
    for model in (H100, H200):
        put[f"{KUEUE}/resourceflavors/{model}"] = flavor(model, model)
        labels = {GPU_LABEL: model}
        status = {"allocatable": {"nvidia.com/gpu": "8"}}
        put[f"/api/v1/nodes/{model}-1"] = {"metadata": {"name": f"{model}-1", "labels": labels}, "status": status}
    levels = [{"nodeLabel": label} for label in (LEAF_LABEL, RACK_LABEL, "kubernetes.io/hostname")]
    put[f"{KUEUE}/topologies/fleet"] = {"metadata": {"name": "fleet"}, "spec": {"levels": levels}}
    put[f"{KUEUE}/workloadpriorityclasses/high"] = {"metadata": {"name": "high"}}
    return made
