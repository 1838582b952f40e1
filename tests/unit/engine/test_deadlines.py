"""When a run gives up: the time limits of each level, and real workers that hang under scaled ones."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpu_burnin.api.levels import LEVELS
from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.deadlines import MOST_LATE_S, deadlines
from gpu_burnin.engine.messages import ProtocolError, parse
from gpu_burnin.engine.plan import CLOSING_S, make_plan, schedule
from gpu_burnin.types import Verdict
from tests.support.engine_helpers import gpu, limited, plan
from tests.support.executor_helpers import Fake, events, gone, reasons_of

HOURS_S = 2 * 86400.0
TIMES_S = (60.0, 300.0, 600.0, 7200.0, HOURS_S)


@pytest.mark.parametrize("level_s", TIMES_S)
def test_a_run_gives_up_at_twice_its_time_whatever_hangs(level_s: float) -> None:
    limits = deadlines(level_s)
    assert limits.run_s <= 2 * level_s
    assert limits.run_s <= level_s + MOST_LATE_S, "a hang in a run of days is not found days later"
    assert limits.steps_s < limits.run_s
    ladders_s = limits.term_grace_s + limits.kill_grace_s + limits.sampler_stop_s + limits.sampler_kill_s
    log_s = limits.kernel_log_left_s(limits.steps_s + ladders_s)
    assert ladders_s + log_s <= limits.closing_s, "what ends workers and samplers comes out of what is kept for it"
    before_s = limits.discover_s + limits.samplers_s + limits.kernel_log_s
    assert before_s < limits.steps_s, "workers get their turn though everything before them was as late as it may be"


@pytest.mark.parametrize("level", LEVELS)
def test_a_hang_in_the_last_check_of_a_run_in_time_is_told_from_a_run_that_was_late(level: str) -> None:
    made = make_plan(level, backend="cuda", gpus=[gpu(index) for index in range(8)], seed=1)
    limits = made.deadlines
    assert limits == deadlines(made.total_s)
    for step in schedule(made):
        if step.check.scope is not Scope.AFTER:
            ends_s = step.begins_s + limits.check_s(step.budget_s)
            assert step.begins_s + step.budget_s <= made.total_s - CLOSING_S + 1e-6
            assert step.budget_s < limits.check_s(step.budget_s)
            # With turns the budget is that of one GPU; its worker's clock stands still in the others'.
            assert ends_s <= limits.steps_s + 1e-6, step.check.name


@pytest.mark.parametrize("level_s", TIMES_S)
def test_what_is_healthy_but_slow_is_not_killed(level_s: float) -> None:
    """Figures of the module's own text: 30 s to wake a driver, twice, and 30 s for eight contexts."""
    limits = deadlines(level_s)
    assert min(limits.discover_s, limits.samplers_s) >= 30 + 10
    assert limits.open_s >= 2 * 30
    assert min(limits.selftest_s, limits.check_s(0.0)) >= 40
    assert limits.kernel_log_s >= 10


def test_quick_ends_a_slow_start_with_every_check_at_its_least() -> None:
    """A driver that has to be woken twice, slow contexts, self-tests: each check still gets its least in time."""
    made = make_plan("quick", backend="cuda", gpus=[gpu(index) for index in range(8)], seed=1)
    least_s = sum(check.least_s for check in made.checks if check.scope is not Scope.AFTER)
    assert 20 + 10 + 30 + 12 + least_s <= made.deadlines.steps_s


def test_the_cpu_backend_is_given_up_no_sooner() -> None:
    """Its checks take a moment, but its machine may be a busy one."""
    made = make_plan("quick", backend="cpu", gpus=[gpu()], seed=1)
    assert made.total_s == 1 and made.deadlines == deadlines(60.0)


@pytest.mark.parametrize("waited_s", ["NaN", float("nan"), float("inf"), -1.0, True, None])
def test_a_worker_cannot_put_off_its_end_by_what_it_says(waited_s: object) -> None:
    with pytest.raises(ProtocolError, match="malformed progress"):
        parse({"type": "progress", "data": {"waited_s": waited_s}}, "check", "gemm", "GPU-0")


