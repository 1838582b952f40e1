"""The launcher as the process that it is in a pod."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpu_burnin.api.jobs import START_AGAIN
from gpu_burnin.launch import pod
from gpu_burnin.launch.pod import ranks
from tests.unit.launch.examples import pod_of

SAY_WHO = """
import json, os
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT".split()
print(json.dumps([os.environ[name] for name in names]))
"""


def _until(process: subprocess.Popen[bytes], words: str) -> str:
    """Its log up to a line with these words."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line.decode()
        if words in seen:
            return seen
    raise AssertionError(f"the launcher ended without {words!r}: {seen}")


def _rest(process: subprocess.Popen[bytes]) -> str:
    out, _ = process.communicate(timeout=30)
    return out.decode()


def test_each_process_has_the_names_of_torchrun_and_its_lines_have_its_rank(tmp_path: Path) -> None:
    code, log = pod_of(tmp_path, SAY_WHO, nodes=3, processes_per_node=2, index=1).run()
    assert code == 0
    lines = dict(line.split(" ", 1) for line in log.splitlines() if not line.startswith("[muster]"))
    assert {rank: json.loads(line) for rank, line in lines.items()} == {
        "[2]": ["2", "0", "6", "2", "1", "1", "127.0.0.1", "29500"],
        "[3]": ["3", "1", "6", "2", "1", "1", "127.0.0.1", "29500"],
    }


def test_arguments_and_writable_places_are_there(tmp_path: Path) -> None:
    script = """
import os, pathlib, sys, tempfile
pathlib.Path("~/.cache").expanduser().mkdir(parents=True)
tempfile.NamedTemporaryFile().close()
print(sys.argv[1:], os.environ["HOME"].endswith("work/home"), tempfile.gettempdir().endswith("work/tmp"))
"""
    code, log = pod_of(tmp_path, script, processes_per_node=1, argv=("--steps", "3 4")).run()
    assert code == 0 and "[0] ['--steps', '3 4'] True True" in log


def test_the_first_failure_ends_the_others_and_is_the_exit_code(tmp_path: Path) -> None:
    script = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(3600)
"""
    made = pod_of(tmp_path, script, processes_per_node=3)
    code, log = made.run()
    assert code == 7
    assert made.termination_log.read_text() == "rank 1 on node 0 ended with exit code 7"
    assert "rank 1 on node 0 ended with exit code 7; its peers here are ended" in log


def test_a_killed_process_is_told_by_its_signal(tmp_path: Path) -> None:
    made = pod_of(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", processes_per_node=1)
    code, log = made.run()
    assert code == 137 and "was ended by SIGKILL (exit code 137), maybe for want of memory" in log


@pytest.mark.slow
def test_what_the_node_asks_reaches_the_work_and_42_goes_out(tmp_path: Path) -> None:
    script = """
import sys, time
from gpu_burnin.job import asked_to_leave
print("ready")
while not (leave := asked_to_leave()):
    time.sleep(0.02)
print("leaves by", leave.deadline)
sys.exit(42)
"""
    made = pod_of(tmp_path, script)
    with made.start() as process:
        _until(process, "[1] ready")
        made.node_leave.write_text(json.dumps({"since": "", "deadline": "2026-11-27T20:00:00Z", "why": "drain"}))
        log = _rest(process)
    assert process.returncode == 42
    assert "[0] leaves by 2026-11-27T20:00:00Z" in log and "[1] leaves by" in log


@pytest.mark.slow
def test_an_empty_file_asks_nothing_and_one_that_went_neither(tmp_path: Path) -> None:
    script = """
import os, sys, time
from gpu_burnin.job import asked_to_leave
print("first", asked_to_leave() is not None)
while asked_to_leave():
    time.sleep(0.02)
print("then", asked_to_leave() is not None)
"""
    assert "[0] first False" in pod_of(tmp_path / "empty", script, processes_per_node=1).run()[1]
    made = pod_of(tmp_path / "asks", script, processes_per_node=1, leave='{"why": "drain"}')
    with made.start() as process:
        _until(process, "[0] first True")
        made.node_leave.write_text("")
        assert "[0] then False" in _rest(process)
    assert process.returncode == 0


def test_sigterm_asks_the_work_to_leave_and_asks_for_a_new_start(tmp_path: Path) -> None:
    script = """
import sys, time
from gpu_burnin.job import asked_to_leave
print("ready")
while not (leave := asked_to_leave()):
    time.sleep(0.02)
