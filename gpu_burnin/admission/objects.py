"""Objects of the cluster as the fleet wants them: read as one user, written as a second one only where they differ.

The second one may be the break-glass identity, whose every use is a matter for people: a fleet that is as it should be
does not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpu_burnin.admission.client import ApiError, KubeApi, Object

FIELD_MANAGER = "muster"
_FORBIDDEN = 403
_PLURALS = {
    "Namespace": "namespaces",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "PriorityLevelConfiguration": "prioritylevelconfigurations",
    "FlowSchema": "flowschemas",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ServiceAccount": "serviceaccounts",
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Service": "services",
    "Lease": "leases",
    "Deployment": "deployments",
    "DaemonSet": "daemonsets",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "PriorityClass": "priorityclasses",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
}


@dataclass(frozen=True)
class Written:
    """The objects that were (or would be) written, as Kind/name or Kind/namespace/name, and what there was before."""

    names: tuple[str, ...]
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def write_objects(wanted: Sequence[Object], reader: KubeApi, writer: Callable[[], KubeApi], *, apply: bool) -> Written:
    """Have these objects, in this order; what they say beyond `wanted` stays, and no object is deleted.

    `writer` is asked for when something is to be written, or when `reader` may not read: before the first run nobody
    has rights. Raises ApiError, also for an answer that lacks what was written, and Conflict.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for item in wanted:
        name, path = shown_name(item), path_of(item)
        found = _read(reader, writer, path, name)
        if found is not None and covers(found, item):
            continue
        before[name] = {key: found.get(key) for key in item} if found else {}
        after[name] = item
        if apply:
            query = f"fieldManager={FIELD_MANAGER}&force=true"
            answer = writer().apply(f"{path}?{query}", item, f"write {name}")
            if not covers(answer, item):
                raise ApiError(f"{reader.server}: {name} was written, and the answer is not what was asked for")
    return Written(tuple(after), before, after)


def path_of(item: Object) -> str:
    """Where an object is. Raises ApiError for a kind that nobody has described here."""
    version, kind, metadata = item["apiVersion"], item["kind"], item["metadata"]
    if kind not in _PLURALS:
        raise ApiError(f"{kind} {metadata['name']}: the kinds that can be written are {', '.join(sorted(_PLURALS))}")
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = f"/namespaces/{quote(metadata['namespace'], safe='')}" if "namespace" in metadata else ""
    return f"{base}{namespace}/{_PLURALS[kind]}/{quote(metadata['name'], safe='')}"


def shown_name(item: Object) -> str:
    """An object's kind, namespace and name."""
    metadata = item["metadata"]
    return "/".join(filter(None, (item["kind"], metadata.get("namespace", ""), metadata["name"])))


def covers(found: Any, wanted: Any, *, whole: bool = False) -> bool:
    """Whether what is there says all that is wanted; the API server adds defaults and leaves out what is empty.

    `whole`: nothing more may be there, as among the properties of a schema.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping) or (whole and set(found) != set(wanted)):
            return False
        return all(covers(found.get(key), item, whole=key == "properties") for key, item in wanted.items())
    if isinstance(wanted, list) and wanted:
        return isinstance(found, list) and len(found) == len(wanted) and all(map(covers, found, wanted))
    return bool(found == wanted) or (found is None and not wanted)


def _read(reader: KubeApi, writer: Callable[[], KubeApi], path: str, name: str) -> Object | None:
    try:
        return reader.find(path, f"read {name}")
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
    return writer().find(path, f"read {name}")
