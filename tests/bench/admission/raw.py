"""The yardstick: the PATCH requests of an admission, nothing around them, from as many threads as there are workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.admission.client import METADATA_ONLY, KubeApi, Object, admissions_path, node_path
from gpu_burnin.admission.decide import decide, trim_node
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.verify import Verifier
from gpu_burnin.admission.view import Patch, Rules, View
from gpu_burnin.api.record import parse, status_document
from tests.bench.admission.api import each
from tests.bench.admission.fleet import ADMISSIONS, NAMES
from tests.bench.admission.measure import Stopwatch

PATCHES_A_NODE = 3


@dataclass(frozen=True)
class Rate:
    """PATCHes by the clock, and the processor time of each, which hangs little on who else runs.

    A PATCH has a client in either case: who writes it, with all else that this process does, is in the sum. What the
    servers do all the time besides, the nodes' Leases, is not.
    """

    a_second: float
    client_ms: float
    servers_ms: float

    @classmethod
    def of(cls, patches: float, client: Stopwatch, servers: Stopwatch, rest_share: float) -> Rate:
        """So many since both watches were started: the writer's, and the one of API server and etcd.

        `rest_share` is the share of a core that the servers take when nobody writes.
        """
        served_s = servers.cpu_s - rest_share * servers.wall_s
        return cls(patches / client.wall_s, client.cpu_s / patches * 1000, served_s / patches * 1000)

    @property
    def cpu_ms(self) -> float:
        """Of all that take part."""
        return self.client_ms + self.servers_ms

    def __str__(self) -> str:
        """In words."""
        return (
            f"{self.a_second:.0f} PATCHes a second, {self.cpu_ms:.2f} ms of processor each "
            f"(client {self.client_ms:.2f}, API server and etcd {self.servers_ms:.2f})"
        )


def patch_all(kubeconfig: Path, names: Sequence[str], workers: int, servers: Sequence[int], rest_share: float) -> Rate:
    """Admit these nodes by the very patches that the admitter would write, which are ready before the clock runs."""
    api = KubeApi(kubeconfig, retries=0)
    records = {str(item["metadata"]["name"]): item for item in api.items(ADMISSIONS)}
    nodes, verifier, now = api.nodes(), Verifier(NAMES, Metrics()), datetime.now(UTC)
    prepared = {name: _patches(records[name], nodes[name], verifier, now) for name in names}

    def one(name: str) -> None:
        record, node, (test, *condition) = prepared[name]
        api.patch(f"{admissions_path(NAMES, name)}/status", record)
        version = api.patch(node_path(name), node, answer=METADATA_ONLY)["metadata"]["resourceVersion"]
        api.patch(f"{node_path(name)}/status", [{**test, "value": version}, *condition])

    watches = Stopwatch([os.getpid()]), Stopwatch(servers)
    each(one, names, workers)
    return Rate.of(PATCHES_A_NODE * len(names), *watches, rest_share)


def _patches(item: Object, node: Object, verifier: Verifier, now: datetime) -> tuple[Patch, Patch, Patch]:
    """Of the record's status, of the Node, and of the Node's status."""
    record, trimmed = parse(item), trim_node(node)
    evidence = verifier.evidence(record, trimmed)
    view = View(record.name, record, trimmed, evidence=evidence, agent=verifier.agent(trimmed))
    decision = decide(view, Rules(names=NAMES), now)
    if decision.node_patch is None or decision.node_status_patch is None:
        raise RuntimeError(f"{record.name} is not admitted: {decision.status.message}")
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": record.version}
    status = {"op": "add", "path": "/status", "value": status_document(decision.status)}
    return [test, status], decision.node_patch, decision.node_status_patch
