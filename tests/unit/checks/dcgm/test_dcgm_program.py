"""The dcgm check with a dcgmi of our own that answers, fails, hangs or is not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.dcgm import check
from gpu_burnin.checks.dcgm.result import DiagnosticRow
from gpu_burnin.report.formatting import covered
from gpu_burnin.system.children import child_environment
from gpu_burnin.types import JSON, CheckResult, Verdict
from tests.support.clocks import PATIENCE_S, has_ended, wait_until
from tests.support.dcgm_answers import GPUS, NVVS_ERROR, Document, answer, spoil

# --- dcgmi itself ---


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a dcgmi of the given shell commands first on PATH; no GPU of this computer counts."""
    monkeypatch.setattr(check, "gpu_addresses", lambda: ())
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(commands: str) -> Path:
        path = tmp_path / "dcgmi"
        path.write_text(f"#!/bin/sh\n{commands}\n")
        path.chmod(0o755)
        return path

    return write


def run(budget_s: float = 60.0, level: str = "standard", **options: JSON) -> CheckResult:
    ctx = CheckContext(seed=1, level=level, budget_s=budget_s, gpus=GPUS, options=options)
    return check.Check().run(ctx)


def _say(tmp_path: Path, document: Document, exit_status: int = 0) -> str:
    (tmp_path / "answer.json").write_text(json.dumps(document))
    return f'echo "$@" > {tmp_path}/asked; cat {tmp_path}/answer.json; exit {exit_status}'


@pytest.mark.parametrize(("level", "number"), [("quick", "1"), ("standard", "2"), ("extended", "3")])
def test_dcgmi_is_asked_for_the_level_and_its_answer_is_the_result(
    dcgmi: Callable[[str], Path], tmp_path: Path, level: str, number: str
) -> None:
    dcgmi(_say(tmp_path, answer()))
    result = run(level=level)
    assert (tmp_path / "asked").read_text().split() == ["diag", "--run", number, "--json"]
    assert (result.verdict, result.gpu, result.reasons) == (Verdict.PASS, None, ())
    assert (result.coverage.release, result.coverage.level, result.coverage.skipped) == (
        "4.5.2", int(number), 0,
    )  # fmt: skip
    assert covered(result) == f"DCGM 4.5.2 at its level {number}, an opinion of its own, 3 Pass"


@pytest.mark.parametrize(("active", "done"), [(0, ["is-active"]), (3, ["is-active", "start", "stop"])])
def test_a_paused_host_engine_runs_for_the_check_alone(
    dcgmi: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, active: int, done: list[str]
) -> None:
    """systemctl is played: `start` makes the socket, on which dcgmi is then asked."""
    dcgmi(_say(tmp_path, answer()))
    monkeypatch.setattr(check, "_SOCKET", tmp_path / "socket")
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\necho "$1" >>{tmp_path}/done\n'
        f"case $1 in is-active) exit {active};; start) touch {tmp_path}/socket;; esac\n"
    )
    systemctl.chmod(0o755)
    assert run().verdict is Verdict.PASS
    assert (tmp_path / "done").read_text().split() == done
    host = [] if active == 0 else ["--host", f"unix://{tmp_path}/socket"]
    assert (tmp_path / "asked").read_text().split() == ["diag", *host, "--run", "2", "--json"]


def test_a_failing_dcgmi_fails_the_node(dcgmi: Callable[[str], Path], tmp_path: Path) -> None:
    document = answer()
    spoil(document, "memory", 0, "Fail", ("Uncorrectable ECC error", 2))
    dcgmi(_say(tmp_path, document, NVVS_ERROR))
    result = run()
    assert (result.verdict, result.reasons[0].code, result.reasons[0].gpu) == (Verdict.FAIL, "DCGM_FAILED", "GPU-2")
    assert DiagnosticRow("memory", "Fail", ("GPU-2",), "Uncorrectable ECC error") in result.coverage.tests


def test_the_program_can_be_named(dcgmi: Callable[[str], Path], tmp_path: Path) -> None:
    path = dcgmi(_say(tmp_path, answer())).rename(tmp_path / "other")
    assert run(dcgmi=str(path)).verdict is Verdict.PASS


