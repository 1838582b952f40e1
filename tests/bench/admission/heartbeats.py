"""The heartbeats of all agents, as they renew them: what each costs API server, etcd and admitter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_burnin.api.heartbeat import RENEW_S, Heartbeat, heartbeat_document, heartbeats_path
from gpu_burnin.system.codec import to_json
from tests.bench.admission.api import Api, each
from tests.bench.admission.fleet import NAMES
from tests.bench.admission.measure import Stopwatch
from tests.integration.kube import MERGE_PATCH

THREADS = 16
REST_S = 20.0


@dataclass(frozen=True)
class Cost:
    """So many writes, each by a connection of its own as an agent's, and the processor time of each above rest.

    `size_bytes` is an object as the watch sends it.
    """

    writes: int
    size_bytes: int
    a_second: float
    servers_ms: float
    admitter_ms: float

    def __str__(self) -> str:
        """In words."""
        return (
            f"{self.writes} writes of {self.size_bytes} bytes, {self.a_second:.0f} a second, each "
            f"{self.servers_ms:.2f} ms of processor of API server and etcd, {self.admitter_ms:.2f} ms of the admitter"
        )

    def of_nodes(self, nodes: int) -> tuple[float, float]:
        """The shares of a core that so many nodes take: of API server and etcd, and of the admitter."""
        a_second = nodes / RENEW_S
        return a_second * self.servers_ms / 1000, a_second * self.admitter_ms / 1000


def measure_heartbeats(
    api: Api,
    names: Sequence[str],
    boot_id: Callable[[str], str],
    servers: Sequence[int],
    admitter: Sequence[int],
    a_second: float,
    writes: int,
) -> Cost:
    """Make all of them, rest, then renew them in turn, `a_second` of them in each second."""
    each(lambda name: first_heartbeat(api, name, boot_id(name)), names, THREADS)
    rest = Stopwatch(servers), Stopwatch(admitter)
    time.sleep(REST_S)
    servers_rest, admitter_rest = (watch.cpu_s / watch.wall_s for watch in rest)
    began_s = time.monotonic()
    work = Stopwatch(servers), Stopwatch(admitter)

    def renew(number: int) -> None:
        time.sleep(max(0.0, began_s + number / a_second - time.monotonic()))
        name = names[number % len(names)]
        change = {"spec": to_json(_beat(boot_id(name), number))}
        api.once("PATCH", heartbeats_path(NAMES, name), change, MERGE_PATCH, name)

    each(renew, range(writes), THREADS)
    took_s = work[0].wall_s
    served_s, heard_s = work[0].cpu_s - servers_rest * took_s, work[1].cpu_s - admitter_rest * took_s
    size_bytes = len(json.dumps(api.request("GET", heartbeats_path(NAMES, names[0])), separators=(",", ":")))
    return Cost(writes, size_bytes, writes / took_s, served_s / writes * 1000, heard_s / writes * 1000)


def first_heartbeat(api: Api, name: str, boot: str) -> None:
    """An agent makes its heartbeat."""
    api.request("POST", heartbeats_path(NAMES), heartbeat_document(name, _beat(boot, 0), NAMES), node=name)


def _beat(boot: str, number: int) -> Heartbeat:
    return Heartbeat(boot, "2026-11-27T02:00:00.000Z", f"2026-11-27T03:00:00.000Z-{number}")
