"""What runs when, and for how long: shares of the time, busy GPUs, checks for all GPUs or one alone, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.executor import ExecutionResult
from gpu_burnin.engine.plan import CLOSING_S, Plan
from gpu_burnin.types import Verdict
from tests.support.clocks import LookClock
from tests.support.engine_helpers import plan
from tests.support.executor_helpers import Fake, events, reasons_of


def _budgets(result: ExecutionResult) -> dict[str, float]:
    return {str(e["check"]): e["budget_s"] for e in result.events if e["event"] == "check_started"}


def _timed(total_s: float, **weights: float) -> Plan:
    made = plan(*weights, deadline_s=5.0)
    checks = tuple(replace(c, weight=weights[c.name], least_s=1.0) for c in made.checks)
    return replace(made, checks=checks, total_s=total_s)


def test_each_check_gets_its_share_of_what_is_left_when_it_starts(fake: Fake) -> None:
    spent_s = 20.0  # start, self-tests and all else that came before
    result = fake("fine", _timed(83.0, gemm=3.0, hbm=1.0), started_s=time.monotonic() - spent_s)
    budgets = _budgets(result)
    assert budgets["gemm"] == pytest.approx((83 - spent_s - CLOSING_S) * 3 / 4, abs=2)
    # The fake gemm took no time at all, so hbm gets everything that is left.
    assert budgets["hbm"] == pytest.approx(83 - spent_s - CLOSING_S, abs=2)
    started = next(e for e in result.events if e["event"] == "check_started")
    assert started["deadline_s"] == pytest.approx(started["budget_s"] + 5.0)


def test_a_run_whose_time_is_over_gives_each_check_its_least(fake: Fake) -> None:
    result = fake("fine", _timed(60.0, gemm=3.0, hbm=1.0), started_s=time.monotonic() - 70.0)
    assert _budgets(result) == {"gemm": 1.0, "hbm": 1.0}


def test_results_carry_the_time_their_check_started_at(fake: Fake) -> None:
    clock = LookClock(0.001)
    gemm, hbm = fake("fine", plan("gemm", "hbm"), clock=clock.monotonic).results
    assert 0 < gemm.started_s < hbm.started_s < clock.monotonic()


def test_all_selftests_come_before_the_checks(fake: Fake) -> None:
    result = fake("fine", plan("gemm", "hbm", selftest=True))
    starts = [(e["event"], e["check"]) for e in result.events if str(e["event"]).endswith("_started") and "check" in e]
    kinds = ("selftest_started", "check_started")
    assert starts == [(kind, check) for kind in kinds for check in ("gemm", "hbm")]


def test_selftests_alone(fake: Fake) -> None:
    result = fake("fine", replace(plan("state", "gemm", selftest=True), checks_off=True))
    assert result.results == ()
    assert events(result).count("selftest_finished") == 1
    assert len(result.worker_pids) == 1, "the node has nothing to do"


# --- a GPU in use ---


def test_nothing_is_started_on_a_node_with_a_busy_gpu(fake: Fake) -> None:
    result = fake("GPU is busy", plan("state", "gemm", gpus=2))
    assert result.busy
    assert [r.name for r in result.results] == ["state"]
    assert len(result.worker_pids) == 1, "only the node's worker"
    assert not fake("fine", plan("state", "gemm")).busy


# --- checks for all GPUs together, or for one alone ---


def _scoped(scope: Scope, gpus: int = 2) -> Plan:
    """gemm on each GPU, then hbm in the given way."""
    made = plan("gemm", "hbm", gpus=gpus, deadline_s=20.0)
    return replace(made, checks=tuple(replace(c, scope=scope) if c.name == "hbm" else c for c in made.checks))


def _order(result: ExecutionResult, check: str) -> list[tuple[str, str | None]]:
    return [(str(e["event"]), e["gpu"]) for e in result.events if e.get("check") == check]


def _let_gpu_0_go_on(state: Path) -> Callable[[Mapping[str, Any]], None]:
    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "check_finished" and event["gpu"] == "GPU-1":
            state.touch()

    return on_event


def test_a_check_for_all_gpus_begins_when_the_last_has_come_to_it(fake: Fake, tmp_path: Path) -> None:
    result = fake("GPU-0 is late", _scoped(Scope.TOGETHER), on_event=_let_gpu_0_go_on(tmp_path / "state"))
    seen = [(e["event"], e["check"]) for e in result.events if "check" in e]
    assert seen[-4:-2] == [("check_started", "hbm")] * 2
    assert sorted(seen[:-4]) == [("check_finished", "gemm")] * 2 + [("check_started", "gemm")] * 2
    budgets = {e["budget_s"] for e in result.events if e["event"] == "check_started" and e["check"] == "hbm"}
    assert len(budgets) == 1, "all get the same time"


def test_workers_exchange_data_through_the_supervisor(fake: Fake) -> None:
    result = fake("exchanges", _scoped(Scope.TOGETHER, gpus=3))
    everybody = {f"GPU-{i}": {"handle": f"GPU-{i}"} for i in range(3)}
    assert [r.errors for r in result.results if r.name == "hbm"] == [(everybody,)] * 3


def test_an_exchange_goes_on_without_a_worker_that_died(fake: Fake, tmp_path: Path) -> None:
    shared: list[str] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "check_started" and event["check"] == "hbm":
            shared.append(event["gpu"])
            if len(shared) == 2:
                (tmp_path / "state").touch()

    result = fake("exchanges, GPU-1 dies", _scoped(Scope.TOGETHER), on_event=on_event)
    found = {r.gpu: r for r in result.results if r.name == "hbm"}
    assert found["GPU-0"].errors == ({"GPU-0": {"handle": "GPU-0"}},)
    assert reasons_of(found["GPU-1"]) == [("WORKER_DIED", Verdict.FAIL)]


# --- memory ---


def test_a_worker_killed_for_lack_of_memory_says_so_and_is_no_fault_of_the_gpu(fake: Fake) -> None:
    counts = iter(range(100))
    result = fake("is killed", plan("gemm", "hbm"), oom_kills=lambda: {"": next(counts)})
    assert reasons_of(result.results[0]) == [("OUT_OF_MEMORY", Verdict.INCONCLUSIVE)]
    assert "gemm could not run: the kernel killed the worker for lack of memory" in result.results[0].reasons[0].message
    assert result.results[1].verdict is Verdict.PASS


def test_another_kill_is_no_lack_of_memory(fake: Fake) -> None:
    result = fake("is killed", plan("gemm"), oom_kills=lambda: {"": 5})
    assert reasons_of(result.results[0]) == [("WORKER_DIED", Verdict.FAIL)]


def test_an_offer_that_would_not_fit_into_a_pipe_breaks_the_protocol(fake: Fake) -> None:
    result = fake("exchanges too much", _scoped(Scope.TOGETHER, gpus=2))
    assert any(e["event"] == "worker_broke_protocol" and "too large" in e["message"] for e in result.events)


def test_a_check_after_the_others_waits_until_all_gpus_are_free(fake: Fake) -> None:
    made = plan("gemm", "hbm", gpus=2, deadline_s=20.0)
    scoped = replace(made, checks=tuple(replace(c, scope=Scope.AFTER) if c.name == "hbm" else c for c in made.checks))
    result = fake("fine", scoped)
    assert _order(result, "hbm") == [("check_started", None), ("check_finished", None)]
    started = [e for e in result.events if e["event"] == "check_started"]
    assert [e["check"] for e in started] == ["gemm", "gemm", "hbm"]
    assert [r.gpu for r in result.results if r.name == "hbm"] == [None]