def test_no_dcgmi_is_inconclusive_with_the_fix(dcgmi: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = run()
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.reasons[0].code == "DCGM_MISSING"
    assert "install datacenter-gpu-manager-4-cuda12 or -cuda13 and start nvidia-dcgm" in result.reasons[0].message
    assert run(dcgmi="/nowhere/dcgmi").reasons[0].code == "DCGM_MISSING"


def test_a_dcgmi_that_cannot_be_run_is_no_answer(dcgmi: Callable[[str], Path]) -> None:
    dcgmi("").write_text("#!/nowhere/sh\n")
    (reason,) = run().reasons
    assert reason.code == "DCGM_UNKNOWN"
    assert "exit status 127" in reason.message and "cannot be run" in reason.message


def test_a_host_engine_that_does_not_run_is_missing(dcgmi: Callable[[str], Path]) -> None:
    dcgmi('echo "Error: unable to establish a connection to the specified host: localhost"; exit 255')
    (reason,) = run().reasons
    assert reason.code == "DCGM_MISSING"
    assert "start nvidia-dcgm" in reason.message


def test_what_cannot_be_read_is_said_with_the_exit_status(dcgmi: Callable[[str], Path]) -> None:
    dcgmi('echo "Some banner"; echo "what went wrong" >&2; exit 3')
    (reason,) = run().reasons
    assert (reason.code, reason.severity) == ("DCGM_UNKNOWN", Verdict.INCONCLUSIVE)
    assert "Some banner (exit status 3; what went wrong)" in reason.message


def test_gpus_that_are_left_out_are_not_tested_behind_the_caller_s_back(
    dcgmi: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi(_say(tmp_path, answer()))
    monkeypatch.setattr(check, "gpu_addresses", lambda: ("a", "b", "c", "d"))
    (reason,) = run().reasons
    assert reason.code == "COVERAGE_LOW"
    assert "1 of 4 are left out" in reason.message
    assert not (tmp_path / "asked").exists()


def test_progress_is_shown_while_dcgmi_runs(dcgmi: Callable[[str], Path], tmp_path: Path) -> None:
    dcgmi(_say(tmp_path, answer()))
    shown: list[Mapping[str, JSON]] = []
    check.Check().run(CheckContext(seed=1, level="quick", budget_s=60.0, gpus=GPUS, progress=shown.append))
    assert shown and shown[0]["phase"] == "dcgmi diag level 1"


# --- its end ---


def _pid(path: Path) -> int:
    """The process number that a script writes when it is up."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


# The script tells that it was asked to end, as dcgmi stops its tests then; its child does not care.
_HANGING = """
trap 'echo stopped > {folder}/stopped; exit 1' TERM
(trap '' TERM; echo $$ > /dev/null; sh -c 'echo $PPID' > {folder}/child; while :; do sleep 1; done) &
echo $$ > {folder}/self
while :; do sleep 0.1; done
"""


@pytest.mark.slow
def test_after_its_time_dcgmi_is_told_to_end_and_all_of_its_group_is_gone(
    dcgmi: Callable[[str], Path], tmp_path: Path
) -> None:
    dcgmi(_HANGING.format(folder=tmp_path))
    result = run(budget_s=1.0)
    (reason,) = result.reasons
    assert (reason.code, reason.severity) == ("DCGM_UNKNOWN", Verdict.INCONCLUSIVE)
    assert "was ended after" in reason.message
    assert (tmp_path / "stopped").read_text() == "stopped\n"
    pids = [_pid(tmp_path / name) for name in ("self", "child")]
    wait_until(lambda: all(map(has_ended, pids)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_dcgmi_ends_with_its_worker(dcgmi: Callable[[str], Path], tmp_path: Path, number: signal.Signals) -> None:
    dcgmi(_HANGING.format(folder=tmp_path))
    code = (
        "from gpu_burnin.checks import CheckContext\nfrom gpu_burnin.checks.dcgm.check import Check\n"
        "import gpu_burnin.checks.dcgm.check as d\nd.gpu_addresses = lambda: ()\n"
        "Check().run(CheckContext(seed=1, level='quick', budget_s=600.0, gpus=()))"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], env=child_environment(os.environ), start_new_session=True)
    try:
        pids = [_pid(tmp_path / name) for name in ("self", "child")]
        os.killpg(worker.pid, number)
        worker.wait(PATIENCE_S)
        wait_until(lambda: all(map(has_ended, pids)))
        assert (tmp_path / "stopped").exists()
    finally:
        worker.kill()
        worker.wait()


def _child(parent: int, *command: str) -> subprocess.CompletedProcess[str]:
    guard = [sys.executable, "-m", "gpu_burnin.checks.dcgm.child", "60", str(parent), *command]
    return subprocess.run(
        guard, env=child_environment(os.environ), check=False, timeout=PATIENCE_S, capture_output=True, text=True
    )


def test_a_worker_that_was_gone_before_leaves_no_dcgmi(tmp_path: Path) -> None:
    assert _child(1, "/bin/sh", "-c", f"touch {tmp_path}/ran").returncode == 1
    assert not (tmp_path / "ran").exists()


def test_the_exit_status_of_the_command_is_passed_on() -> None:
    assert _child(os.getpid(), "/bin/sh", "-c", "exit 7").returncode == 7
    absent = _child(os.getpid(), "/nowhere/dcgmi")
    assert (absent.returncode, absent.stderr) == (127, "/nowhere/dcgmi cannot be run: No such file or directory\n")
