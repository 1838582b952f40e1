"""The power check in worker processes under the supervisor: waiting for a grant, deadlines, injected faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks.power import grant_request as power_grant
from gpu_burnin.checks.power.grant_request import State
from gpu_burnin.engine.executor import ExecutionResult
from gpu_burnin.engine.plan import make_plan
from gpu_burnin.judge.coverage import RULE_OF_THREE, missed_fault_rate, verified_s
from gpu_burnin.types import Verdict
from tests.support import coverages
from tests.support.engine_helpers import SHAPES, gpu, limited
from tests.support.executor_helpers import LIMITS, reasons_of, run_plan

# Of the two whole seconds that each waits at least.
_WAITED_S = 1.5
_WAITING = "waiting for the grant of power waves"


def run(
    directory: Path,
    slack_s: float = 30.0,
    wait_s: float = 20.0,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    **settings: Any,
) -> ExecutionResult:
    """Two made-up GPUs, level standard, self-tests off."""
    options = {"power_waves": "granted", "wave_dir": str(directory), "wave_wait_s": wait_s}
    made = make_plan(
        "standard", backend="cpu", gpus=[gpu(0), gpu(1)], seed=1, checks=("power",), shapes=SHAPES,
        options=options, selftest=False, **settings,
    )  # fmt: skip
    checks = tuple(replace(check, weight=0.0, least_s=0.0) for check in made.checks)
    return run_plan(limited(replace(made, checks=checks), slack_s=slack_s, **LIMITS), on_event=on_event)


def late_grant(directory: Path) -> Callable[[Mapping[str, Any]], None]:
    """A controller that grants after the fourth second: the worker which looks for the grant says after each that it
    has none yet, and begins the next one when all others have heard it. So from the second on, all wait."""
    seconds = itertools.count(1)

    def control(event: Mapping[str, Any]) -> None:
        if event.get("phase") == _WAITING and next(seconds) == 4:
            power_grant.grant(directory)

    return control


@pytest.mark.slow
def test_workers_wait_for_a_grant_and_make_their_waves(tmp_path: Path) -> None:
    found = run(tmp_path, on_event=late_grant(tmp_path))
    assert [(result.gpu, result.verdict) for result in found.results] == [
        ("GPU-0", Verdict.PASS),
        ("GPU-1", Verdict.PASS),
    ]
    for result in found.results:
        assert coverages.waves_made(result).run
        waited_s = coverages.power(result).waited_s
        assert isinstance(waited_s, float)
        assert _WAITED_S < waited_s < result.seconds
        assert 0 < verified_s(result) < result.seconds - waited_s, "waiting is no test"
        assert missed_fault_rate(result) == pytest.approx(RULE_OF_THREE / verified_s(result))
    assert power_grant.state(tmp_path).state is State.OVER


@pytest.mark.slow
def test_waiting_longer_than_a_check_may_take_is_no_hang(tmp_path: Path) -> None:
    slack_s, wait_s = 2.0, 5.0
    found = run(tmp_path, slack_s=slack_s, wait_s=wait_s)
    assert [reasons_of(result) for result in found.results] == [[], []]
    # The one that asks waits for all of it; the other may have come to the check later.
    assert max(result.seconds for result in found.results) > wait_s
    assert min(result.seconds for result in found.results) > slack_s


@pytest.mark.slow
def test_a_fault_of_one_gpu_is_its_own(tmp_path: Path) -> None:
    found = run(tmp_path, wait_s=0.2, inject=["power:wrong_edge:gpu=1"])
    by_gpu = {result.gpu: result for result in found.results}
    assert reasons_of(by_gpu["GPU-0"]) == []
    assert reasons_of(by_gpu["GPU-1"]) == [("POWER_MISMATCH", Verdict.FAIL)]
    for result in found.results:
        assert coverages.power(result).waves.why == "no grant for power waves came within 0.2 s"