print("saved:", leave.why)
"""
    made = pod_of(tmp_path, script)
    with made.start() as process:
        _until(process, "[1] ready")
        process.send_signal(signal.SIGTERM)
        log = _rest(process)
    assert process.returncode == 42
    assert "[0] saved: the pod was told to end (SIGTERM)" in log and "[1] saved:" in log


@pytest.mark.slow
def test_work_with_a_handler_of_its_own_gets_sigterm_at_once_and_other_work_late(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, lambda *_: (print("handled"), sys.exit(0)))
print("ready")
time.sleep(3600)
"""
    made = pod_of(tmp_path, script, grace_s=4)
    with made.start() as process:
        _until(process, "[0] ready")
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _until(process, "[0] handled")
        handled_s = time.monotonic() - started
        log = _rest(process)
        all_s = time.monotonic() - started
    assert process.returncode == 42
    assert handled_s < 1.9 <= all_s
    assert "rank 1 ended with exit code 143" in log


@pytest.mark.slow
def test_work_that_ignores_sigterm_is_killed_before_kubelet_would(tmp_path: Path) -> None:
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(3600)"
    made = pod_of(tmp_path, script, grace_s=2, processes_per_node=1)
    with made.start() as process:
        _until(process, "[0] ready")
        process.send_signal(signal.SIGTERM)
        log = _rest(process)
    assert process.returncode == 42 and "rank 0 ended with exit code 137" in log


def test_a_new_start_that_nobody_asked_for_is_a_failure_when_it_comes_at_once(tmp_path: Path) -> None:
    made = pod_of(tmp_path, "import sys; sys.exit(42)", processes_per_node=1)
    code, log = made.run()
    assert code == 1 and "within 10 s and unasked: that is taken for a failure" in log
    code, log = pod_of(tmp_path / "later", "import sys; sys.exit(42)", processes_per_node=1).run(MUSTER_LEAST_RUN_S="0")
    assert code == 42 and "rank 0 saved, and asks to be started again" in log


def test_other_signals_reach_the_processes(tmp_path: Path) -> None:
    script = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: (print("got it"), sys.exit(0)))
print("ready")
signal.pause()
"""
    made = pod_of(tmp_path, script, processes_per_node=1)
    with made.start() as process:
        _until(process, "[0] ready")
        process.send_signal(signal.SIGUSR1)
        log = _rest(process)
    assert process.returncode == 0 and "[0] got it" in log


def test_what_a_process_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    script = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
print("child", child.pid)
"""
    code, log = pod_of(tmp_path, script, processes_per_node=1).run()
    assert code == 0
    [pid] = [line.split()[-1] for line in log.splitlines() if "child" in line]
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_a_progress_bar_is_seen_as_it_goes(tmp_path: Path) -> None:
    script = """
import sys
sys.stdout.write("1/2\\r")
sys.stdout.write("2/2")
sys.stdout.flush()
"""
    _, log = pod_of(tmp_path, script, processes_per_node=1).run()
    assert "[0] 1/2\n[0] 2/2\n" in log


def test_settings_that_are_missing_are_said(tmp_path: Path) -> None:
    made = pod_of(tmp_path, "")
    del made.environment["MUSTER_NODES"]
    code, log = made.run()
    assert code == 1 and "[muster] the job's settings cannot be read (KeyError('MUSTER_NODES'))" in log


def test_a_first_node_without_an_address_is_waited_for(tmp_path: Path) -> None:
    made = pod_of(tmp_path, "", nodes=2, index=1)
    with made.start(MASTER_ADDR="nobody.invalid") as process:
        _until(process, "waits for nobody.invalid to have an address")
        process.send_signal(signal.SIGTERM)
        _rest(process)
    assert process.returncode == 42


def test_it_can_be_read_by_python_3_8() -> None:
    for path in sorted(Path(next(iter(pod.__path__))).glob("*.py")):
        ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.slow
def test_it_runs_with_the_oldest_python_here(tmp_path: Path) -> None:
    """3.8 where this machine has it."""
    old = next((path for path in Path.home().glob(".pyenv/versions/3.8.*/bin/python3")), None)
    if old is None:
        pytest.skip("there is no Python 3.8 here")
    script = "from gpu_burnin.job import asked_to_leave\nimport sys\nprint(sys.version_info[:2], asked_to_leave())"
    code, log = pod_of(tmp_path, script, python=str(old), processes_per_node=1).run()
    assert code == 0 and "[0] (3, 8) None" in log


def test_pods_and_cluster_agree_on_the_exit_code_that_asks_for_another_start() -> None:
    """The launcher is sent to pods by itself, so it has the number once more."""
    assert ranks.AGAIN == START_AGAIN
