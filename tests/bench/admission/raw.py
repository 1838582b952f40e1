"""The yardstick: the PATCH requests of an admission, nothing around them, from as many threads as there are workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import KubeApi, admissions_path, node_path
from gpu_burnin.admission.names import CONDITION
from gpu_burnin.admission.record import Next, State, Status, Transition, status_document
from gpu_burnin.system.clock import rfc3339
from tests.bench.admission.api import each
from tests.bench.admission.fleet import ADMISSIONS, NAMES
from tests.bench.admission.measure import Stopwatch

PATCHES_A_NODE = 3
_TEXT = "waits for its first test; this is the yardstick of a benchmark, as long as such a sentence is"


@dataclass(frozen=True)
class Rate:
    """PATCHes by the clock, and what each costs all processes that take part: that is no matter of who else runs."""

    a_second: float
    cpu_ms: float

    @classmethod
    def of(cls, patches: float, watch: Stopwatch) -> Rate:
        """So many since the watch was started."""
        return cls(patches / watch.wall_s, watch.cpu_s / patches * 1000)

    def __str__(self) -> str:
        """In words."""
        return f"{self.a_second:.0f} PATCHes a second, {self.cpu_ms:.1f} ms of processor each"


def patch_all(kubeconfig: Path, names: Sequence[str], workers: int, pids: Sequence[int]) -> Rate:
    """For each node the record's status, the Node, the Node's status, as the admitter writes them."""
    api = KubeApi(kubeconfig, retries=0)
    versions = {str(one["metadata"]["name"]): str(one["metadata"]["resourceVersion"]) for one in api.items(ADMISSIONS)}
    nodes = {name: str(node["metadata"]["resourceVersion"]) for name, node in api.nodes().items()}
    at = rfc3339(datetime.now(UTC))
    status = Status(
        State.NEW,
        since=at,
        code="NO_EVIDENCE",
        message=_TEXT,
        next=Next("wait", _TEXT, at),
        transitions=(Transition(at, "new", "new", "NO_EVIDENCE", _TEXT),),
    )
    condition = {
        "type": CONDITION, "status": "False", "reason": "NoEvidence", "message": _TEXT,
        "lastHeartbeatTime": at[:19] + "Z", "lastTransitionTime": at[:19] + "Z",
    }  # fmt: skip
    annotation = f"/metadata/annotations/{NAMES.admitted.replace('/', '~1')}"

    def tested(version: str) -> dict[str, Any]:
        return {"op": "test", "path": "/metadata/resourceVersion", "value": version}

    def one(name: str) -> None:
        change = [tested(versions[name]), {"op": "add", "path": "/status", "value": status_document(status)}]
        api.patch(f"{admissions_path(NAMES, name)}/status", change)
        change = [tested(nodes[name]), {"op": "add", "path": annotation, "value": _TEXT}]
        version = api.patch(node_path(name), change)["metadata"]["resourceVersion"]
        change = [tested(version), {"op": "add", "path": "/status/conditions/-", "value": condition}]
        api.patch(f"{node_path(name)}/status", change)

    watch = Stopwatch(pids)
    each(one, names, workers)
    return Rate.of(PATCHES_A_NODE * len(names), watch)
