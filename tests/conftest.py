"""What all tests share: the collection's plugins from the checkout, as ansible_collections.muster.fleet, signals as a
terminal has them, and workers that no signal reaches.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from gpu_burnin.engine.worker_process import WorkerProcess

from .lab.paths import REPOSITORY

COLLECTIONS = str(REPOSITORY / "collections")
# A worker of pytest-xdist begins with the path of the process that started it, and Ansible's finder refuses a package
# that it finds on the path twice.
if COLLECTIONS not in sys.path:
    sys.path.insert(0, COLLECTIONS)


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
