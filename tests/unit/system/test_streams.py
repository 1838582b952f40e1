"""Output that is closed, full or read by nobody, and Ctrl-C at any time: exit code 1 is for negative answers only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clocks import PATIENCE_S

COMMAND = f"{sys.executable} -m gpu_burnin"
# Stands before all others in the path, so that an import of the command line waits until it is told to go on.
_SLOW_CLICK = "import os, time\nprint('importing', flush=True)\nwhile True: time.sleep(0.05)\n"


def shell(command: str) -> tuple[int, str]:
    """Exit code of the command and what was on the standard error of its shell; no reader is there for its output."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "exit_code", "says"),
    [
        ("explain | head -n 1; exit ${PIPESTATUS[0]}", 0, ""),
        ("schema | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("explain >/dev/full", 2, "standard output cannot be written (No space left on device)"),
        ("--help >/dev/full", 2, "standard output cannot be written"),
        ("explain >&-", 0, ""),
        ("run --level slow >/dev/full", 2, "'slow' is not one of"),
        ("run --level slow >&-", 2, "'slow' is not one of"),
        ("run --level slow 2>/dev/full", 2, ""),
        ("run --level slow >&- 2>&-", 2, ""),
        ("run --level slow >/dev/full 2>/dev/full", 2, ""),
        ("explain NOTHING 2>/dev/full", 2, ""),
        ("gate --config /none.yaml >/dev/full 2>/dev/full <&-", 2, ""),
        ("report /none 2>&1 | true; exit ${PIPESTATUS[0]}", 2, ""),
    ],
)
def test_no_output_ends_with_the_code_of_a_fail(command: str, exit_code: int, says: str) -> None:
    code, err = shell(f"{COMMAND} {command}")
    assert code == exit_code, err
    assert says in err
    assert says or not err


def test_an_answer_that_cannot_be_printed_is_still_the_exit_code(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom gpu_burnin.node import gate\nfrom gpu_burnin.__main__ import main\n"
        "from types import SimpleNamespace\n"
        "gate.check_gate = lambda _, **__: SimpleNamespace(node='gpu-1', sequence=1, finished_at='now')\n"
        "sys.argv[1:] = ['gate', '--state-dir', '/none']\nmain()\n"
    )
    code, err = shell(f"{sys.executable} {program} >/dev/full")
    assert (code, err) == (0, "gpu-burnin: this could not be printed (No space left on device)\n")


def test_ctrl_c_while_the_command_line_is_imported_is_no_fail(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(_SLOW_CLICK)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_burnin", "run"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (3, "gpu-burnin: interrupted before there was a result\n")


def test_an_installation_that_is_not_whole_is_no_fail(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ImportError('half of it')\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "gpu_burnin", "gate"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 3
    assert done.stderr == "gpu-burnin: cannot be started (ImportError('half of it')); install it again\n"
