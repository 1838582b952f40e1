"""The clock by which the tests of the supervisor measure deadlines: it passes while all wait, and then only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clocks import IdleClock, wait_until

# A process that waits for another one, which is busy from its first word on.
BUSY = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"
LOOP = "import os; print(os.getpid(), flush=True)\nwhile True: pass"


@pytest.fixture
def grandchild() -> Iterator[int]:
    """Number of the busy process."""
    with subprocess.Popen([sys.executable, "-S", "-c", BUSY, LOOP], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        yield pid
        os.kill(pid, signal.SIGKILL)


def _cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_time_stands_still_while_a_process_below_is_busy_and_passes_when_it_is_not(grandchild: int) -> None:
    with IdleClock() as clock:
        began_s, worked = clock(), _cpu_ticks(grandchild)
        wait_until(lambda: _cpu_ticks(grandchild) >= worked + 10)
        assert clock() == began_s
        os.kill(grandchild, signal.SIGSTOP)
        wait_until(lambda: clock() > began_s + 0.05)
