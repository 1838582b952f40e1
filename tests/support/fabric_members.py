"""Members of a test between nodes as processes of their own, on loopback addresses or in network namespaces."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from gpu_burnin.checks.fabric import Fault, Finding, Meeting, Peer, join, run
from gpu_burnin.checks.fabric.mesh import Mesh
from tests.support.clocks import PATIENCE_S, wait_until

SECRET = bytes(range(32))
_CLONE_NEWNET = 0x40000000


def loopback_meeting(ranks: int, on: Sequence[int] = (0,), **changes: object) -> Meeting:
    """A small one of rank 0, whose members have addresses of 127.0.0.0/8, on these rails, that other tests leave
    alone."""
    return meeting([{rail: f"127.77.{rail}.{rank + 1}" for rail in on} for rank in range(ranks)], **changes)


def meeting(addresses: Sequence[Mapping[int, str]], **changes: object) -> Meeting:
    """A small one of rank 0. What is to be late has its time in `changes`: of all else only a hang is."""
    of_hosts = tuple(Peer(f"gpu-{rank + 1}", of_member) for rank, of_member in enumerate(addresses))
    given = Meeting(of_hosts, 0, _port(), SECRET, (), 0.3, 1 << 16, 7, join_s=PATIENCE_S, stall_s=PATIENCE_S)
    return replace(given, **changes)  # type: ignore[arg-type]


def _port() -> int:
    """One for each process of tests that run beside each other, below those that the kernel gives away."""
    return 20_000 + os.getpid() % 10_000


@dataclass
class Members:
    """Processes by rank, and what they have found."""

    given: Meeting
    namespaces: Sequence[str] = ()
    processes: dict[int, BaseProcess] = field(default_factory=dict)
    _pipes: dict[int, Connection] = field(default_factory=dict)

    def start(self, ranks: Iterable[int], faults: Mapping[int, Fault] | None = None, **changes: object) -> None:
        """Start these; `changes` are to their meeting."""
        context = multiprocessing.get_context("fork")
        for rank in ranks:
            ours, theirs = context.Pipe(duplex=False)
            one = replace(self.given, rank=rank, **changes)  # type: ignore[arg-type]
            namespace = self.namespaces[rank] if self.namespaces else ""
            own = (faults[rank],) if faults and rank in faults else ()
            self.processes[rank] = context.Process(target=_attend, args=(theirs, one, own, namespace), daemon=True)
            self.processes[rank].start()
            theirs.close()
            self._pipes[rank] = ours

    def finding(self, rank: int) -> Finding:
        """What it has found; it has closed every socket."""
        assert self._pipes[rank].poll(PATIENCE_S), f"rank {rank} did not end"
        found, sockets = self._pipes[rank].recv()
        assert sockets == 0, f"rank {rank} left {sockets} sockets"
        assert isinstance(found, Finding), found
        return found

    def findings(self, *ranks: int) -> list[Finding]:
        """Of all, or of some."""
        return [self.finding(rank) for rank in (ranks or sorted(self.processes))]

    def end(self) -> None:
        """Leave no process."""
        for process in self.processes.values():
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGKILL)
            process.join(PATIENCE_S)


@contextmanager
def members(given: Meeting, namespaces: Sequence[str] = ()) -> Iterator[Members]:
    """Not yet started."""
    group = Members(given, namespaces)
    try:
        yield group
    finally:
        group.end()


def all_find(
    given: Meeting, faults: Mapping[int, Fault] | None = None, namespaces: Sequence[str] = ()
) -> list[Finding]:
    """Of each member, when all are started at once and none is killed."""
    with members(given, namespaces) as group:
        group.start(range(given.ranks), faults)
        return group.findings()


def _attend(pipe: Connection, given: Meeting, faults: tuple[Fault, ...], namespace: str) -> None:
    if namespace:
        with Path("/run/netns", namespace).open() as place:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.setns(place.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    before = _sockets()
    try:
        found: object = run(given, faults)
    except Exception as error:  # it travels to the test, which says what it wanted
        found = error
    pipe.send((found, _sockets() - before))


def _sockets() -> int:
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(fd.readlink()))
        except OSError:
            continue
    return sum(link.startswith("socket:") for link in links)


def wait_for(process: BaseProcess, state: str) -> None:
    """Until the kernel says that it is in this state, such as T (stopped)."""
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == state)


def joined_before(monkeypatch: pytest.MonkeyPatch, there: Callable[[Mesh], bool]) -> None:
    """Each member's time to join begins when this holds: who is there comes however slow the machine is."""
    all_there = join._all_there

    async def slowly(mesh: Mesh, deadline_s: float) -> None:
        while not there(mesh):
            await asyncio.sleep(0.02)
        await all_there(mesh, time.monotonic() + mesh.meeting.join_s)

    monkeypatch.setattr(join, "_all_there", slowly)


def misses(mesh: Mesh, ways: Mapping[int, int]) -> bool:
    """Whether a member, by its rank, lacks no more than so many links."""
    return len(mesh.missing()) <= ways.get(mesh.meeting.rank, 0)
