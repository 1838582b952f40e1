"""The supervisor: a worker process per GPU or MIG instance, deadlines, a way out of every hang. No CUDA, no NVML."""

from __future__ import annotations

import contextlib
import math
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.deadlines import Deadlines
from gpu_burnin.engine.execution import EventSink, OnEvent, OomKills, Run, Waiting
from gpu_burnin.engine.plan import CheckPlan, Plan
from gpu_burnin.engine.worker_supervisor import WorkerSupervisor
from gpu_burnin.system.host_limits import oom_kills
from gpu_burnin.types import CheckResult, SelftestResult

__all__ = ["EventSink", "ExecutionResult", "OnEvent", "execute"]


@dataclass(frozen=True)
class ExecutionResult:
    """Everything that came out of a run. `killed_pids` are those of `worker_pids` that were ended by force.

    `busy`: a foreign process uses a GPU, so nothing was started on any.
    """

    results: tuple[CheckResult, ...]
    selftests: tuple[SelftestResult, ...]
    events: tuple[Mapping[str, Any], ...]
    interrupted: bool = False
    busy: bool = False
    worker_pids: tuple[int, ...] = ()
    killed_pids: tuple[int, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def execute(
    plan: Plan,
    journal: EventSink | None = None,
    on_event: OnEvent | None = None,
    *,
    oom_kills: OomKills = oom_kills,
    command: Sequence[str] | None = None,
    started_s: float | None = None,
    waiting: Waiting = contextlib.nullcontext,
    kernel_dir: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ExecutionResult:
    """Run a plan: the checks of the node first, then all GPUs at once, then what the node is asked when they are
    free again. Nothing is started on a GPU when the node's first checks say that a foreign process uses one.

    A crash, a hang or a check that cannot run gives a result that says so. A check that was not reached
    (Ctrl-C, a GPU whose worker cannot be killed, a busy GPU) gives none. `on_event` sees every event including
    "progress", the journal all others. The plan's time counts from `started_s` (CLOCK_MONOTONIC), now unless
    given; at the end of plan.deadlines.steps_s everything is given up that is not done. `waiting` is entered around
    each wait, so that who takes the signals can raise KeyboardInterrupt there alone, where nothing is lost by it. In
    `kernel_dir` the workers share compiled kernels. Tests replace the worker's command line (`command`), the kernel's
    count of kills for lack of memory (`oom_kills`) and the clock of all deadlines.
    """
    begun_s = clock() if started_s is None else started_s
    run = Run(plan, journal, on_event, oom_kills, command, begun_s, waiting, kernel_dir, clock)
    gpu_checks = [check for check in plan.checks if check.per_gpu]
    node_supervisors = [WorkerSupervisor(run, None, _scoped(plan, Scope.NODE))]
    last_supervisors = [WorkerSupervisor(run, None, _scoped(plan, Scope.AFTER))]
    gpu_supervisors = [WorkerSupervisor(run, unit.uuid, gpu_checks) for unit in plan.units]
    supervisors = [*node_supervisors, *gpu_supervisors, *last_supervisors]
    interrupted = busy = False
    try:
        started = {"event": "run_started", "plan_sha256": plan.digest(), "level": plan.level}
        # Self-tests alone take the time that they take, and so does the round that a CPU makes: it covers no GPU.
        timed = not plan.checks_off and plan.backend != "cpu"
        times = {"total_s": plan.total_s if timed else None, "spent_s": plan.total_s - run.left_s()}
        run.emit({**started, **times, "gives_up_s": plan.deadlines.run_s})
        _drive(run, node_supervisors)
        busy = any(reason.code == "GPU_BUSY" for result in node_supervisors[0].results for reason in result.reasons)
        if not busy:
            _drive(run, gpu_supervisors)
            _drive(run, last_supervisors)
    except KeyboardInterrupt:
        interrupted = True
        run.emit({"event": "interrupted"})
    finally:
        _stop(supervisors)
    run.emit({"event": "run_finished", "interrupted": interrupted})
    return ExecutionResult(
        results=tuple(result for supervisor in supervisors for result in supervisor.results),
        selftests=tuple(run.selftests),
        events=tuple(run.events),
        interrupted=interrupted,
        busy=busy,
        worker_pids=tuple(run.worker_pids),
        killed_pids=tuple(run.killed_pids),
        facts=run.facts,
    )


def _scoped(plan: Plan, scope: Scope) -> list[CheckPlan]:
    return [check for check in plan.checks if check.scope is scope and not plan.checks_off]


def _drive(run: Run, supervisors: Sequence[WorkerSupervisor]) -> None:
    """Serve all supervisors until each is done."""
    while True:
        for supervisor in supervisors:
            if not supervisor.done and supervisor.fd is None:
                supervisor.start()
        active = [supervisor for supervisor in supervisors if not supervisor.done]
        if not active:
            return
        _release(run, active)
        _exchange(active)
        with selectors.DefaultSelector() as selector:
            for supervisor in active:
                if supervisor.fd is not None:
                    selector.register(supervisor.fd, selectors.EVENT_READ, supervisor)
            first = min(supervisor.until for supervisor in active)
            timeout = None if math.isinf(first) else max(0.0, first - run.clock())
            with run.waiting():
                ready = [key.data for key, _ in selector.select(timeout)]
        for supervisor in ready:
            supervisor.readable()
        now = run.clock()
        for supervisor in active:
            # An answer in time has begun another step with a time of its own.
            if supervisor.fd is not None and supervisor.until <= now:
                supervisor.overdue()


def _release(run: Run, active: Sequence[WorkerSupervisor]) -> None:
    """Once all supervisors wait, begin the earliest check they wait for, on all of its GPUs."""
    if any(supervisor.busy for supervisor in active):
        return
    names = {supervisor.check.name for supervisor in active if supervisor.check is not None}
    check = next(check for check in run.plan.checks if check.name in names)
    waiting = [supervisor for supervisor in active if supervisor.check == check]
    left_s = run.left_s()
    for supervisor in waiting:
        supervisor.release(left_s)


def _exchange(active: Sequence[WorkerSupervisor]) -> None:
    """Once every worker that is in a check has an offer, give all offers to all of them."""
    members = [supervisor for supervisor in active if supervisor.check is not None and not supervisor.waiting]
    if not members or not all(supervisor.offering for supervisor in members):
        return
    offers = {supervisor.gpu or "": supervisor.offer for supervisor in members}
    for supervisor in members:
        supervisor.answer(offers)


def _stop(supervisors: Sequence[WorkerSupervisor]) -> None:
    """End the workers that are left: SIGTERM, SIGKILL, leave behind. Another Ctrl-C goes straight to the next."""
    left = [supervisor for supervisor in supervisors if supervisor.fd is not None]
    with contextlib.suppress(KeyboardInterrupt):
        left = _signal(left, signal.SIGTERM, lambda limits: limits.term_grace_s)
    with contextlib.suppress(KeyboardInterrupt):
        left = _signal(left, signal.SIGKILL, lambda limits: limits.kill_grace_s)
    for supervisor in left:
        if supervisor.fd is not None:
            supervisor.abandon()


def _signal(
    supervisors: Sequence[WorkerSupervisor], number: signal.Signals, grace: Callable[[Deadlines], float]
) -> list[WorkerSupervisor]:
    """Signal all, then wait; returns the supervisors whose worker is still there."""
    for supervisor in supervisors:
        supervisor.stop(number)
    if not supervisors:
        return []
    run, left = supervisors[0].run, []
    until = run.clock() + grace(run.plan.deadlines)
    for supervisor in supervisors:
        with run.waiting():
            while not (gone := supervisor.reap(max(0.0, until - run.clock()))) and run.clock() < until:
                pass
        if not gone:
            left.append(supervisor)
    return left
