"""How a job stands, in sentences: by its JobSet and Kueue's Workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.admission.client import KubeApi, Object
from gpu_burnin.api import kueue
from gpu_burnin.api.jobs import JOB_UID, kueue_path
from gpu_burnin.api.waits import Surroundings, Why, said_of_eviction, why_waits


@dataclass(frozen=True)
class Stand:
    """`done` is None while the job is not over, else whether it succeeded. `told` is how it stands, in a sentence."""

    told: str
    done: bool | None = None
    restarts: int = 0


def stand_of(job_set: Object, workload: Object | None) -> Stand:
    """How a job stands now."""
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
    # Of the fleet around it, of which a member may read little, `muster why` says more.
    job = kueue.workload(workload)
    wait = why_waits(job, Surroundings(), datetime.now(UTC))
    if wait is None:
        return "it has its nodes"
    waits = f"it waits: {wait.sentence}"
    if job.has("Evicted") and wait.why is not Why.BACK_OFF:
        return f"it was sent back to its queue: {said_of_eviction(job.conditions['Evicted'].message)}; {waits}"
    return waits


def _conditions(found: Object) -> dict[str, Mapping[str, Any]]:
    status = found.get("status") or {}
    return {one["type"]: one for one in status.get("conditions") or [] if one.get("status") == "True"}


def _words(condition: Mapping[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or "no reason is given").strip()


def workload_of(api: KubeApi, team: str, job_set: Object) -> Object | None:
    """Kueue's Workload of a JobSet. Raises ApiError."""
    uid = job_set["metadata"]["uid"]
    path = kueue_path("workloads", team)
    return next(iter(api.items(path, "read the job's Workload", labelSelector=f"{JOB_UID}={uid}")), None)
