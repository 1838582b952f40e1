"""What the tests of the executor share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpu_burnin.engine.executor import ExecutionResult, execute
from gpu_burnin.engine.plan import Plan
from gpu_burnin.types import CheckResult, Verdict
from tests.support.clocks import IdleClock

LIMITS = {"open_s": 5.0, "term_grace_s": 0.3, "kill_grace_s": 2.0}
# Runs a plan with fake_worker.py in a mode: fake(mode, plan, deadlines by name, **settings of execute).
Fake = Callable[..., ExecutionResult]


def run_plan(made: Plan, **settings: Any) -> ExecutionResult:
    """execute(), whose deadlines pass only while all have nothing to do."""
    with IdleClock() as clock:
        return execute(made, **{"clock": clock, **settings})


def reasons_of(result: CheckResult) -> list[tuple[str, Verdict]]:
    """Code and severity of each reason."""
    return [(r.code, r.severity) for r in result.reasons]


def events(result: ExecutionResult) -> list[str]:
    """Kinds of events, in their order."""
    return [str(e["event"]) for e in result.events]


def gone(pid: int) -> bool:
    """Whether there is no such process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
