"""The supervisor: deadlines, crashes, hangs, Ctrl-C, with misbehaving workers and with the real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import plan

from gpu_burnin.executor import ExecutionResult, Limits, execute
from gpu_burnin.journal import Journal, died_during, read_journal
from gpu_burnin.plan import Plan
from gpu_burnin.types import CheckResult, Verdict
from gpu_burnin.worker_process import WorkerProcess, worker_environment

LIMITS = Limits(open_s=5.0, term_grace_s=0.3, kill_grace_s=2.0)
Fake = Callable[..., ExecutionResult]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Runs a plan with fake_worker.py in the given mode."""

    def run(mode: str, made: Plan, limits: Limits = LIMITS, **settings: Any) -> ExecutionResult:
        script = Path(__file__).with_name("fake_worker.py")
        command = [sys.executable, "-S", str(script), mode, str(tmp_path / "state")]
        return execute(made, limits=limits, command=command, **settings)

    return run


def _told(result: CheckResult) -> list[tuple[str, Verdict]]:
    return [(r.code, r.severity) for r in result.reasons]


def _events(result: ExecutionResult) -> list[str]:
    return [str(e["event"]) for e in result.events]


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_node_first_then_all_gpus_each_in_its_worker(fake: Fake) -> None:
    result = fake("fine", plan("state", "gemm", "hbm", gpus=3, selftest=True))
    assert (result.results[0].name, result.results[0].gpu) == ("state", None)
    assert {(r.name, r.gpu) for r in result.results[1:]} == {(n, f"GPU-{i}") for n in ("gemm", "hbm") for i in range(3)}
    assert len(set(result.worker_pids)) == 4
    assert result.killed_pids == ()
    assert set(result.facts) == {"node", "GPU-0", "GPU-1", "GPU-2"}
    events = _events(result)
    assert (events[0], events[-1]) == ("run_started", "run_finished")
    starts = [e for e in result.events if e["event"] == "check_started"]
    assert starts[0]["check"] == "state"


def test_without_gpus_the_node_is_still_checked(fake: Fake) -> None:
    assert [r.name for r in fake("fine", plan("state", "gemm", gpus=0)).results] == ["state"]


def test_a_hang_is_ended_and_the_rest_goes_on(fake: Fake) -> None:
    result = fake("hangs", plan("gemm", "hbm", gpus=2, deadline_s=0.4))
    gemm = [r for r in result.results if r.name == "gemm"]
    assert [_told(r) for r in gemm] == [[("HUNG", Verdict.FAIL)]] * 2
    assert [r.verdict for r in result.results if r.name == "hbm"] == [Verdict.PASS] * 2
    assert len(result.killed_pids) == 2
    assert all(_gone(pid) for pid in result.worker_pids)
    assert "worker_killed" not in _events(result), "SIGTERM was enough"


