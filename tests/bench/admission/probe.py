"""How long the API server takes to answer a person while the fleet does something: a process of its own."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import KubeApi
from tests.bench.admission.measure import quantile

EVERY_S = 0.1


@dataclass
class Latencies:
    """Seconds that each request took; `failed` got no answer."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    def text(self) -> str:
        """Median, p99 and the longest."""
        p50, p99 = (quantile(self.seconds, share) * 1000 for share in (0.5, 0.99))
        most = max(self.seconds, default=float("nan")) * 1000
        said = f"{len(self.seconds)} requests: p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {most:.0f} ms"
        return f"{said}, {self.failed} failed" if self.failed else said


@contextmanager
def probing(kubeconfig: Path, node: str) -> Iterator[Latencies]:
    """GET a Node and LIST one pod in turn until the block ends; the latencies are there after it."""
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.SimpleQueue()
    process = context.Process(target=_probe, args=(kubeconfig, node, stop, results))
    found = Latencies()
    process.start()
    try:
        yield found
    finally:
        stop.set()
        found.seconds, found.failed = results.get()
        process.join()


def _probe(kubeconfig: Path, node: str, stop: Event, results: Any) -> None:
    api = KubeApi(kubeconfig, retries=0)
    paths = (f"/api/v1/nodes/{node}", "/api/v1/pods?limit=1")
    seconds: list[float] = []
    failed = number = 0
    # The first request makes the connection.
    while not stop.wait(EVERY_S):
        began_s = time.monotonic()
        try:
            api.get(paths[number % 2])
            seconds.append(time.monotonic() - began_s)
        except Exception:
            failed += 1
        number += 1
    results.put((seconds, failed))