# --- real processes under scaled deadlines ---


@pytest.mark.slow
def test_a_run_whose_time_is_over_ends_its_workers_and_blames_no_gpu(fake: Fake) -> None:
    made = limited(plan("gemm", "hbm", gpus=2, deadline_s=60.0), run_s=2.0, closing_s=0.5)
    result = fake("hangs", made)
    assert {(r.name, r.gpu): reasons_of(r) for r in result.results} == {
        (name, f"GPU-{index}"): [("OUT_OF_TIME", Verdict.INCONCLUSIVE)] for name in ("gemm", "hbm") for index in (0, 1)
    }
    assert events(result).count("out_of_time") == 2 and "deadline_missed" not in events(result)
    assert "ends within 2 s" in result.results[0].reasons[0].message
    assert all(gone(pid) for pid in result.worker_pids) and len(result.killed_pids) == 2


def test_a_hang_is_still_a_hang_when_its_own_time_is_over_first(fake: Fake) -> None:
    made = limited(plan("gemm", "hbm", deadline_s=0.4), run_s=30.0, closing_s=1.0)
    result = fake("hangs", made)
    assert [reasons_of(r) for r in result.results] == [[("HUNG", Verdict.FAIL)], []]


@pytest.mark.slow
def test_one_stopped_worker_is_told_and_does_not_hold_the_others(fake: Fake) -> None:
    """The others wait for it in a check of GPUs together; it gets the blame, they go on."""
    made = limited(plan("gemm", "pcie", gpus=3, deadline_s=0.6), run_s=60.0, closing_s=1.0)
    result = fake("GPU-0 stops itself", made)
    found = {(r.name, r.gpu): reasons_of(r) for r in result.results}
    assert found["gemm", "GPU-0"] == [("HUNG", Verdict.FAIL)]
    assert [found["pcie", f"GPU-{index}"] for index in (1, 2)] == [[], []]
    assert all(gone(pid) for pid in result.worker_pids)


@pytest.mark.slow
def test_workers_that_wait_for_others_end_with_the_run(fake: Fake) -> None:
    made = limited(plan("gemm", "pcie", gpus=2, deadline_s=60.0), run_s=2.0, closing_s=0.5)
    result = fake("GPU-0 stops itself", made)
    assert {reasons_of(r)[0][0] for r in result.results if r.name == "pcie"} == {"OUT_OF_TIME"}
    assert [reasons_of(r) for r in result.results if (r.name, r.gpu) == ("gemm", "GPU-1")] == [[]], (
        "what was done counts"
    )
    assert all(gone(pid) for pid in result.worker_pids)


def test_nothing_is_started_when_the_time_is_over_before_it(fake: Fake) -> None:
    """Discovery and samplers may take all of it: nvmlInit hung."""
    made = limited(plan("state", "gemm"), run_s=10.0, closing_s=1.0)
    result = fake("fine", made, started_s=time.monotonic() - 9.5)
    assert [reasons_of(r) for r in result.results] == [[("OUT_OF_TIME", Verdict.INCONCLUSIVE)]] * 2
    assert result.worker_pids == ()


def test_the_opinion_at_the_end_has_a_time_of_its_own(fake: Fake) -> None:
    made = limited(plan("gemm", "dcgm"), run_s=10.0, closing_s=1.0)
    result = fake("fine", made, started_s=time.monotonic() - 9.5)
    assert {r.name: reasons_of(r) for r in result.results} == {
        "gemm": [("OUT_OF_TIME", Verdict.INCONCLUSIVE)], "dcgm": [],
    }  # fmt: skip


@pytest.mark.slow
def test_waiting_for_the_sites_grant_is_no_time_of_the_run(fake: Fake) -> None:
    made = limited(plan("power", deadline_s=60.0), run_s=2.0, closing_s=0.5)
    granted = replace(made, options={"wave_wait_s": 3600.0})
    late = {"started_s": time.monotonic() - 1.0}
    assert reasons_of(fake("says it waited", granted, **late).results[0]) == []
    assert reasons_of(fake("says it waited", made, **late).results[0]) == [("OUT_OF_TIME", Verdict.INCONCLUSIVE)]
