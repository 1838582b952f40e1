"""Executor: real workers that crash, hang and babble under the real supervisor; a host that died, a full disk, Ctrl-C.

What gpu-burn makes of a hang is its rule in reference_tools/detection_rules.py (no report, no error: OK); a process
that dies it shows as DIED! (listenClients in gpu_burn-drv.cpp, 0831a45). DCGM has hang detection since 4.x.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.engine.executor import ExecutionResult
from gpu_burnin.engine.plan import Plan
from tests.campaign.conftest import Record
from tests.campaign.faults import proxy_worker
from tests.campaign.faults.executor import EXECUTOR_FAULTS, ExecutorFault
from tests.campaign.model import Expect, case_random, case_seed, demand, row
from tests.campaign.node import made_up_gpus, observe, plan_of, verdict
from tests.support.executor_helpers import run_plan

SEEDS = 2
PROXY = Path(proxy_worker.__file__)
# How long a hang may last. Real workers do these small checks in a few hundredths of a second once they run.
_SLACK_S, _OPEN_S = 2.0, 20.0


def _plan(gpus: int, seed: int) -> Plan:
    made = plan_of(made_up_gpus(gpus), "hbm", seed=seed)
    checks = tuple(replace(check, least_s=0.0) for check in made.checks)
    limits = replace(made.deadlines, slack_s=_SLACK_S, selftest_s=_SLACK_S)
    return replace(made, checks=checks, total_s=0.0, deadlines=limits)


def _execute(fault: ExecutorFault, plan: Plan, faulty: int, state: Path) -> ExecutionResult:
    kills = iter(range(0, 1000, fault.kills) if fault.kills else [])
    limits = replace(
        plan.deadlines,
        open_s=2.0 if fault.mode == "hangs at start" else _OPEN_S,
        term_grace_s=0.3,
        kill_grace_s=0.3 if fault.deaf else 5.0,
    )
    command = [sys.executable, "-S", str(PROXY), fault.mode, plan.gpus[faulty].uuid, str(state)]
    return run_plan(replace(plan, deadlines=limits), oom_kills=lambda: {"": next(kills, 0)}, command=command)


@pytest.mark.parametrize("index", range(SEEDS))
@pytest.mark.parametrize("name", EXECUTOR_FAULTS)
def test_executor_fault(name: str, index: int, tmp_path: Path, record: Record, request: pytest.FixtureRequest) -> None:
    fault, seed = EXECUTOR_FAULTS[name], case_seed("executor", name, index)
    if fault.deaf:
        request.getfixturevalue("unkillable")
    source = case_random("executor", name, index)
    gpus = source.randint(1, 2) if index else 2
    faulty = source.randrange(gpus)
    plan = _plan(gpus, seed)
    done = _execute(fault, plan, faulty, tmp_path / "state")
    if not fault.deaf:
        assert [pid for pid in done.worker_pids if Path(f"/proc/{pid}").exists()] == [], "a worker was left behind"
    judged = verdict(observe(plan, done.results, done.selftests, killed_pids=frozenset(done.killed_pids)))
    tools = {"gpu-burn": fault.gpu_burn, "dcgm": fault.dcgm}
    record(row("executor", name, seed, judged, variant=f"{gpus} GPUs", tools=tools))
    expect = Expect(frozenset({fault.code}), fault.verdict, frozenset({faulty}))
    demand(expect, judged, plan.gpus, f"seed {seed:#x}, faulty GPU {faulty} of {gpus}, mode {fault.mode!r}")
