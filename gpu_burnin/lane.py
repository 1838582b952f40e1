"""The way of one GPU (or of the node) through a run: its checks in order, and what becomes of their worker."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.plan import CheckPlan, Plan
from gpu_burnin.types import CheckResult, Reason, SelftestResult, Verdict, verdict_of
from gpu_burnin.wire import result_from_json, selftest_from_json, to_json
from gpu_burnin.worker_process import ProtocolError, WorkerProcess

# Checks whose detectors the self-test can blind-test on the device.
_SELFTESTED = ("gemm", "hbm")
OnEvent = Callable[[Mapping[str, Any]], None]


class EventSink(Protocol):
    """Where events are kept; gpu_burnin.journal.Journal is one."""

    def write(self, event: Mapping[str, Any]) -> None:
        """Keep one event."""


@dataclass(frozen=True)
class Limits:
    """Times in seconds: to start a worker, between SIGTERM and SIGKILL, between SIGKILL and giving up."""

    open_s: float = 180.0
    term_grace_s: float = 5.0
    kill_grace_s: float = 15.0


class Run:
    """What the lanes of one run share."""

    def __init__(
        self,
        plan: Plan,
        journal: EventSink | None,
        on_event: OnEvent | None,
        limits: Limits,
        command: Sequence[str] | None,
    ) -> None:
        self.plan, self.limits, self.command = plan, limits, command
        self._journal, self._on_event = journal, on_event
        self.events: list[Mapping[str, Any]] = []
        self.selftests: list[SelftestResult] = []
        self.worker_pids: list[int] = []
        self.killed_pids: list[int] = []
        self.facts: dict[str, Mapping[str, Any]] = {}

    def emit(self, event: Mapping[str, Any]) -> None:
        if event["event"] != "progress":
            self.events.append(event)
            if self._journal is not None:
                self._journal.write(event)
        if self._on_event is not None:
            self._on_event(event)


@dataclass
class _Step:
    """One thing a worker does: "open" the GPU, a "selftest", a "check", "close"."""

    op: str
    check: CheckPlan | None = None
    attempt: int = 0

    @property
    def name(self) -> str:
        """Name of the check, or of the step where it belongs to none."""
        return self.op if self.check is None else self.check.name


class Lane:
    """The steps of one GPU (or of the node) and the worker that does them."""

    def __init__(self, run: Run, gpu: str | None, checks: Sequence[CheckPlan]) -> None:
        self.run, self.gpu = run, gpu
        self.results: list[CheckResult] = []
        self._steps: deque[_Step] = deque()
        for check in checks:
            if run.plan.selftest and check.name in _SELFTESTED and gpu is not None:
                self._steps.append(_Step("selftest", check))
            self._steps.append(_Step("check", check))
        self._step = _Step("close")
        self._worker: WorkerProcess | None = None
        self._started = time.monotonic()
        self._ending: str | None = None  # "term" or "kill" while the ladder ends the worker
        self._early: dict[str, list[Reason]] = {}  # reasons from first attempts, by check
        self._start_deaths = 0
        self.until = 0.0  # monotonic time at which overdue() is due

    # --- driven by the loop ---

    @property
    def done(self) -> bool:
        """No worker and nothing left for one."""
        return self._worker is None and not self._steps

    @property
    def fd(self) -> int | None:
        """The worker's output, None while there is no worker."""
        return None if self._worker is None else self._worker.fd

    def start(self) -> None:
        """Start a worker; its first answer is that it is ready."""
        self._begin(_Step("open"), self.run.limits.open_s)
        try:
            self._worker = WorkerProcess(self.run.plan, self.gpu, self.run.command)
        except OSError as error:
            self._give_up("CHECK_ERROR", f"the worker could not be started: {error}", Verdict.INCONCLUSIVE)
            return
        self.run.worker_pids.append(self._worker.pid)
        self._emit("worker_started", pid=self._worker.pid)

    def readable(self) -> None:
        """Take messages; an end of the output is the end of the worker."""
        assert self._worker is not None
        try:
            messages, ended = self._worker.receive()
        except ProtocolError as error:
            self._emit("worker_broke_protocol", message=str(error))
            self._worker.signal(signal.SIGKILL)
            messages, ended = [], True
        for message in messages:
            if self._ending is None and self._worker is not None:
                self._handle(message)
        if ended and self._worker is not None:
            self._gone()

    def overdue(self) -> None:
        """The deadline of the step, or of a rung of the ladder, has passed: SIGTERM, SIGKILL, leave behind."""
        assert self._worker is not None
        limits = self.run.limits
        if self._ending is None:
            self._emit("deadline_missed", check=self._step.name, pid=self._worker.pid)
            self._ending, self.until = "term", time.monotonic() + limits.term_grace_s
            self.run.killed_pids.append(self._worker.pid)
            self._worker.signal(signal.SIGTERM)
        elif self._ending == "term":
            self._ending, self.until = "kill", time.monotonic() + limits.kill_grace_s
            self._emit("worker_killed", pid=self._worker.pid)
            self._worker.signal(signal.SIGKILL)
        else:
            self._emit("worker_wedged", pid=self._worker.pid)
            self._hung(wedged=True)

    # --- answers ---

    def _handle(self, message: Mapping[str, Any]) -> None:
        kind, step = message["type"], self._step
        if kind == "progress":
            self._emit("progress", check=step.name, **message["data"])
            return
        if kind == "ready":
            self.run.facts[self.gpu or "node"] = message["facts"]
        elif kind == "selftest":
            found = [selftest_from_json(r) for r in message["results"]]
            self.run.selftests += found
            detected = sum(r.detected for r in found)
            self._emit("selftest_finished", check=step.name, injected=len(found), detected=detected)
        elif kind == "result":
            self._finish(result_from_json(message["result"]))
        elif kind == "failed" and step.op == "open":
            self._give_up("CHECK_ERROR", str(message["message"]), Verdict.INCONCLUSIVE)
            return
        elif kind == "failed" and step.op == "selftest":
            self._blind(step.name, str(message["message"]))
        elif kind == "failed":
            text = f"{step.name} could not run: {message['message']}"
            self._finish(self._result(step.name, self._reason("CHECK_ERROR", step.name, text)))
        self._next()

    def _next(self) -> None:
        """Ask for the next step, or let the worker end: it does so when its input does."""
        assert self._worker is not None
        if not self._steps:
            self._begin(_Step("close"), self.run.limits.term_grace_s)
            self._worker.hang_up()
            return
        step = self._steps.popleft()
        assert step.check is not None
        limit_s = self.run.plan.selftest_deadline_s if step.op == "selftest" else step.check.deadline_s
        self._begin(step, limit_s)
        self._emit(f"{step.op}_started", check=step.name, pid=self._worker.pid, deadline_s=limit_s)
        self._worker.send({"op": step.op, "name": step.name, "attempt": step.attempt})

    def _begin(self, step: _Step, limit_s: float) -> None:
        self._step, self._ending = step, None
        self._started = time.monotonic()
        self.until = self._started + limit_s

    # --- ends that were not planned ---

    def _gone(self) -> None:
        """The worker's output has ended: it ended in order, the ladder ended it, or it died."""
        assert self._worker is not None
        if not self._worker.ended(1.0):
            self._worker.signal(signal.SIGKILL)
            self._worker.ended(self.run.limits.kill_grace_s)
        if self._ending is not None:
            self._hung(wedged=False)
            return
        obituary = self._worker.obituary()
        self.drop_worker()
        if self._step.op != "close":
            self._emit("worker_died", check=self._step.name, **obituary)
            self._died(self._step, obituary)

    def _died(self, step: _Step, obituary: Mapping[str, Any]) -> None:
        """Once is a riddle: try again and stay inconclusive. Twice at the same thing is a fault."""
        if step.op == "selftest":
            self._blind(step.name, _death("in the self-test", obituary))
        elif step.op == "open":
            self._start_deaths += 1
            if self._start_deaths > 1:
                self._give_up("WORKER_DIED", _death("twice while it started", obituary), Verdict.FAIL)
            else:
                pending = self._steps[0].name
                self._note(
                    pending, self._reason("WORKER_DIED", pending, _death("while it started", obituary), obituary)
                )
        elif step.attempt == 0:
            text = _death(f"during {step.name}", obituary)
            self._note(step.name, self._reason("WORKER_DIED", step.name, text, obituary))
            self._steps.appendleft(replace(step, attempt=1))
        else:
            text = _death(f"twice during {step.name}", obituary)
            self._early.pop(step.name, None)
            reason = self._reason("WORKER_DIED", step.name, text, obituary, Verdict.FAIL)
            self._finish(self._result(step.name, reason))

    def _hung(self, wedged: bool) -> None:
        """The deadline passed and the worker was ended, or could not be and stays behind."""
        assert self._worker is not None
        step, pid = self._step, self._worker.pid
        self.drop_worker()
        if step.op == "close":
            return
        name = step.name
        if step.op != "check" and self._steps:  # the check it stood before takes the blame
            name = self._steps.popleft().name
        end = "and its worker could not be killed: it is left behind" if wedged else "and its worker was killed"
        text = f"{name} did not come to an end in {time.monotonic() - self._started:.0f} s {end}"
        reason = self._reason("WEDGED" if wedged else "HUNG", name, text, {"pid": pid, "step": step.op}, Verdict.FAIL)
        self._finish(self._result(name, reason))
        if wedged or step.op == "open":
            self._steps.clear()  # a GPU that holds a process that cannot die is not touched again

    def _give_up(self, code: str, message: str, severity: Verdict) -> None:
        """No worker can be had: every check that is left gets the reason."""
        self.drop_worker()
        left = [step.name for step in self._steps if step.op == "check"]
        self._steps.clear()
        for name in left:
            self._finish(self._result(name, self._reason(code, name, message, severity=severity)))

    # --- after Ctrl-C ---

    def stop(self, number: signal.Signals) -> None:
        """Signal the worker, if there is one."""
        self._steps.clear()
        if self._worker is not None:
            if self._worker.pid not in self.run.killed_pids:
                self.run.killed_pids.append(self._worker.pid)
            self._worker.signal(number)

    def reap(self, timeout_s: float) -> bool:
        """Whether the worker is gone, waiting up to timeout_s for it."""
        if self._worker is None:
            return True
        if not self._worker.ended(timeout_s):
            return False
        self.drop_worker()
        return True

    def abandon(self) -> None:
        """Leave a worker behind that cannot be killed."""
        assert self._worker is not None
        self._emit("worker_wedged", pid=self._worker.pid)
        self.drop_worker()

    # --- small things ---

    def drop_worker(self) -> None:
        """Forget the worker and close its pipes."""
        if self._worker is not None:
            self._worker.close()
        self._worker, self._ending = None, None

    def _note(self, check: str, reason: Reason) -> None:
        self._early.setdefault(check, []).append(reason)

    def _finish(self, result: CheckResult) -> None:
        """Add a result, with what happened to earlier attempts at the same check."""
        early = self._early.pop(result.name, [])
        if early:
            reasons = (*early, *result.reasons)
            result = replace(result, reasons=reasons, verdict=verdict_of(reasons))
        self.results.append(result)
        codes = [reason.code for reason in result.reasons]
        verdict, seconds = result.verdict, result.seconds
        self._emit("check_finished", check=result.name, verdict=verdict, seconds=seconds, codes=codes)

    def _result(self, name: str, reason: Reason) -> CheckResult:
        seconds = time.monotonic() - self._started
        return CheckResult(name, self.gpu, reason.severity, seconds, reasons=(reason,))

    def _reason(
        self,
        code: str,
        check: str,
        message: str,
        evidence: Mapping[str, Any] | None = None,
        severity: Verdict = Verdict.INCONCLUSIVE,
    ) -> Reason:
        return make_reason(code, check, message, gpu=self.gpu, evidence=to_json(evidence or {}), severity=severity)

    def _blind(self, check: str, why: str) -> None:
        """A self-test that came to no end has detected nothing."""
        self.run.selftests.append(SelftestResult(f"all ({why})", check, self.gpu, False, False, 0.0, "nothing"))

    def _emit(self, event: str, **details: Any) -> None:
        self.run.emit({"event": event, "gpu": self.gpu, **to_json(details)})


def _death(when: str, obituary: Mapping[str, Any]) -> str:
    status = obituary["exit_status"]
    how = f"by signal {-status}" if isinstance(status, int) and status < 0 else f"with exit status {status}"
    return f"the worker died {when} ({how})"
