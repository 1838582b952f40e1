"""What runs the jobs of teams: whether Kueue and JobSet answer on this host, who leads, and how full the queues are."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, Object
from gpu_burnin.admission.gate_probe.ask import NotAsked
from gpu_burnin.api.jobs import GPUS, kueue_path, whole
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import read_text
from gpu_burnin.system.yaml_text import load

# The roles of these names write /etc/NAME/config.yaml, and their Leases have these names.
SERVICES = ("kueue", "jobset")
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Queue:
    """A team's queue: jobs that wait, and GPUs that are its own, that it uses, and of these that it borrows."""

    name: str
    pending_jobs: int
    quota_gpus: int
    used_gpus: int
    borrowed_gpus: int


@dataclass(frozen=True)
class Jobs:
    """`ready` by service; `leases`: when its leader last said that it leads, 0 for never."""

    ready: Mapping[str, bool] = field(default_factory=dict)
    leases: Mapping[str, float] = field(default_factory=dict)
    queues: tuple[Queue, ...] = ()


def queues(api: KubeApi) -> tuple[Queue, ...]:
    """All that there are. Raises NotAsked."""
    try:
        found = api.find(kueue_path("clusterqueues"), "read the queues") or {}
        return tuple(queue_of(item) for item in found.get("items", ()))
    except (ApiError, Conflict) as error:
        raise NotAsked(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAsked(f"{api.server}: its queues are of another form than Kueue's v1beta2 ({error!r})") from error


def ready(folder: Path) -> bool:
    """Whether the service that is configured in `folder` says that it is ready."""
    path = folder / "config.yaml"
    try:
        configuration: Any = load(read_text(path), path)
        address = str(configuration["health"]["healthProbeBindAddress"])
        connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        finally:
            connection.close()
    except (OSError, ValueError, KeyError, TypeError, GpuBurninError, http.client.HTTPException):
        return False


def queue_of(item: Object) -> Queue:
    """One ClusterQueue. Raises KeyError, TypeError and ValueError for one of another form."""
    flavors = [flavor for group in item["spec"].get("resourceGroups", ()) for flavor in group["flavors"]]
    status = item.get("status", {})
    usage = status.get("flavorsUsage", ())
    return Queue(
        item["metadata"]["name"],
        int(status.get("pendingWorkloads", 0)),
        _gpus(flavors, "nominalQuota"),
        _gpus(usage, "total"),
        _gpus(usage, "borrowed"),
    )


def _gpus(flavors: Any, key: str) -> int:
    return sum(
        whole(one.get(key, 0)) for flavor in flavors for one in flavor.get("resources", ()) if one["name"] == GPUS
    )
