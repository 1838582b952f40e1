"""ProvisioningRequests (autoscaling.x-k8s.io/v1), the PodTemplates that they name, and what they are told. Pure.

Kueue makes one for a job that waits, and reads the conditions Provisioned, Failed and BookingExpired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from gpu_burnin.admission.client import Object
from gpu_burnin.admission.decide.times import LONG_AGO, stamp, when
from gpu_burnin.admission.decide.words import sentence
from gpu_burnin.admission.jobs.workload import Workload
from gpu_burnin.admission.service.cache import pod_of
from gpu_burnin.admission.view import Patch
from gpu_burnin.api.jobs import GROUP as KUEUE
from gpu_burnin.api.names import LABEL_PREFIX
from gpu_burnin.scaler.model import Answer, Asked, PodSet, Request, Verdict

API = "/apis/autoscaling.x-k8s.io/v1"
REQUESTS = f"{API}/provisioningrequests"
# Of the pods that Kueue places: all of them under one value of this label.
REQUIRED = f"{KUEUE}/podset-required-topology"
ACCEPTED, PROVISIONED, FAILED, EXPIRED = "Accepted", "Provisioned", "Failed", "BookingExpired"
_REVOKED = "CapacityRevoked"
_MOST_CHARS = 1000


@dataclass(frozen=True)
class Asking:
    """A ProvisioningRequest as it is. `templates` are the names of its PodTemplates, each with its count of pods."""

    key: str
    version: str
    generation: int
    created: str
    workload: str
    templates: tuple[tuple[str, int], ...]
    conditions: tuple[Mapping[str, Any], ...] | None

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.key.partition("/")[0]

    @property
    def path(self) -> str:
        """Where its status is."""
        namespace, _, name = self.key.partition("/")
        return f"{API}/namespaces/{quote(namespace, safe='')}/provisioningrequests/{quote(name, safe='')}/status"

    def condition(self, kind: str) -> Mapping[str, Any]:
        """A condition by its type; empty where there is none."""
        return next((one for one in self.conditions or () if one.get("type") == kind), {})

    def is_true(self, kind: str) -> bool:
        """Whether a condition holds."""
        return self.condition(kind).get("status") == "True"


def template_path(namespace: str, name: str) -> str:
    """Where a PodTemplate is."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/podtemplates/{quote(name, safe='')}"


def asking(item: Object, class_name: str) -> Asking | None:
    """One of this class, None for another's. Raises KeyError, TypeError and ValueError for what is none."""
    metadata, spec = item["metadata"], item["spec"]
    if spec.get("provisioningClassName") != class_name or "deletionTimestamp" in metadata:
        return None
    owners = metadata.get("ownerReferences") or []
    workload = next((str(one["name"]) for one in owners if one.get("kind") == "Workload"), "")
    conditions = (item.get("status") or {}).get("conditions")
    return Asking(
        key=f"{metadata['namespace']}/{metadata['name']}",
        version=str(metadata["resourceVersion"]),
        generation=int(metadata.get("generation") or 0),
        created=str(metadata.get("creationTimestamp") or ""),
        workload=f"{metadata['namespace']}/{workload}" if workload else "",
        templates=tuple((str(one["podTemplateRef"]["name"]), int(one["count"])) for one in spec.get("podSets") or []),
        conditions=tuple(conditions) if conditions is not None else None,
    )


def pod_set(template: Object, count: int) -> PodSet:
    """What so many pods of a template want. Raises KeyError, TypeError and ValueError for what is none."""
    content = template["template"]
    spec, annotations = content["spec"], (content.get("metadata") or {}).get("annotations") or {}
    selector = {str(k): str(v) for k, v in (spec.get("nodeSelector") or {}).items() if str(k).startswith(LABEL_PREFIX)}
    gpus = pod_of({"metadata": {"name": "template"}, "spec": spec}, "").gpus
    return PodSet(count, gpus, selector, str(annotations.get(REQUIRED, "")))


def request_of(found: Asking, pod_sets: tuple[PodSet, ...] | None, workload: Workload | None) -> Request:
    """As it is decided on. `pod_sets` is None where a template is not there, `workload` where no job waits or runs."""
    state, since = Asked.OPEN, None
    if any(found.is_true(kind) for kind in (FAILED, EXPIRED, _REVOKED)):
        state = Asked.OVER
    elif found.is_true(PROVISIONED):
        state, since = Asked.PROVISIONED, when(str(found.condition(PROVISIONED).get("lastTransitionTime") or ""))
    # Kueue takes away what nobody wants any more, a little later.
    if found.workload and workload is None:
        state = Asked.OVER
    request = Request(
        key=found.key,
        created=when(found.created) or LONG_AGO,
        state=state,
        since=since,
        nodes=frozenset(workload.nodes) if workload is not None and workload.admitted else frozenset(),
        message=str(found.condition(PROVISIONED).get("message") or ""),
    )
    if pod_sets is None:
        return replace(
            request, problem=f"{found.key}: a PodTemplate that it names is not there; Kueue makes another one"
        )
    return replace(request, pod_sets=tuple(one for one in pod_sets if one.gpus and one.count))


def answer_patch(found: Asking, answer: Answer, now: datetime) -> Patch:
    """The conditions that tell it."""
    done = answer.verdict is Verdict.PROVISIONED
    told = {
        Verdict.WAIT: {ACCEPTED: True, PROVISIONED: False},
        Verdict.PROVISIONED: {ACCEPTED: True, PROVISIONED: True},
        Verdict.FAILED: {FAILED: True},
        Verdict.EXPIRED: {EXPIRED: True},
    }[answer.verdict]
    conditions = {str(one["type"]): dict(one) for one in found.conditions or ()}
    for kind, holds in told.items():
        status, old = "True" if holds else "False", conditions.get(kind, {})
        reason = answer.reason if kind != ACCEPTED else ACCEPTED
        message = sentence(answer.message, _MOST_CHARS) if kind != ACCEPTED or done else "the scaler sees to it"
        same = old.get("status") == status and old.get("lastTransitionTime")
        conditions[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": old["lastTransitionTime"] if same else stamp(now),
            "observedGeneration": found.generation,
        }
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": found.version}
    value = list(conditions.values())
    if found.conditions is None:
        return [test, {"op": "add", "path": "/status", "value": {"conditions": value}}]
    return [test, {"op": "add", "path": "/status/conditions", "value": value}]
