"""What all tests share: the collection's plugins from the checkout, as ansible_collections.muster.fleet, signals as a
terminal has them, and workers that no signal reaches.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator

import pytest

from gpu_burnin.engine.worker_process import WorkerProcess

from .lab.cpu_group import Used, hosts_used_s
from .lab.paths import REPOSITORY

COLLECTIONS = str(REPOSITORY / "collections")
# A worker of pytest-xdist begins with the path of the process that started it, and Ansible's finder refuses a package
# that it finds on the path twice.
if COLLECTIONS not in sys.path:
    sys.path.insert(0, COLLECTIONS)
BEFORE = pytest.StashKey[Used]()
LAST = pytest.StashKey[Used]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test's processor time begins with what it sets up."""
    item.stash[BEFORE] = used()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The last test of a process also tears down what all have shared, as servers that are waited for only now."""
    if nextitem is None:
        item.stash[LAST] = used()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """It ends with what it tears down, and stands in the JUnit file: of this process and of those it waited for, and of
    the lab's hosts meanwhile. What many tests share is the first one's to start; its end is told apart."""
    if call.when == "teardown":
        now = used()
        own, before = item.stash.get(LAST, now), item.stash[BEFORE]
        item.user_properties.append(("cpu_here_s", f"{own.here_s - before.here_s:.2f}"))
        item.user_properties.append(("cpu_hosts_s", f"{own.hosts_s - before.hosts_s:.2f}"))
        if LAST in item.stash:
            item.user_properties.append(("cpu_shared_s", f"{now.all_s - own.all_s:.2f}"))


def used() -> Used:
    """So far."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Used(sum(one.ru_utime + one.ru_stime for one in times), hosts_used_s())


@pytest.fixture(scope="session", autouse=True)
def _signals_as_at_a_terminal() -> None:
    """A shell that starts the tests in the background leaves SIGINT ignored, nohup SIGHUP; programs under test inherit
    it and rightly keep to it, but then nothing could be seen of what a signal does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No signal reaches a worker, as when it hangs in the driver; the processes are really ended afterwards."""
    started: list[WorkerProcess] = []
    real = WorkerProcess.signal
    monkeypatch.setattr(WorkerProcess, "signal", lambda self, _: started.append(self))
    yield
    for process in started:
        real(process, signal.SIGKILL)
        process.ended(5)
