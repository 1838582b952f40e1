"""Shared memory segments that a killed process leaves in /dev/shm stay inside the run."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from gpu_burnin.system import private_shm

_LEAVES_A_SEGMENT = """
import os, signal, subprocess, sys
from gpu_burnin.system import private_shm
print(private_shm.enter(), flush=True)
child = subprocess.run([sys.executable, "-c", f"open('/dev/shm/{sys.argv[1]}', 'w').write('x')"])
print(os.listdir("/dev/shm"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_leaves_nothing_in_shared_memory() -> None:
    name = f"nccl-{uuid.uuid4().hex}"
    found = subprocess.run([sys.executable, "-c", _LEAVES_A_SEGMENT, name], capture_output=True, text=True, check=False)
    entered, inside = found.stdout.splitlines()
    segment = private_shm.SHARED_MEMORY / name
    left = segment.exists()
    segment.unlink(missing_ok=True)
    assert name in inside, found.stderr
    # Where a namespace is not allowed nothing is promised, and enter() says so.
    assert (entered == "True") is not left


def test_without_the_directory_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_shm, "SHARED_MEMORY", tmp_path / "none")
    assert private_shm.enter() is False
