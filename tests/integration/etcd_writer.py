"""A writer to a real etcd: what it acknowledged is there afterwards, on every member."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

from .etcd_cluster import Cluster
from .kube import until

# Between two writes: fifty a second are enough to see one lost.
PAUSE_S = 0.02


@dataclass
class Writer:
    """Writes one key after the other through any member, and keeps those that were acknowledged."""

    cluster: Cluster
    acknowledged: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until `stop` is set."""
        apis = list(self.cluster.apis(1.0).values())
        last, number = time.monotonic(), 0
        while not self.stop.wait(PAUSE_S):
            number += 1
            key = f"writer/{number:08}"
            body = {"key": base64.b64encode(key.encode()).decode(), "value": "MQ=="}
            try:
                apis[number % len(apis)]("/v3/kv/put", body)
            except FleetError:
                continue
            self.acknowledged.append(key)
            now = time.monotonic()
            self.longest_gap_s, last = max(self.longest_gap_s, now - last), now


@contextmanager
def written(cluster: Cluster) -> Iterator[Writer]:
    """Writes go on meanwhile; afterwards all that was acknowledged is on every member."""
    cluster.ctl("etcd-1", "del", "--prefix", "writer/")
    writer = Writer(cluster)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        until("the first writes", lambda: len(writer.acknowledged) > 20, 30)
        yield writer
    finally:
        writer.stop.set()
        thread.join()
    for member in cluster.clients:
        there = set(cluster.ctl(member, "get", "--prefix", "writer/", "--keys-only").stdout.split())
        assert not set(writer.acknowledged) - there, member
