"""What each process of a control plane takes: processor time, live heap, bytes of etcd."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.bench.admission.api import Api
from tests.bench.admission.measure import cpu_s, memory_mib, samples, total
from tests.integration.kube import Server

SERVERS = ("API server", "etcd")
_MIB = 1 << 20


@dataclass
class Meter:
    """Processor time of processes by their names since it was made, with that of rest taken off.

    `rest` are the shares of a core that they take when nothing of what is measured happens.
    """

    pids: Mapping[str, int]
    rest: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began_s = time.monotonic()
        self._began_cpu_s = {name: cpu_s(pid) for name, pid in self.pids.items()}

    @property
    def wall_s(self) -> float:
        """Seconds of the clock."""
        return time.monotonic() - self._began_s

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each."""
        wall_s = self.wall_s
        return {
            name: max(0.0, cpu_s(pid) - self._began_cpu_s[name] - self.rest.get(name, 0.0) * wall_s)
            for name, pid in self.pids.items()
        }

    def shares(self) -> dict[str, float]:
        """The share of a core that each took."""
        wall_s = self.wall_s
        return {name: seconds / wall_s for name, seconds in self.cpu_s().items()}

    def of_each(self, count: int) -> Cost:
        """What each of so many things cost, done since it was made."""
        return Cost(count, self.wall_s, {name: seconds / count * 1000 for name, seconds in self.cpu_s().items()})


@dataclass(frozen=True)
class Cost:
    """So many of one thing, and the milliseconds of processor that each took of each process."""

    count: int
    wall_s: float
    each_ms: Mapping[str, float]

    @property
    def servers_ms(self) -> float:
        """Of API server and etcd together."""
        return sum(self.each_ms[name] for name in SERVERS)

    @property
    def a_core(self) -> float:
        """How many of them a core of API server and etcd carries in a second."""
        return 1000 / self.servers_ms if self.servers_ms else float("inf")

    def __str__(self) -> str:
        """In words."""
        parts = ", ".join(f"{name} {each:.2f}" for name, each in self.each_ms.items())
        return f"{self.count} in {self.wall_s:.0f} s, {self.count / self.wall_s:.0f} a second; ms of processor: {parts}"


@dataclass(frozen=True)
class Sizes:
    """Live heap and memory of the API server, and what etcd holds, in MiB."""

    heap_mib: float
    server_mib: float
    etcd_mib: float
    etcd_memory_mib: float
    requests: float

    def __str__(self) -> str:
        """In words."""
        return (
            f"API server: live heap {self.heap_mib:.0f} MiB, memory {self.server_mib:.0f} MiB, "
            f"{self.requests:.0f} watches; etcd: {self.etcd_mib:.1f} MiB in use, memory {self.etcd_memory_mib:.0f} MiB"
        )


def sizes(server: Server, root: Api) -> Sizes:
    """As they are now; the API server collects its garbage first."""
    assert server.apiserver.running is not None and server.etcd.running is not None
    root.binary("/debug/pprof/heap?gc=1")
    of_server = samples(root.text("/metrics"))
    url = next(flag.partition("=")[2] for flag in server.etcd.command if flag.startswith("--listen-client-urls="))
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        of_etcd = samples(answer.read().decode())
    return Sizes(
        heap_mib=total(of_server, "go_memstats_heap_alloc_bytes") / _MIB,
        server_mib=memory_mib(server.apiserver.running.pid),
        etcd_mib=total(of_etcd, "etcd_mvcc_db_total_size_in_use_in_bytes") / _MIB,
        etcd_memory_mib=memory_mib(server.etcd.running.pid),
        requests=total(of_server, "apiserver_longrunning_requests", verb="WATCH"),
    )
