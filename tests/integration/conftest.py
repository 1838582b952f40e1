"""One lab for all tests of this folder, made cold and removed at the end, whatever happened; and one API server on
loopback for those that need no hosts.

With MUSTER_KEEP_LAB=1 a running lab is used as it is and left running: for work on the tests themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpu_burnin.api.names import PROVISIONER_USER
from tests.lab import hosts
from tests.lab.prepare import prepare

from . import first_run
from .fleet import Fleet
from .jobs_stack import Jobs
from .jobs_start import jobs_stack
from .kube import NO_BINARIES, Client, Server, api_server, apply_ledger, binaries

KEEP = os.environ.get("MUSTER_KEEP_LAB") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of the one API server come late, and those of Kueue and JobSet last: what runs idle beside others costs
    processor time, and these have seven processes.
    """

    def turn(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return 0 if "lab" in names else 2 if "stack" in names else int("server" in names)

    items.sort(key=turn)


@pytest.fixture(scope="session")
def lab() -> Iterator[Fleet]:
    """The lab's hosts: bare, unless a running lab is kept."""
    prepare()
    fleet = Fleet()
    if not KEEP:
        hosts.down(fleet.lab)
    try:
        hosts.up(fleet.lab)
        yield fleet
    finally:
        if not KEEP:
            hosts.down(fleet.lab)


@pytest.fixture(scope="session")
def fleet(lab: Fleet) -> Fleet:
    """The lab after site.yml: killed in the middle of its control plane and of a driver, then run to its end."""
    if not KEEP:
        first_run.kill_in_the_middle(lab)
        first_run.kill_at_the_driver(lab)
    first_run.results["first"] = lab.playbook("site.yml", log="first")
    return lab


@contextmanager
def _started(factory: pytest.TempPathFactory) -> Iterator[Server]:
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    with api_server(factory.mktemp("api")) as running:
        yield running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real etcd and kube-apiserver with the gate's policies; a test that changes those puts them back."""
    with _started(tmp_path_factory) as running:
        yield running


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Another one, of a file's tests alone, which knows NodeAdmissions: they kill it, or count all that is there."""
    with _started(tmp_path_factory) as running:
        apply_ledger(running)
        yield running


@pytest.fixture
def own_of_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same of one test: nodes of others, whose agents are gone, are nobody's partners in it."""
    with _started(tmp_path_factory) as running:
        apply_ledger(running)
        yield running


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Kueue and JobSet beside an API server of their own, without teams, queues and nodes: each test names its own."""
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    with jobs_stack(tmp_path_factory.mktemp("jobs")) as running:
        apply_ledger(running.server)
        yield running


@pytest.fixture(scope="module")
def jobs(stack: Jobs) -> Iterator[Jobs]:
    """The stack for the tests of a file: what they made goes with them, so that the next begin with nothing."""
    yield stack
    stack.clear()


@pytest.fixture(scope="session")
def root(server: Server) -> Client:
    """Someone of system:masters."""
    return server.client("break-glass", ["system:masters"])


@pytest.fixture(scope="session")
def admin(server: Server) -> Client:
    """The everyday admin."""
    return server.client("admin", ["muster:admins"])


@pytest.fixture(scope="session")
def ledger(server: Server) -> Server:
    """The same server, which knows NodeAdmissions."""
    apply_ledger(server)
    return server


@pytest.fixture(scope="session")
def provisioner(ledger: Server) -> Client:
    """Who alone says which machine a node is."""
    return ledger.client(PROVISIONER_USER)


@pytest.fixture(scope="session")
def admitter(server: Server) -> Client:
    """Who alone lets nodes in."""
    return server.client("muster:admitter")
