"""The supervisor with misbehaving workers: deadlines, crashes, hangs, Ctrl-C, its journal."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.engine.execution import shielded
from gpu_burnin.engine.executor import execute
from gpu_burnin.engine.journal import Journal, died_during, read_journal
from gpu_burnin.engine.worker_process import WorkerProcess
from gpu_burnin.types import Verdict
from tests.support.clocks import HandClock, has_ended, wait_until
from tests.support.engine_helpers import limited, plan
from tests.support.executor_helpers import Fake, events, gone, reasons_of


def test_node_first_then_all_gpus_each_in_its_worker(fake: Fake) -> None:
    result = fake("fine", plan("state", "gemm", "hbm", gpus=3, selftest=True))
    assert (result.results[0].name, result.results[0].gpu) == ("state", None)
    assert {(r.name, r.gpu) for r in result.results[1:]} == {(n, f"GPU-{i}") for n in ("gemm", "hbm") for i in range(3)}
    assert len(set(result.worker_pids)) == 4
    assert result.killed_pids == ()
    assert set(result.facts) == {"node", "GPU-0", "GPU-1", "GPU-2"}
    assert {facts["kernel_dir"] for facts in result.facts.values()} == {None}
    kinds = events(result)
    assert (kinds[0], kinds[-1]) == ("run_started", "run_finished")
    assert result.events[0]["total_s"] is None, "a CPU's round takes the time that it takes"
    starts = [e for e in result.events if e["event"] == "check_started"]
    assert starts[0]["check"] == "state"


def test_without_gpus_the_node_is_still_checked(fake: Fake) -> None:
    assert [r.name for r in fake("fine", plan("state", "gemm", gpus=0)).results] == ["state"]


def test_a_hang_is_ended_and_the_rest_goes_on(fake: Fake) -> None:
    result = fake("hangs", plan("gemm", "hbm", gpus=2, deadline_s=0.4))
    gemm = [r for r in result.results if r.name == "gemm"]
    assert [reasons_of(r) for r in gemm] == [[("HUNG", Verdict.FAIL)]] * 2
    assert [r.verdict for r in result.results if r.name == "hbm"] == [Verdict.PASS] * 2
    assert len(result.killed_pids) == 2
    assert all(gone(pid) for pid in result.worker_pids)
    assert "worker_killed" not in events(result), "SIGTERM was enough"


@pytest.mark.slow
def test_a_worker_that_ignores_sigterm_is_killed(fake: Fake) -> None:
    result = fake("ignores SIGTERM", plan("gemm", "hbm", deadline_s=0.3))
    assert reasons_of(result.results[0]) == [("HUNG", Verdict.FAIL)]
    assert result.results[1].verdict is Verdict.PASS
    assert "worker_killed" in events(result)
    assert all(gone(pid) for pid in result.worker_pids)


@pytest.mark.usefixtures("unkillable")
def test_a_worker_that_cannot_be_killed_is_left_behind(fake: Fake) -> None:
    limits = {"open_s": 5.0, "term_grace_s": 0.1, "kill_grace_s": 0.1}
    result = fake("hangs", plan("gemm", "hbm", deadline_s=0.2), limits)
    assert [reasons_of(r) for r in result.results] == [[("WEDGED", Verdict.FAIL)]], (
        "hbm is not run on this GPU any more"
    )
    assert "left behind" in result.results[0].reasons[0].message
    assert "worker_wedged" in events(result)


@pytest.mark.usefixtures("unkillable")
def test_ctrl_c_does_not_wait_for_a_worker_that_cannot_be_killed(fake: Fake) -> None:
    limits = {"open_s": 5.0, "term_grace_s": 0.1, "kill_grace_s": 0.1}
    result = fake("hangs", plan("gemm"), limits, on_event=_interrupt_at("check_started"))
    assert result.interrupted
    assert "worker_wedged" in events(result)


@pytest.mark.slow
@pytest.mark.usefixtures("unkillable")
def test_a_worker_that_closes_its_output_and_hangs_while_it_exits_is_left_behind(fake: Fake) -> None:
    limits = {"open_s": 5.0, "term_grace_s": 0.1, "kill_grace_s": 0.1}
    result = fake("closes its output", plan("gemm", "hbm"), limits)
    assert [reasons_of(r) for r in result.results] == [[("WEDGED", Verdict.FAIL)]], "no second worker on this GPU"
    assert len(result.worker_pids) == 1
    assert "worker_wedged" in events(result)


def test_waits_are_where_a_run_is_stopped(fake: Fake) -> None:
    seen: list[object] = []
    stops = 0

    @contextlib.contextmanager
    def waiting() -> Iterator[None]:
        nonlocal stops
        if "check_started" in seen and stops < 2:  # the second while the workers are given time to end
            stops += 1
            raise KeyboardInterrupt
        yield

    result = fake(
        "ignores SIGTERM",
        plan("gemm", deadline_s=60),
        waiting=waiting,
        on_event=lambda event: seen.append(event["event"]),
    )
    assert result.interrupted and stops == 2
    assert events(result)[-2:] == ["interrupted", "run_finished"]
    assert all(gone(pid) for pid in result.worker_pids)


def test_a_display_that_fails_is_not_told_of_any_more() -> None:
    told_of: list[object] = []

    class Broken:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def __enter__(self) -> Callable[[Mapping[str, Any]], None]:
            return self.show

        def __exit__(self, *_: object) -> None:
            raise OSError("no terminal")

        def show(self, event: Mapping[str, Any]) -> None:
            told_of.append(event)
            raise self.error

    for error in (BrokenPipeError(), ValueError("a fault of the display")):
        told_of.clear()
        with shielded(Broken(error)) as on_event:
            on_event({"event": "a"})
            on_event({"event": "b"})
        assert told_of == [{"event": "a"}]


def test_a_hang_at_start_is_told(fake: Fake) -> None:
    limits = {"open_s": 0.3, "term_grace_s": 0.2, "kill_grace_s": 1.0}
    result = fake("hangs at start", plan("gemm", "hbm"), limits)
    assert [reasons_of(r) for r in result.results] == [[("HUNG", Verdict.FAIL)]]


def test_a_hang_at_the_end_changes_no_result(fake: Fake) -> None:
    result = fake("hangs at the end", plan("gemm"))
    assert [r.verdict for r in result.results] == [Verdict.PASS]
    assert "deadline_missed" in events(result)
    assert all(gone(pid) for pid in result.worker_pids)


def test_a_death_at_start_twice_fails_every_check(fake: Fake) -> None:
    result = fake("dies at start", plan("gemm", "hbm"))
    assert [reasons_of(r)[-1] for r in result.results] == [("WORKER_DIED", Verdict.FAIL)] * 2
    deaths = [e for e in result.events if e["event"] == "worker_died"]
    assert len(deaths) == 2
    assert "no such library" in deaths[0]["stderr_tail"]


def test_a_death_at_start_once_is_inconclusive(fake: Fake) -> None:
    result = fake("dies at first start", plan("gemm", "hbm"))
    assert reasons_of(result.results[0]) == [("WORKER_DIED", Verdict.INCONCLUSIVE)]
    assert "exit status 7" in result.results[0].reasons[0].message
    assert result.results[0].verdict is Verdict.INCONCLUSIVE
    assert result.results[1].verdict is Verdict.PASS


def test_a_backend_that_cannot_open_is_inconclusive(fake: Fake) -> None:
    result = fake("cannot open", plan("gemm", "hbm"))
    assert [reasons_of(r) for r in result.results] == [[("CHECK_ERROR", Verdict.INCONCLUSIVE)]] * 2
    assert "CuPy is missing" in result.results[0].reasons[0].message


def test_a_worker_that_cannot_open_and_stays_is_ended(fake: Fake) -> None:
    result = fake("cannot open and stays", plan("gemm"))
    assert [reasons_of(r) for r in result.results] == [[("CHECK_ERROR", Verdict.INCONCLUSIVE)]]
    assert result.worker_pids and all(gone(pid) for pid in result.worker_pids)


def test_a_worker_that_cannot_start_is_inconclusive() -> None:
    result = execute(plan("gemm"), command=["/nonexistent/worker"])
    assert reasons_of(result.results[0]) == [("CHECK_ERROR", Verdict.INCONCLUSIVE)]


def test_a_check_that_raises_is_inconclusive(fake: Fake) -> None:
    assert reasons_of(fake("raises", plan("gemm")).results[0]) == [("CHECK_ERROR", Verdict.INCONCLUSIVE)]


def test_damage_that_the_gpu_reports_fails_the_check_in_which_it_did(fake: Fake) -> None:
    result = fake("GPU reports damage", plan("gemm", "hbm"))
    assert [reasons_of(r) for r in result.results] == [[("ECC_UNCORRECTED", Verdict.FAIL)], []]
    assert result.results[0].reasons[0].message == "gemm could not run: uncorrectable ECC error encountered"
    result = fake("GPU is damaged at once", plan("gemm", "hbm"))
    assert [reasons_of(r) for r in result.results] == [[("ECC_UNCORRECTED", Verdict.FAIL)]] * 2


def test_garbage_from_a_worker_counts_as_its_death(fake: Fake) -> None:
    result = fake("garbage", plan("gemm"))
    assert reasons_of(result.results[0]) == [("WORKER_DIED", Verdict.FAIL)]
    assert events(result).count("worker_broke_protocol") == 2
    assert all(gone(pid) for pid in result.worker_pids)


def test_a_worker_that_never_stops_talking_keeps_nobody_from_being_heard(fake: Fake) -> None:
    clock = HandClock()

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "check_finished" and event["gpu"] == "GPU-1":
            clock.now_s += 3600.0  # the other one has had its time

    made = limited(plan("gemm", gpus=2), run_s=1e6)
    result = fake("never stops talking", made, on_event=on_event, clock=clock.monotonic)
    assert {r.gpu: reasons_of(r) for r in result.results} == {"GPU-0": [("HUNG", Verdict.FAIL)], "GPU-1": []}


def test_a_worker_that_speaks_for_another_gpu_is_ended(fake: Fake) -> None:
    result = fake("speaks for another", plan("gemm", gpus=2))
    assert {r.gpu: reasons_of(r) for r in result.results} == {
        "GPU-0": [("WORKER_DIED", Verdict.FAIL)],
        "GPU-1": [],
    }
    assert events(result).count("worker_broke_protocol") == 2
    assert len(result.killed_pids) == 2


def test_a_selftest_that_hangs_is_a_hang_of_its_check(fake: Fake) -> None:
    made = limited(plan("gemm", selftest=True), selftest_s=0.3)
    result = fake("selftest hangs", made)
    assert [reasons_of(r) for r in result.results] == [[("HUNG", Verdict.FAIL)]], "the check itself is not run any more"


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
    assert events(result)[-2:] == ["interrupted", "run_finished"]
    assert all(gone(pid) for pid in result.worker_pids)


def test_a_journal_that_cannot_be_written_stops_the_run_and_its_workers(fake: Fake) -> None:
    pids: list[int] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "worker_started":
            pids.append(event["pid"])
        if event["event"] == "check_started":
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        fake("hangs", plan("gemm"), on_event=on_event)
    assert pids and all(gone(pid) for pid in pids)


def test_an_impatient_third_ctrl_c_leaves_the_result_all_the_same(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, unkillable: None
) -> None:
    real, more = WorkerProcess.ended, iter("23")

    def interrupted(self: WorkerProcess, timeout_s: float = 0.0) -> bool:
        if next(more, None):
            raise KeyboardInterrupt
        return real(self, timeout_s)

    monkeypatch.setattr(WorkerProcess, "ended", interrupted)
    result = fake("hangs", plan("state", "gemm"), on_event=_interrupt_at("check_started"))
    assert result.interrupted
    assert events(result)[-2:] == ["worker_wedged", "run_finished"]


# --- the journal ---


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
        "from pathlib import Path\nfrom tests.support.engine_helpers import plan\n"
        "from gpu_burnin.engine.executor import execute\nfrom gpu_burnin.engine.journal import Journal\n"
        "execute(plan('gemm', inject=('gemm:hang',)), Journal(Path(sys.argv[1]), 'boot-1'))\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code, str(path), str(Path(__file__).parents[3])])
    try:
        wait_until(lambda: path.exists() and any(e["event"] == "check_started" for e in read_journal(path)))
    finally:
        supervisor.kill()
        supervisor.wait()
    worker = next(e["pid"] for e in read_journal(path) if e["event"] == "worker_started")
    wait_until(lambda: has_ended(worker))
    assert died_during(path, "boot-2") == "gemm"
    assert died_during(path, "boot-1") is None
