"""The supervisor: one worker process per GPU, deadlines, a way out of every hang. Touches neither CUDA nor NVML."""

from __future__ import annotations

import contextlib
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_burnin.lane import EventSink, Lane, Limits, OnEvent, Run
from gpu_burnin.plan import Plan
from gpu_burnin.types import CheckResult, SelftestResult

__all__ = ["EventSink", "ExecutionResult", "Limits", "OnEvent", "execute"]


@dataclass(frozen=True)
class ExecutionResult:
    """Everything that came out of a run. `killed_pids` are those of `worker_pids` that were ended by force."""

    results: tuple[CheckResult, ...]
    selftests: tuple[SelftestResult, ...]
    events: tuple[Mapping[str, Any], ...]
    interrupted: bool = False
    worker_pids: tuple[int, ...] = ()
    killed_pids: tuple[int, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def execute(
    plan: Plan,
    journal: EventSink | None = None,
    on_event: OnEvent | None = None,
    *,
    limits: Limits | None = None,
    command: Sequence[str] | None = None,
) -> ExecutionResult:
    """Run a plan: the checks of the node first, then all GPUs at once.

    A crash, a hang or a check that cannot run gives a result that says so. A check that was not reached
    (Ctrl-C, a GPU whose worker cannot be killed) gives none. `on_event` sees every event including
    "progress", the journal all others. `command` replaces the worker's command line (tests).
    """
    run = Run(plan, journal, on_event, limits or Limits(), command)
    run.emit({"event": "run_started", "plan_sha256": plan.digest(), "level": plan.level})
    node_checks = [check for check in plan.checks if not check.per_gpu]
    gpu_checks = [check for check in plan.checks if check.per_gpu]
    node_lanes = [Lane(run, None, node_checks)]
    gpu_lanes = [Lane(run, gpu.uuid, gpu_checks) for gpu in plan.gpus]
    lanes = [*node_lanes, *gpu_lanes]
    interrupted = False
    try:
        _drive(node_lanes)
        _drive(gpu_lanes)
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
        worker_pids=tuple(run.worker_pids),
        killed_pids=tuple(run.killed_pids),
        facts=run.facts,
    )


def _drive(lanes: Sequence[Lane]) -> None:
    """Serve all lanes until each is done."""
    while True:
        for lane in lanes:
            if not lane.done and lane.fd is None:
                lane.start()
        active = [lane for lane in lanes if not lane.done]
        if not active:
            return
        with selectors.DefaultSelector() as selector:
            for lane in active:
                if lane.fd is not None:
                    selector.register(lane.fd, selectors.EVENT_READ, lane)
            first = min(lane.until for lane in active)
            ready = [key.data for key, _ in selector.select(max(0.0, first - time.monotonic()))]
        for lane in ready:
            lane.readable()
        now = time.monotonic()
        for lane in active:
            if lane.fd is not None and lane.until <= now and lane not in ready:
                lane.overdue()


def _stop(lanes: Sequence[Lane]) -> None:
    """End the workers that are left: SIGTERM, SIGKILL, leave behind. A second Ctrl-C goes straight to SIGKILL."""
    left = [lane for lane in lanes if lane.fd is not None]
    with contextlib.suppress(KeyboardInterrupt):
        left = _signal(left, signal.SIGTERM, lambda limits: limits.term_grace_s)
    for lane in _signal(left, signal.SIGKILL, lambda limits: limits.kill_grace_s):
        lane.abandon()


def _signal(lanes: Sequence[Lane], number: signal.Signals, grace: Callable[[Limits], float]) -> list[Lane]:
    """Signal all, then wait; returns the lanes whose worker is still there."""
    for lane in lanes:
        lane.stop(number)
    until = time.monotonic() + max((grace(lane.run.limits) for lane in lanes), default=0.0)
    return [lane for lane in lanes if not lane.reap(max(0.0, until - time.monotonic()))]
