"""What each test cost stands in the JUnit file; what many have shared is not the last one's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.paths import REPOSITORY
from tools.results import read_junit

BUSY = "while time.process_time() < {}: pass"
TESTS = f"""import subprocess, sys, time
import pytest

@pytest.fixture(scope="session")
def server():
    process = subprocess.Popen([sys.executable, "-c", "import time\\n{BUSY.format(0.5)}"])
    yield process
    process.wait()

def test_busy(server):
    until = time.process_time() + 0.3
    while time.process_time() < until: pass

def test_last(server):
    pass
"""


@pytest.mark.slow
def test_a_server_that_is_waited_for_at_the_end_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_x.py").write_text(TESTS)
    report = tmp_path / "x.xml"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "test_x.py"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    read = read_junit(report, done.returncode, done.stdout)
    assert read.counts.passed == 2, done.stdout + done.stderr
    assert read.costs["test_x.test_busy"].used.here_s >= 0.3
    assert read.costs["test_x.test_last"].used.here_s < 0.3
    assert read.costs["(shared by many tests, and ended after the last)"].used.here_s >= 0.5
