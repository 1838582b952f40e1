"""The supervisor: one worker process per GPU, deadlines, a way out of every hang. Touches neither CUDA nor NVML."""

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

from gpu_burnin.checks import Scope
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
) -> ExecutionResult:
    """Run a plan: the checks of the node first, then all GPUs at once, then what the node is asked when they are
    free again. Nothing is started on a GPU when the node's first checks say that a foreign process uses one.

    A crash, a hang or a check that cannot run gives a result that says so. A check that was not reached
    (Ctrl-C, a GPU whose worker cannot be killed, a busy GPU) gives none. `on_event` sees every event including
    "progress", the journal all others. The plan's time counts from `started_s` (CLOCK_MONOTONIC), now unless
    given; at the end of plan.deadlines.steps_s everything is given up that is not done. `command` replaces the worker's
    command line, `oom_kills` the kernel's count of kills for lack of memory (tests). `waiting` is entered around each
    wait, so that who takes the signals can raise KeyboardInterrupt there alone, where nothing is lost by it. In
    `kernel_dir` the workers share compiled kernels.
    """
    begun_s = time.monotonic() if started_s is None else started_s
    run = Run(plan, journal, on_event, oom_kills, command, begun_s, waiting, kernel_dir)
    gpu_checks = [check for check in plan.checks if check.per_gpu]
    node_lanes = [WorkerSupervisor(run, None, _scoped(plan, Scope.NODE))]
    last_lanes = [WorkerSupervisor(run, None, _scoped(plan, Scope.AFTER))]
    gpu_lanes = [WorkerSupervisor(run, gpu.uuid, gpu_checks) for gpu in plan.gpus]
    lanes = [*node_lanes, *gpu_lanes, *last_lanes]
    interrupted = busy = False
    try:
        started = {"event": "run_started", "plan_sha256": plan.digest(), "level": plan.level, "total_s": plan.total_s}
        run.emit({**started, "gives_up_s": plan.deadlines.run_s})
        _drive(run, node_lanes)
        busy = any(reason.code == "GPU_BUSY" for result in node_lanes[0].results for reason in result.reasons)
        if not busy:
            _drive(run, gpu_lanes)
            _drive(run, last_lanes)
    except KeyboardInterrupt:
        interrupted = True
        run.emit({"event": "interrupted"})
    finally:
        _stop(lanes)
    run.emit({"event": "run_finished", "interrupted": interrupted})
    return ExecutionResult(
        results=tuple(result for lane in lanes for result in lane.results),
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


def _drive(run: Run, lanes: Sequence[WorkerSupervisor]) -> None:
    """Serve all lanes until each is done."""
    while True:
        for lane in lanes:
            if not lane.done and lane.fd is None:
                lane.start()
        active = [lane for lane in lanes if not lane.done]
        if not active:
            return
        _release(run, active)
        _exchange(active)
        with selectors.DefaultSelector() as selector:
            for lane in active:
                if lane.fd is not None:
                    selector.register(lane.fd, selectors.EVENT_READ, lane)
            first = min(lane.until for lane in active)
            timeout = None if math.isinf(first) else max(0.0, first - time.monotonic())
            with run.waiting():
                ready = [key.data for key, _ in selector.select(timeout)]
        for lane in ready:
            lane.readable()
        now = time.monotonic()
        for lane in active:
            # An answer in time has begun another step with a time of its own.
            if lane.fd is not None and lane.until <= now:
                lane.overdue()


def _release(run: Run, active: Sequence[WorkerSupervisor]) -> None:
    """Once all lanes wait, begin the earliest check they wait for, on all of its GPUs."""
    if any(lane.busy for lane in active):
        return
    names = {lane.check.name for lane in active if lane.check is not None}
    check = next(check for check in run.plan.checks if check.name in names)
    waiting = [lane for lane in active if lane.check == check]
    left_s = run.left_s()
    for lane in waiting:
        lane.release(left_s)


def _exchange(active: Sequence[WorkerSupervisor]) -> None:
    """Once every worker that is in a check has an offer, give all offers to all of them."""
    members = [lane for lane in active if lane.check is not None and not lane.waiting]
    if not members or not all(lane.offering for lane in members):
        return
    offers = {lane.gpu or "": lane.offer for lane in members}
    for lane in members:
        lane.answer(offers)


def _stop(lanes: Sequence[WorkerSupervisor]) -> None:
    """End the workers that are left: SIGTERM, SIGKILL, leave behind. Another Ctrl-C goes straight to the next."""
    left = [lane for lane in lanes if lane.fd is not None]
    with contextlib.suppress(KeyboardInterrupt):
        left = _signal(left, signal.SIGTERM, lambda limits: limits.term_grace_s)
    with contextlib.suppress(KeyboardInterrupt):
        left = _signal(left, signal.SIGKILL, lambda limits: limits.kill_grace_s)
    for lane in left:
        if lane.fd is not None:
            lane.abandon()


def _signal(
    lanes: Sequence[WorkerSupervisor], number: signal.Signals, grace: Callable[[Deadlines], float]
) -> list[WorkerSupervisor]:
    """Signal all, then wait; returns the lanes whose worker is still there."""
    for lane in lanes:
        lane.stop(number)
    until = time.monotonic() + max((grace(lane.run.plan.deadlines) for lane in lanes), default=0.0)
    left = []
    for lane in lanes:
        with lane.run.waiting():
            if not lane.reap(max(0.0, until - time.monotonic())):
                left.append(lane)
    return left
