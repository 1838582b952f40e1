"""The machines of the benchmark: two etcd clusters of one member, and an API server for each way to keep events."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.admission.api import Api
from tests.integration.kube import NO_BINARIES, Part, Server, api_server, binaries, ended, free_ports

FIRST_CORE, SECOND_CORE = 0, 1
STORMS_NICENESS = 10
WRITERS = 4
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@dataclass
class Site:
    """The running parts: API servers by where they keep events, etcd's addresses by cluster, processes by core."""

    servers: Mapping[str, Server]
    etcd: Mapping[str, str]
    pids: tuple[Sequence[int], Sequence[int]]


@contextmanager
def site(disk: Path, memory: Path) -> Iterator[Site]:
    """Main etcd on the disk, events etcd in memory, an API server for each way to keep events."""
    place = binaries()
    if place is None:
        raise FileNotFoundError(NO_BINARIES)
    client, peer, port = free_ports(3)
    url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    events = Part(
        [
            str(place / "etcd"), "--name=events", f"--data-dir={memory / 'etcd'}", f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}", f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}", f"--initial-cluster=events={peer_url}",
        ],
        disk / "events-etcd.log",
    )  # fmt: skip
    override = f"--etcd-servers-overrides=/events#{url}"
    with ended(events):
        events.start()
        with api_server(disk, override, etcd_flags=()) as split:
            command = [word for word in split.apiserver.command if word != override]
            command = [f"--secure-port={port}" if word.startswith("--secure-port=") else word for word in command]
            command = [word.replace("audit.log", "audit-joined.log") for word in command]
            other = Part(command, disk / "apiserver-joined.log")
            joined = Server(port, disk, split.authority, split.etcd, other)
            with ended(other):
                other.start()
                joined.wait_ready()
                first = [settle(part, FIRST_CORE, 0) for part in (split.etcd, split.apiserver, other)]
                second = [settle(events, SECOND_CORE, STORMS_NICENESS), os.getpid()]
                admin = Api.of(split, "admin", ["muster:admins"])
                for number in range(WRITERS):
                    admin.request("POST", CONFIG_MAPS, {"metadata": {"name": f"writer-{number}"}})
                main = next(w for w in split.etcd.command if w.startswith("--listen-client-urls=")).partition("=")[2]
                yield Site({"split": split, "joined": joined}, {"main": main, "events": url}, (first, second))


def settle(part: Part, core: int, niceness: int) -> int:
    """Keep all threads of a process on one core, at this niceness; its number."""
    assert part.running is not None
    for task in Path(f"/proc/{part.running.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})
        os.setpriority(os.PRIO_PROCESS, int(task.name), niceness)
    return part.running.pid
