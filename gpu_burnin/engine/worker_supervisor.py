"""The way of one GPU (or of the node) through a run: its checks in order, and what becomes of their worker."""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_burnin.checks import SELFTESTED
from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.execution import Run
from gpu_burnin.engine.messages import Failed, Message, Progress, ProtocolError, Ready, Selftests, Share, parse
from gpu_burnin.engine.plan import CheckPlan, share
from gpu_burnin.engine.step import Early, Failure, Step, death, failed, gave_up, overran, short_of
from gpu_burnin.engine.worker_process import WorkerProcess
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.host_limits import scarce_of, shown_by_end, shown_by_message
from gpu_burnin.types import JSON, CheckResult, Reason, SelftestResult, Verdict


class WorkerSupervisor:
    """The steps of one GPU (or of the node) and the worker that does them."""

    def __init__(self, run: Run, gpu: str | None, checks: Sequence[CheckPlan]) -> None:
        self.run, self.gpu = run, gpu
        self.results: list[CheckResult] = []
        plan = run.plan
        tested = [check for check in checks if plan.selftest and check.name in SELFTESTED and gpu is not None]
        # All self-tests first: what they cost is known when the checks share the time that is left.
        self._steps = deque(Step("selftest", check) for check in tested)
        self._steps += [] if plan.checks_off else [Step("check", check) for check in checks]
        self._step = Step("close")
        self._worker: WorkerProcess | None = None
        self._started = self.run.clock()
        self._ending: str | None = None  # "term" or "kill" while the ladder ends the worker
        self._early = Early()
        self._start_deaths = 0
        self._oom_kills: Mapping[str, int] = {}  # of the kernel, when the worker started
        self._offer: JSON = None
        self._left_s = 0.0  # of the step's time, while its clock stands still in an exchange
        self.offering = False  # the worker waits for what the others have to exchange
        self.waiting = False  # the next check is for all GPUs together: the executor releases it
        self._limits = plan.deadlines
        # What follows the others (DCGM) has a time of its own, on top of the run's.
        self._timed = not any(check.scope is Scope.AFTER for check in checks)
        self._until = 0.0  # of the step, or of a rung of the ladder that ends its worker
        self._cut = False  # the worker is ended since the run's time is over, and not its step's

    # --- driven by the loop ---

    @property
    def until(self) -> float:
        """Monotonic time at which overdue() is due."""
        return self._until if self._ending is not None else min(self._until, self._ends_s)

    @property
    def _ends_s(self) -> float:
        return self.run.ends_s if self._timed else math.inf

    @property
    def done(self) -> bool:
        """No worker and nothing left for one."""
        return self._worker is None and not self._steps

    @property
    def fd(self) -> int | None:
        """The worker's output, None while there is no worker."""
        return None if self._worker is None else self._worker.fd

    @property
    def busy(self) -> bool:
        """A worker is at something, and may be for a while."""
        return not self.done and not self.waiting

    @property
    def check(self) -> CheckPlan | None:
        """The check that the worker is at or waits for; None at anything else or while the worker is ended."""
        return self._step.check if self._worker and self._step.op == "check" and self._ending is None else None

    def start(self) -> None:
        """Start a worker; its first answer is that it is ready."""
        self._begin(Step("open"), self._limits.open_s)
        if self._started >= self._ends_s:
            self._out_of_time()
            return
        self._oom_kills = self.run.oom_kills()
        try:
            self._worker = WorkerProcess(self.run.plan, self.gpu, self.run.command, self.run.kernel_dir)
        except OSError as error:
            message, scarce = f"the worker could not be started: {error}", scarce_of(error)
            self._could_not(self._step, failed(Failed(message, scarce)))
            return
        self.run.worker_pids.append(self._worker.pid)
        self._emit("worker_started", pid=self._worker.pid)

    def readable(self) -> None:
        """Take messages; an end of the output is the end of the worker."""
        assert self._worker is not None
        try:
            messages, ended = self._worker.receive()
            for message in messages:
                if self._ending is None and self._worker is not None:
                    self._handle(parse(message, self._step.op, self._step.name, self.gpu))
        except ProtocolError as error:
            self._emit("worker_broke_protocol", message=str(error))
            self.run.killed_pids.append(self._worker.pid)
            self._worker.signal(signal.SIGKILL)
            ended = True
        if ended and self._worker is not None:
            self._gone()

    def overdue(self) -> None:
        """The deadline of the step, the run or a rung of the ladder has passed: SIGTERM, SIGKILL, leave behind."""
        assert self._worker is not None
        if self._ending is None:
            self._cut = self.run.clock() < self._until
            event = "out_of_time" if self._cut else "deadline_missed"
            self._emit(event, check=self._step.name, pid=self._worker.pid)
            self.waiting = self.offering = False
            self._ending, self._until = "term", self.run.clock() + self._limits.term_grace_s
            self.run.killed_pids.append(self._worker.pid)
            self._worker.signal(signal.SIGTERM)
        elif self._ending == "term":
            self._ending, self._until = "kill", self.run.clock() + self._limits.kill_grace_s
            self._emit("worker_killed", pid=self._worker.pid)
            self._worker.signal(signal.SIGKILL)
        else:
            self._emit("worker_wedged", pid=self._worker.pid)
            self._hung(wedged=True)

    # --- checks for all GPUs together ---

    def release(self, left_s: float) -> None:
        """Let the check begin that this worker waits for; `left_s` are seconds left of the run."""
        self.waiting = False
        self._ask(self._step, left_s)

    @property
    def offer(self) -> JSON:
        """What the worker gives to the others in the same check."""
        return self._offer

    def answer(self, offers: Mapping[str, JSON]) -> None:
        """Give the worker what all have offered; its clock runs on."""
        assert self._worker is not None
        self.offering, self._offer = False, None
        self._until = self.run.clock() + self._left_s
        self._worker.send({"op": "shared", "data": offers})

    # --- answers ---

    def _handle(self, message: Message) -> None:
        step = self._step
        if self.waiting or self.offering:
            raise ProtocolError("a message of a worker that has to wait")
        if isinstance(message, Progress):
            # Of the time for which a check has waited for somebody outside, its clock stood still.
            waited_s = float(message.data.get("waited_s", 0.0))
            self._until += waited_s
            self.run.wait_more(waited_s)
            self._emit("progress", **{**message.data, "check": step.name})
            return
        if isinstance(message, Share):
            now = self.run.clock()
            self._offer, self.offering = message.data, True
            self._left_s, self._until = self._until - now, math.inf
            return
        if isinstance(message, Failed):
            self._could_not(step, failed(message))
        elif isinstance(message, Ready):
            self.run.facts[self.gpu or "node"] = message.facts
        elif isinstance(message, Selftests):
            self._tested(message.results)
        else:
            self._finish(message.result)
        self._next()

    def _tested(self, results: Sequence[SelftestResult]) -> None:
        """Keep what a self-test saw; a real fault that it met is a fault of the check, which still runs."""
        name = self._step.name
        self.run.selftests += results
        for test in results:
            if test.real is not None:
                self._early.add(name, test.real)
        found = [test.real.code for test in results if test.real is not None]
        detected = sum(test.detected for test in results)
        self._emit("selftest_finished", check=name, injected=len(results), detected=detected, codes=found)

    def _next(self) -> None:
        """Ask for the next step, or let the worker end: it does so when its input does."""
        assert self._worker is not None
        if not self._steps:
            for name in self._early.checks():  # of self-tests alone, no check of which comes to a result
                self._finish(CheckResult(name, self.gpu, Verdict.INCONCLUSIVE, 0.0))
            self._begin(Step("close"), self._limits.term_grace_s)
            self._worker.hang_up()
            return
        step = self._steps.popleft()
        assert step.check is not None
        if step.op == "check" and step.check.scope is Scope.TOGETHER:
            self._begin(step, math.inf)
            self.waiting = True
            return
        self._ask(step, self.run.left_s())

    def _ask(self, step: Step, left_s: float) -> None:
        """Send a step to the worker, a check with its share of the time that is left."""
        assert self._worker is not None and step.check is not None
        if step.op == "selftest":
            budget_s, limit_s = 0.0, self._limits.selftest_s
        else:
            later = [other.check for other in self._steps if other.check is not None and other.op == "check"]
            budget_s = share(left_s, step.check, later)
            limit_s = self._limits.check_s(budget_s)
        self._begin(step, limit_s)
        pid = self._worker.pid
        self._emit(f"{step.op}_started", check=step.name, pid=pid, deadline_s=limit_s, budget_s=budget_s)
        self._worker.send({"op": step.op, "name": step.name, "attempt": step.attempt, "budget_s": budget_s})

    def _begin(self, step: Step, limit_s: float) -> None:
        self._step, self._ending = step, None
        self._started = self.run.clock()
        self._until = self._started + limit_s

    # --- ends that were not planned ---

    def _gone(self) -> None:
        """The worker's output has ended: it ended in order, the ladder ended it, or it died."""
        assert self._worker is not None
        if not self._worker.ended(1.0):
            self._worker.signal(signal.SIGKILL)
            if not self._worker.ended(self._limits.kill_grace_s):
                # It has closed its output and hangs in the driver while it exits.
                self._emit("worker_wedged", pid=self._worker.pid)
                self._hung(wedged=True)
                return
        if self._ending is not None:
            self._hung(wedged=False)
            return
        obituary = self._worker.obituary()
        self.drop_worker()
        if self._step.op != "close":
            self._emit("worker_died", check=self._step.name, **obituary)
            self._died(self._step, obituary)

    def _died(self, step: Step, obituary: Mapping[str, Any]) -> None:
        """Once is a riddle: try again and stay inconclusive. Twice at the same thing is a fault.

        What the host had too little of, where something shows it, is neither: it would be so again.
        """
        killed_by_us = obituary["pid"] in self.run.killed_pids
        met = shown_by_end(obituary, killed_by_us, self._oom_kills, self.run.oom_kills())
        if met is not None:
            message = met.text if not met.by_limit else death(f"during {step}", obituary)
            self._could_not(step, short_of(met, message))
        elif step.op == "open":
            self._start_deaths += 1
            if self._start_deaths > 1:
                self._give_up("WORKER_DIED", death("twice while it started", obituary), Verdict.FAIL)
            else:
                pending, text = self._steps[0].name, death("while it started", obituary)
                self._early.add(pending, self._reason("WORKER_DIED", pending, text, obituary))
        elif step.attempt == 0:
            text = death(f"during {step}", obituary)
            self._early.add(step.name, self._reason("WORKER_DIED", step.name, text, obituary))
            self._steps.appendleft(replace(step, attempt=1))
        else:
            text = death(f"twice during {step}", obituary)
            self._early.forget(step.name, "WORKER_DIED")
            self._over(step.name, self._reason("WORKER_DIED", step.name, text, obituary, Verdict.FAIL))

    def _could_not(self, step: Step, why: Failure) -> None:
        """A step that could not be done. A self-test that could not has seen nothing, and its check still runs, unless
        the GPU itself is the reason."""
        if step.op == "open":
            self._give_up(why.code, why.text, why.severity)
            return
        reason = self._reason(why.code, step.name, f"{step} could not run: {why.text}", severity=why.severity)
        if step.op == "check" or why.severity is Verdict.FAIL:
            self._over(step.name, reason)
            return
        self._blind(step.name, why.text)
        if why.code != "CHECK_ERROR":  # the host is to blame, not the program
            self._early.add(step.name, reason)

    def _hung(self, wedged: bool) -> None:
        """The deadline passed and the worker was ended, or could not be and stays behind."""
        assert self._worker is not None
        step, pid, last_lines = self._step, self._worker.pid, self._worker.obituary()["stderr_tail"]
        self.drop_worker()
        if step.op == "close":
            return
        if self._cut and not wedged:
            self._out_of_time()
            return
        name = step.name
        if step.op == "open" and self._steps:  # the check it stood before takes the blame
            name = self._steps[0].name
        text = overran(name, self.run.clock() - self._started, wedged=wedged)
        # CPython waits for ever for a thread that found no memory while it began.
        if not wedged and (met := shown_by_message(last_lines)):
            self._could_not(step, short_of(met, text))
            return
        reason = self._reason("WEDGED" if wedged else "HUNG", name, text, {"pid": pid, "step": step.op}, Verdict.FAIL)
        self._over(name, reason)
        if wedged or step.op == "open":
            self._steps.clear()  # a GPU that holds a process that cannot die is not touched again

    def _out_of_time(self) -> None:
        """Nothing is known against a GPU whose step had time left; that it came this late may have any cause."""
        if self._step.check is not None:
            self._steps.appendleft(self._step)
        text = gave_up(self.run.clock() - self.run.started_s, self._limits.run_s)
        self._give_up("OUT_OF_TIME", text, Verdict.INCONCLUSIVE)

    def _give_up(self, code: str, message: str, severity: Verdict) -> None:
        """No worker could be started: every check that is left gets the reason, and its self-test has seen nothing."""
        left = tuple(self._steps)
        for step in left:
            if step.op == "selftest" and severity is not Verdict.FAIL:
                self._blind(step.name, message)
        for name in dict.fromkeys(step.name for step in left):
            self._over(name, self._reason(code, name, message, severity=severity))

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
        self.waiting = self.offering = False

    def _finish(self, result: CheckResult) -> None:
        """Add a result, with what happened to earlier attempts at the same check and in its self-test."""
        result = replace(self._early.joined(result), started_s=self._started)
        self.results.append(result)
        codes = [reason.code for reason in result.reasons]
        verdict, seconds = result.verdict, result.seconds
        # A check of the node blames GPUs.
        gpus = sorted({reason.gpu for reason in result.reasons if reason.gpu and reason.severity is verdict})
        self._emit("check_finished", check=result.name, verdict=verdict, seconds=seconds, codes=codes, gpus=gpus)

    def _over(self, name: str, reason: Reason) -> None:
        """The check has ended, perhaps before it began: nothing more of it runs."""
        self._steps = deque(other for other in self._steps if other.name != name)
        self._finish(self._result(name, reason))

    def _result(self, name: str, reason: Reason) -> CheckResult:
        seconds = self.run.clock() - self._started
        return CheckResult(name, self.gpu, reason.severity, seconds, reasons=(reason,))

    def _reason(
        self,
        code: str,
        check: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        severity: Verdict = Verdict.INCONCLUSIVE,
    ) -> Reason:
        return make_reason(code, check, message, gpu=self.gpu, details=to_json(details or {}), severity=severity)

    def _blind(self, check: str, why: str) -> None:
        """A self-test that came to no end has detected nothing."""
        self.run.selftests.append(SelftestResult(f"all ({why})", check, self.gpu, False, False, 0.0, "nothing"))

    def _emit(self, event: str, **details: Any) -> None:
        self.run.emit({"event": event, "gpu": self.gpu, **to_json(details)})
