"""What a killed step left is ended, though it may end by itself meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from gpu_burnin.fleet.waves import leftovers

OPEN = Path("/proc/self/fd")


def test_one_that_ends_before_its_signal_is_gone_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a helper of a shell, or an Ansible that dies with its parent."""
    word = f"{os.getpid()}-leftover"
    with subprocess.Popen(["sleep", "300"], env={**os.environ, "LEFTOVER": word}) as process:
        real = signal.pidfd_send_signal

        def late(fd: int, number: int) -> None:
            process.kill()
            process.wait()
            real(fd, number)

        monkeypatch.setattr(signal, "pidfd_send_signal", late)
        before = len([*OPEN.iterdir()])
        assert leftovers.end("LEFTOVER", word) == 1
        assert len([*OPEN.iterdir()]) == before
