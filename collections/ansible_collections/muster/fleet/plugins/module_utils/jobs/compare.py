"""Objects of the cluster against those that are wanted. Pure functions.

An object is Muster's where it carries its label. It then says what is wanted and no more, but for labels, annotations
and `stopPolicy`, by which people stop a queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from ansible_collections.muster.fleet.plugins.module_utils.jobs.objects import RBAC, Object

from gpu_burnin.api.jobs import API, GROUP, JOBSET_API, kueue_path
from gpu_burnin.api.names import MANAGED_BY

# Kinds, in the order in which their objects are removed: people's rights first, then what Kueue keeps for others.
KINDS = {
    "RoleBinding": f"/apis/{RBAC}/v1/rolebindings",
    "LocalQueue": kueue_path("localqueues"),
    "LimitRange": "/api/v1/limitranges",
    "ResourceQuota": "/api/v1/resourcequotas",
    "ClusterQueue": kueue_path("clusterqueues"),
    "Cohort": kueue_path("cohorts"),
    "ResourceFlavor": kueue_path("resourceflavors"),
    "Topology": kueue_path("topologies"),
    "AdmissionCheck": kueue_path("admissionchecks"),
    "ProvisioningRequestConfig": kueue_path("provisioningrequestconfigs"),
    "WorkloadPriorityClass": kueue_path("workloadpriorityclasses"),
}
NAMESPACES = "/api/v1/namespaces"
# What Kueue does not let anybody change.
FIXED = {"Topology": ("levels",), "ResourceFlavor": ("nodeLabels", "tolerations", "topologyName")}
# Work that a namespace may have: how its kind is shown, and where it is.
WORK = {
    "Workload": (API, "workloads"),
    "JobSet": (JOBSET_API, "jobsets"),
    "Job": ("/apis/batch/v1", "jobs"),
    "pod": ("/api/v1", "pods"),
}
# By which Kueue keeps what it uses.
FINALIZER = f"{GROUP}/resource-in-use"
_ENDED = frozenset({"Complete", "Completed", "Failed", "Finished"})
_EMPTY: tuple[Any, ...] = (None, "", [], {})

Key = tuple[str, str, str]


def same(found: Any, wanted: Object) -> bool:
    """Whether an object says what is wanted and no more, but for what is people's and the API server's."""
    if found is None:
        return False
    there = found["metadata"].get("labels") or {}
    labels = all(there.get(key) == value for key, value in wanted["metadata"].get("labels", {}).items())
    return labels and all(_equal(_stripped(found, part), wanted[part]) for part in _parts(wanted))


def merged(found: Object, wanted: Object) -> Object:
    """What to write in the place of `found`: what is wanted, with what is people's and the API server's."""
    metadata = {
        **found["metadata"],
        "labels": {**(found["metadata"].get("labels") or {}), **wanted["metadata"]["labels"]},
    }
    result = {**found, "apiVersion": wanted["apiVersion"], "metadata": metadata}
    for part in _parts(wanted):
        result[part] = wanted[part]
    stop = (found.get("spec") or {}).get("stopPolicy")
    if "spec" in wanted and stop is not None:
        result["spec"] = {**wanted["spec"], "stopPolicy": stop}
    return result


def has_ended(work: Mapping[str, Any]) -> bool:
    """Whether a pod, Job, JobSet or Workload has ended."""
    status = work.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return True
    conditions = status.get("conditions") or ()
    return any(one.get("type") in _ENDED and one.get("status") == "True" for one in conditions)


def key_of(item: Mapping[str, Any]) -> Key:
    """Kind, namespace ("" for none) and name."""
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def path_of(key: Key) -> str:
    """Where an object is."""
    kind, namespace, name = key
    path = NAMESPACES if kind == "Namespace" else KINDS[kind]
    if namespace:
        group, _, plural = path.rpartition("/")
        path = f"{group}/namespaces/{quote(namespace, safe='')}/{plural}"
    return f"{path}/{quote(name, safe=':')}"


def is_ours(item: Mapping[str, Any]) -> bool:
    """Whether an object carries Muster's label."""
    labels = item["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in MANAGED_BY.items())


def content(found: Object) -> Object:
    """What an object says, without what the API server keeps of it."""
    return {key: value for key, value in found.items() if key not in ("metadata", "status", "apiVersion", "kind")}


def shown_like(wanted: Object, found: Object | None) -> Object:
    """What there is of what is wanted, for people to compare."""
    if found is None:
        return {}
    labels = found["metadata"].get("labels") or {}
    shown = {key: labels[key] for key in wanted["metadata"]["labels"] if key in labels}
    metadata = {**{key: wanted["metadata"][key] for key in wanted["metadata"] if key != "labels"}, "labels": shown}
    parts = {part: _stripped(found, part) for part in _parts(wanted)}
    return {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], "metadata": metadata, **parts}


def shown(key: Key) -> str:
    """Kind, namespace and name in words."""
    return "/".join(filter(None, key))


def in_words(value: Any) -> str:
    """Labels of the tree of places, or any other part of an object, for people."""
    if isinstance(value, list):
        return (
            ", ".join(str(one.get("nodeLabel", one)) if isinstance(one, Mapping) else str(one) for one in value)
            or "none"
        )
    return str(value or "none")


def _parts(wanted: Object) -> Iterator[str]:
    return (part for part in wanted if part not in ("apiVersion", "kind", "metadata"))


def _stripped(found: Mapping[str, Any], part: str) -> Any:
    """A part of an object without what is people's."""
    value = found.get(part)
    if part == "spec" and isinstance(value, Mapping):
        return {key: item for key, item in value.items() if key != "stopPolicy"}
    return value


def _equal(found: Any, wanted: Any) -> bool:
    """Equal; the API server leaves out what is empty."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return all(_equal(found.get(key), wanted.get(key)) for key in {*found, *wanted})
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(_equal, found, wanted))
    return bool(found == wanted) or (found in _EMPTY and wanted in _EMPTY)
