"""Nothing is left of a run, however it ends: no process, no shared memory, no temporary file, no open wave request.

Real `gpu-burnin run` processes on simulated GPUs. What is killed or stopped is a worker in the middle of a check in
which it shares memory with the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks import CHECKS, USUAL_CHECKS
from gpu_burnin.checks.spec import Scope
from gpu_burnin.types import Verdict
from tests.campaign.command_node import EXIT_CODES, GPUS, Node, judgement_of, prepare
from tests.campaign.faults.command import CommandFault
from tests.campaign.leftovers import Leftovers, until
from tests.campaign.model import Expect, demand
from tests.campaign.node import gpus_of
from tests.campaign.nvml_child import NvmlChild

# Checks in which the workers of several GPUs are at work together.
TOGETHER = [name for name, row in CHECKS.items() if row.scope is Scope.TOGETHER]
_SCENARIO = f"identity = leftovers\ngpus = {GPUS}\n"
_DEADLINE_S = 120.0


def _together(*shown: str) -> list[Any]:
    """All checks of GPUs together. What they share is gone with its last process, whichever check it is of and however
    that ended: each end is shown with those given, and with the others in make soak."""
    return [pytest.param(name, marks=() if name in shown else pytest.mark.soak) for name in TOGETHER]


@pytest.fixture
def node(nvml: NvmlChild, fake_nvml: Path, host_key: Path, tmp_path: Path) -> Node:
    """A healthy node."""
    made = Node(tmp_path, fake_nvml, host_key, _SCENARIO)
    prepare(made, CommandFault("healthy", "", Verdict.PASS), gpus_of(nvml.node(_SCENARIO)), 0)
    return made


def test_a_shared_file_that_stays_is_left_and_one_that_goes_is_not(tmp_path: Path) -> None:
    """The second as the C library's, which lives while any program of this machine makes a semaphore."""
    with Leftovers(tmp_path) as leftovers, tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sem.") as file:
        assert file.name in leftovers.left(wait_s=0.0)
        threading.Timer(0.2, file.close).start()
        assert file.name not in leftovers.left()


def _events(node: Node) -> list[Mapping[str, Any]]:
    """The events of the run so far, from its journal."""
    runs = node.store.runs()
    if not runs or not runs[-1].journal.exists():
        return []
    lines = runs[-1].journal.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def _worker_at(node: Node, check: str) -> int:
    """The process that is at a check, as soon as one is."""
    found: list[int] = []

    def look() -> bool:
        found.extend(int(e["pid"]) for e in _events(node) if e["event"] == "check_started" and e["check"] == check)
        return bool(found)

    assert until(look, _DEADLINE_S), f"{check} was never started"
    return found[0]


def _ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=_DEADLINE_S)
    return process.returncode, out, err


def _no_request(node: Node) -> None:
    """No request of power waves that somebody would still grant."""
    for path in node.store.root.rglob("request.json"):
        assert json.loads(path.read_text())["state"] not in ("waiting", "running"), path.read_text()


@pytest.mark.parametrize(
    ("checks", "arguments", "verdict"),
    [
        (USUAL_CHECKS, (), Verdict.PASS),
        (("state", "power"), ("--inject", "power:wrong_edge:gpu=1"), Verdict.FAIL),
    ],
    ids=["pass", "fail"],
)
def test_nothing_is_left_of_a_whole_run(
    checks: Sequence[str], arguments: tuple[str, ...], verdict: Verdict, node: Node, nvml: NvmlChild, tmp_path: Path
) -> None:
    """The one that passes is also what the faults of test_command.py are measured against."""
    node.settings["checks"] = list(checks)
    with Leftovers(tmp_path) as leftovers:
        code, out, err = _ended(node.start("--seed", "1", *arguments, variables=leftovers.variables))
        assert code == EXIT_CODES[verdict], err
        assert leftovers.left() == []
    if verdict is Verdict.PASS:
        demand(Expect(frozenset(), verdict), judgement_of(json.loads(out)), gpus_of(nvml.node(_SCENARIO)), err[-800:])
    assert len(leftovers.seen_pids) > 2 * GPUS, "the run's own processes were not seen: the test looks at nothing"
    assert leftovers.seen_memory, "no shared memory was seen: the test looks at nothing"
    _no_request(node)


@pytest.mark.parametrize("check", _together("nvlink", "power"))
def test_nothing_is_left_when_a_worker_is_killed(check: str, node: Node, tmp_path: Path) -> None:
    """The worker is started once more, and the node is INCONCLUSIVE for a death that did not come again."""
    node.settings["checks"] = ["state", check]
    with Leftovers(tmp_path) as leftovers:
        process = node.start("--seed", "1", variables=leftovers.variables)
        os.kill(_worker_at(node, check), signal.SIGKILL)
        code, out, err = _ended(process)
        assert leftovers.left() == []
    assert (code, json.loads(out)["verdict"]) == (3, "INCONCLUSIVE"), err
    assert "WORKER_DIED" in {reason["code"] for reason in json.loads(out)["reasons"]}
    _no_request(node)


@pytest.mark.parametrize("check", _together("nccl", TOGETHER[-1]))
def test_nothing_is_left_when_the_run_is_interrupted(check: str, node: Node, tmp_path: Path) -> None:
    """Ctrl-C, also while a rank hangs in the driver, where only SIGKILL ends it."""
    node.settings["checks"] = ["state", check]
    with Leftovers(tmp_path) as leftovers:
        process = node.start("--seed", "1", variables=leftovers.variables)
        worker = _worker_at(node, check)
        if check == TOGETHER[-1]:
            os.kill(worker, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        code, out, err = _ended(process)
        assert leftovers.left() == []
    assert (code, json.loads(out)["verdict"]) == (3, "INCONCLUSIVE"), err
    _no_request(node)


@pytest.mark.parametrize("check", _together("pcie"))
def test_nothing_is_left_when_the_supervisor_is_killed(check: str, node: Node, tmp_path: Path) -> None:
    """kill -9: the workers end with it, what they shared goes with them."""
    node.settings["checks"] = ["state", check]
    with Leftovers(tmp_path) as leftovers:
        process = node.start("--seed", "1", variables=leftovers.variables)
        _worker_at(node, check)
        process.kill()
        _ended(process)
        assert leftovers.left() == []
    assert not [event for event in _events(node) if event["event"] == "run_finished"]


def test_what_is_left_is_told(tmp_path: Path) -> None:
    """A run that leaves all of it behind: a process with shared memory, a file in /dev/shm, a temporary one."""
    code = (
        "import os, sys, tempfile, time\n"
        "fd = os.memfd_create('left')\n"
        "os.write(fd, b'x')\n"
        "tempfile.mkstemp()\n"
        f"open('/dev/shm/{tmp_path.name}', 'w').close()\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    with Leftovers(tmp_path) as leftovers:
        environment = {**os.environ, **leftovers.variables}
        process = subprocess.Popen(["python3", "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        assert until(lambda: bool(leftovers.seen_memory), 10.0)
        try:
            left = leftovers.left(wait_s=0.0)
        finally:
            process.kill()
            process.communicate()
            Path("/dev/shm", tmp_path.name).unlink()
        assert [line.split(" ")[0] for line in left] == ["process", "shared", f"/dev/shm/{tmp_path.name}", "temporary"]
        assert len(leftovers.left()) == 1, "the temporary file stays, the rest is gone"
