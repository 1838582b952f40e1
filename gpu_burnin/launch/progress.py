"""How a job stands, in sentences: by its JobSet and Kueue's Workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_burnin.admission.client import KubeApi, Object
from gpu_burnin.api.jobs import kueue_path

_UID_LABEL = "kueue.x-k8s.io/job-uid"


@dataclass(frozen=True)
class Stand:
    """`done` is None while the job is not over, else whether it succeeded. `told` is how it stands, in a sentence."""

    told: str
    done: bool | None = None
    restarts: int = 0


def stand_of(job_set: Object, workload: Object | None) -> Stand:
    """How a job stands."""
    status = job_set.get("status") or {}
    conditions = _conditions(job_set)
    restarts = int(status.get("restarts") or 0)
    if "Completed" in conditions:
        return Stand("the job succeeded", True, restarts)
    if (failed := conditions.get("Failed")) is not None:
        return Stand(f"the job failed: {_words(failed)}", False, restarts)
    told = _waiting(workload) if (job_set["spec"].get("suspend") or workload is None) else "it has its nodes"
    if restarts:
        counted = int(status.get("restartsCountTowardsMax") or 0)
        most = (job_set["spec"].get("failurePolicy") or {}).get("maxRestarts", 0)
        told += f" (started again {restarts} times, of which {counted} count; {most} may)"
    return Stand(told, None, restarts)


def _waiting(workload: Object | None) -> str:
    if workload is None:
        return "it waits for its queue to see it"
    conditions = _conditions(workload)
    status = workload.get("status") or {}
    if "Admitted" in conditions:
        return "it has its nodes"
    if "QuotaReserved" in conditions:
        checks = [
            f"{one['name']} {one['state']}" + (f" ({one['message']})" if one.get("message") else "")
            for one in status.get("admissionChecks") or []
            if one.get("state") != "Ready"
        ]
        return f"its nodes are chosen, and it waits for {', '.join(checks) or 'them'}"
    parts = []
    if (evicted := conditions.get("Evicted")) is not None:
        parts.append(f"it was sent back to its queue: {_words(evicted)}")
    reserved = next((one for one in status.get("conditions") or [] if one["type"] == "QuotaReserved"), None)
    parts.append(f"it waits: {_words(reserved)}" if reserved else "it waits in its queue")
    return "; ".join(parts)


def _conditions(found: Object) -> dict[str, Mapping[str, Any]]:
    status = found.get("status") or {}
    return {one["type"]: one for one in status.get("conditions") or [] if one.get("status") == "True"}


def _words(condition: Mapping[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or "no reason is given").strip()


def workload_of(api: KubeApi, team: str, job_set: Object) -> Object | None:
    """Kueue's Workload of a JobSet. Raises ApiError."""
    uid = job_set["metadata"]["uid"]
    path = kueue_path("workloads", team)
    return next(iter(api.items(path, "read the job's Workload", labelSelector=f"{_UID_LABEL}={uid}")), None)