def test_a_worker_that_ignores_sigterm_is_killed(fake: Fake) -> None:
    result = fake("ignores SIGTERM", plan("gemm", "hbm", deadline_s=0.3))
    assert _told(result.results[0]) == [("HUNG", Verdict.FAIL)]
    assert result.results[1].verdict is Verdict.PASS
    assert "worker_killed" in _events(result)
    assert all(_gone(pid) for pid in result.worker_pids)


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No signal arrives, as with a process that hangs in the driver; the processes are really ended afterwards."""
    started: list[WorkerProcess] = []
    real = WorkerProcess.signal
    monkeypatch.setattr(WorkerProcess, "signal", lambda self, _: started.append(self))
    yield
    for process in started:
        real(process, signal.SIGKILL)
        process.ended(5)


@pytest.mark.usefixtures("unkillable")
def test_a_worker_that_cannot_be_killed_is_left_behind(fake: Fake) -> None:
    limits = Limits(open_s=5.0, term_grace_s=0.1, kill_grace_s=0.1)
    result = fake("hangs", plan("gemm", "hbm", deadline_s=0.2), limits)
    assert [_told(r) for r in result.results] == [[("WEDGED", Verdict.FAIL)]], "hbm is not run on this GPU any more"
    assert "left behind" in result.results[0].reasons[0].message
    assert "worker_wedged" in _events(result)


@pytest.mark.usefixtures("unkillable")
def test_ctrl_c_does_not_wait_for_a_worker_that_cannot_be_killed(fake: Fake) -> None:
    limits = Limits(open_s=5.0, term_grace_s=0.1, kill_grace_s=0.1)
    result = fake("hangs", plan("gemm"), limits, on_event=_interrupt_at("check_started"))
    assert result.interrupted
    assert "worker_wedged" in _events(result)


def test_a_hang_at_start_is_told(fake: Fake) -> None:
    limits = Limits(open_s=0.3, term_grace_s=0.2, kill_grace_s=1.0)
    result = fake("hangs at start", plan("gemm", "hbm"), limits)
    assert [_told(r) for r in result.results] == [[("HUNG", Verdict.FAIL)]]


def test_a_hang_at_the_end_changes_no_result(fake: Fake) -> None:
    result = fake("hangs at the end", plan("gemm"))
    assert [r.verdict for r in result.results] == [Verdict.PASS]
    assert "deadline_missed" in _events(result)
    assert all(_gone(pid) for pid in result.worker_pids)


def test_a_death_at_start_twice_fails_every_check(fake: Fake) -> None:
    result = fake("dies at start", plan("gemm", "hbm"))
    assert [_told(r)[-1] for r in result.results] == [("WORKER_DIED", Verdict.FAIL)] * 2
    deaths = [e for e in result.events if e["event"] == "worker_died"]
    assert len(deaths) == 2
    assert "no such library" in deaths[0]["stderr_tail"]


def test_a_death_at_start_once_is_inconclusive(fake: Fake) -> None:
    result = fake("dies at first start", plan("gemm", "hbm"))
    assert _told(result.results[0]) == [("WORKER_DIED", Verdict.INCONCLUSIVE)]
    assert "exit status 7" in result.results[0].reasons[0].message
    assert result.results[0].verdict is Verdict.INCONCLUSIVE
    assert result.results[1].verdict is Verdict.PASS


def test_a_backend_that_cannot_open_is_inconclusive(fake: Fake) -> None:
    result = fake("cannot open", plan("gemm", "hbm"))
    assert [_told(r) for r in result.results] == [[("CHECK_ERROR", Verdict.INCONCLUSIVE)]] * 2
    assert "CuPy is missing" in result.results[0].reasons[0].message


def test_a_worker_that_cannot_start_is_inconclusive() -> None:
    result = execute(plan("gemm"), command=["/nonexistent/worker"])
    assert _told(result.results[0]) == [("CHECK_ERROR", Verdict.INCONCLUSIVE)]


def test_a_check_that_raises_is_inconclusive(fake: Fake) -> None:
    assert _told(fake("raises", plan("gemm")).results[0]) == [("CHECK_ERROR", Verdict.INCONCLUSIVE)]


def test_garbage_from_a_worker_counts_as_its_death(fake: Fake) -> None:
    result = fake("garbage", plan("gemm"))
    assert _told(result.results[0]) == [("WORKER_DIED", Verdict.FAIL)]
    assert _events(result).count("worker_broke_protocol") == 2
    assert all(_gone(pid) for pid in result.worker_pids)


def test_a_selftest_that_dies_has_detected_nothing_and_the_check_still_runs(fake: Fake) -> None:
    result = fake("selftest dies", plan("gemm", selftest=True))
    assert [r.verdict for r in result.results] == [Verdict.PASS]
    (test,) = result.selftests
    assert (test.check, test.injected, test.detected) == ("gemm", False, False)


def test_a_selftest_that_hangs_is_a_hang_of_its_check(fake: Fake) -> None:
    made = replace(plan("gemm", selftest=True), selftest_deadline_s=0.3)
    assert _told(fake("selftest hangs", made).results[0]) == [("HUNG", Verdict.FAIL)]


def _interrupt_at(name: str) -> Callable[[Mapping[str, Any]], None]:
    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == name:
            raise KeyboardInterrupt

    return on_event


def test_ctrl_c_gives_what_is_there(fake: Fake) -> None:
    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "check_started" and event["check"] == "gemm":
            raise KeyboardInterrupt

    result = fake("hangs", plan("state", "gemm", gpus=2, deadline_s=60), on_event=on_event)
    assert result.interrupted
    assert [r.name for r in result.results] == ["state"]
    assert _events(result)[-2:] == ["interrupted", "run_finished"]
    assert all(_gone(pid) for pid in result.worker_pids)


def test_a_journal_that_cannot_be_written_stops_the_run_and_its_workers(fake: Fake) -> None:
    pids: list[int] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "worker_started":
            pids.append(event["pid"])
        if event["event"] == "check_started":
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        fake("hangs", plan("gemm"), on_event=on_event)
    assert pids and all(_gone(pid) for pid in pids)


def test_the_journal_tells_what_ran(fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    seen: list[str] = []
    with Journal(path, "boot-1") as journal:
        fake("fine", plan("gemm"), journal=journal, on_event=lambda e: seen.append(str(e["event"])))
    kinds = [e["event"] for e in read_journal(path)]
    assert kinds == ["run_started", "worker_started", "check_started", "check_finished", "run_finished"]
    assert "progress" in seen
    assert died_during(path, "boot-2") is None


def test_a_killed_supervisor_leaves_no_worker_and_a_journal_that_tells(tmp_path: Path) -> None:
    """The supervisor runs in a process of its own and is killed in the middle of gemm."""
    path = tmp_path / "journal.jsonl"
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\nfrom engine_helpers import plan\n"
        "from gpu_burnin.executor import execute\nfrom gpu_burnin.journal import Journal\n"
        "execute(plan('gemm', inject=('gemm:hang',)), Journal(Path(sys.argv[1]), 'boot-1'))\n"
    )
    here = Path(__file__).parent
    supervisor = subprocess.Popen([sys.executable, "-c", code, str(path), str(here), str(here.parents[2])])
    try:
        _wait(lambda: path.exists() and any(e["event"] == "check_started" for e in read_journal(path)))
    finally:
        supervisor.kill()
        supervisor.wait()
    worker = next(e["pid"] for e in read_journal(path) if e["event"] == "worker_started")
    _wait(lambda: _gone(worker) or _is_zombie(worker))
    assert died_during(path, "boot-2") == "gemm"
    assert died_during(path, "boot-1") is None


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.02)


# --- the real worker ---


def test_real_workers_pass_on_healthy_memory_and_prove_their_detectors() -> None:
    result = execute(plan("gemm", "hbm", gpus=2, selftest=True))
    assert [r.verdict for r in result.results] == [Verdict.PASS] * 4
    assert len(result.selftests) == 2 * (7 * 8 + 1)
    assert all(t.detected for t in result.selftests)
    assert result.facts["GPU-0"]["backend"] == "cpu"


def test_real_worker_faults_hit_the_gpu_they_name() -> None:
    inject = ("gemm:bitflip:gpu=1", "hbm:crash:gpu=1", "gemm:crash_once:gpu=0")
    result = execute(plan("gemm", "hbm", gpus=2, inject=inject))
    told = {(r.name, r.gpu): _told(r) for r in result.results}
    assert told == {
        ("gemm", "GPU-0"): [("WORKER_DIED", Verdict.INCONCLUSIVE)],
        ("hbm", "GPU-0"): [],
        ("gemm", "GPU-1"): [("GEMM_MISMATCH", Verdict.FAIL)],
        ("hbm", "GPU-1"): [("WORKER_DIED", Verdict.FAIL)],
    }


def test_real_worker_that_wedges_is_killed() -> None:
    made = plan("hbm", inject=("hbm:wedge",), deadline_s=0.5)
    result = execute(made, limits=LIMITS)
    assert _told(result.results[0]) == [("HUNG", Verdict.FAIL)]
    assert all(_gone(pid) for pid in result.worker_pids)


def test_the_supervisor_loads_nothing_heavy() -> None:
    code = (
        "import sys, gpu_burnin.executor, gpu_burnin.plan, gpu_burnin.journal\n"
        "print([m for m in ('numpy', 'cupy', 'pynvml', 'ml_dtypes') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_environment_of_a_worker_is_clean() -> None:
    base = {
        "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3", "CUBLAS_WORKSPACE_CONFIG": ":16:8", "NVIDIA_TF32_OVERRIDE": "0",
        "NCCL_DEBUG": "INFO", "PYTHONPATH": "/tmp/evil", "OMP_NUM_THREADS": "64", "LD_LIBRARY_PATH": "/fake/nvml",
    }  # fmt: skip
    cpu = worker_environment(base, "cpu", "GPU-1")
    assert (cpu["PATH"], cpu["LD_LIBRARY_PATH"], cpu["OMP_NUM_THREADS"]) == ("/bin", "/fake/nvml", "1")
    assert not {k for k in cpu if k.startswith(("CUDA", "CUBLAS", "NVIDIA", "NCCL"))}
    assert cpu["PYTHONPATH"] == str(Path(__file__).parents[3])
    assert worker_environment(base, "cuda", "GPU-1")["CUDA_VISIBLE_DEVICES"] == "GPU-1"
