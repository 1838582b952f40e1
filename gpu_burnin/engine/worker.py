"""The worker: one process for one GPU or MIG instance (or for the node), driven by JSON lines on standard input.

First line: the job, {"plan": ..., "gpu": UUID or null, "kernel_dir": path or null}. Then {"op": "check"|"selftest",
"name": ..., "attempt": n, "budget_s": s}. Answers on standard output: ready, progress, result, selftest, failed; and
share, which is answered by {"op": "shared", "data": {UUID: ...}}. Run by the executor only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpu_burnin.checks import REGISTRY, CheckContext
from gpu_burnin.engine.plan import Plan
from gpu_burnin.engine.wire import encode
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.children import die_with_parent
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.system.host_limits import scarce_of
from gpu_burnin.types import JSON, CheckResult

if TYPE_CHECKING:
    from gpu_burnin.device.port import Device

OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
_PROGRESS_EVERY_S = 0.2
_OOM_SCORE = 500  # of -1000 to 1000; raising it needs no privilege


class Progress:
    """Passes on what a check tells of its progress: at most a few a second, but a new error at once."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._last_s = -math.inf
        self._errors: JSON = 0

    def report(self, data: Mapping[str, JSON]) -> None:
        """Send, or leave out what comes too soon."""
        now, errors = self._clock(), data.get("errors", self._errors)
        soon = errors == self._errors and now - self._last_s < _PROGRESS_EVERY_S
        if soon and "waited_s" not in data:  # which the supervisor counts
            return
        self._last_s, self._errors = now, errors
        self._send({"type": "progress", "data": data})


class Worker:
    """State of one worker process: plan, GPU and, once a check of a GPU asks for it, the opened device."""

    def __init__(
        self,
        plan: Plan,
        gpu: str | None,
        send: Callable[[Mapping[str, Any]], None],
        receive: Callable[[], Mapping[str, Any] | None],
        kernel_dir: Path | None = None,
    ) -> None:
        self._kernel_dir = kernel_dir
        self._plan, self._send, self._receive = plan, send, receive
        self._gpu = next((unit for unit in plan.units if unit.uuid == gpu), None)
        self._device: Device | None = None
        self._waited_s = 0.0  # of the check under way, in exchanges

    def open(self) -> Mapping[str, JSON]:
        """Open the device for the GPU; the node's worker needs none. Raises DeviceError."""
        if self._gpu is None:
            return {}
        from gpu_burnin.device.choose import make_device
        from gpu_burnin.exact.port import products_on

        device = self._device = make_device(self._plan.backend, self._kernel_dir, _kernel_sources)
        device.open(self._gpu)
        with products_on(device) as products:
            return {**device.facts(), **products.facts()}

    def handle(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run one check or its self-test and return the answer."""
        check = REGISTRY[message["name"]]
        if message["op"] == "selftest":
            return {"type": "selftest", "results": to_json(check.selftest(self._context(0.0, ())))}
        inject = self._plan.injections(check.name, self._gpu)
        _worker_fault(inject, int(message["attempt"]))
        self._waited_s = 0.0
        result = check.run(self._context(float(message["budget_s"]), inject))
        return {"type": "result", "result": to_json(_with_waiting(result, self._waited_s))}

    def _context(self, budget_s: float, inject: tuple[str, ...]) -> CheckContext:
        return CheckContext(
            seed=self._plan.seed,
            level=self._plan.level,
            budget_s=budget_s,
            late_s=self._plan.deadlines.check_s(budget_s) - budget_s,
            gpus=self._plan.gpus if self._gpu is None else self._plan.units,
            gpu=self._gpu,
            device=self._device,
            shapes=self._plan.shapes,
            options=self._plan.options,
            inject=inject,
            selftest_full=self._plan.selftest_full,
            progress=Progress(self._send).report,
            exchange=self._exchange,
        )

    def _exchange(self, data: JSON) -> Mapping[str, JSON]:
        """Give `data` to the workers of the other GPUs in this check and wait for theirs."""
        began_s = time.monotonic()
        self._send({"type": "share", "data": data})
        answer = self._receive()
        self._waited_s += time.monotonic() - began_s
        if answer is None:
            raise GpuBurninError("the supervisor went away during an exchange between workers; start the run again")
        offers: Mapping[str, JSON] = answer["data"]
        return offers


def _kernel_sources() -> tuple[str, ...]:
    """The CUDA C of all checks, read only where a GPU is opened."""
    from gpu_burnin.checks.sources import kernel_sources

    return tuple(kernel_sources().values())


def _with_waiting(result: CheckResult, waited_s: float) -> CheckResult:
    """The result with the time for which its GPU waited for the others' turns: no test of it (coverage.active_s)."""
    if not waited_s:
        return result
    # What the check itself knows of, such as waiting for a grant, counts as well.
    total_s = waited_s + (result.coverage.waited_s or 0.0)
    return replace(result, coverage=replace(result.coverage, waited_s=round(total_s, 3)))


def _worker_fault(inject: tuple[str, ...], attempt: int) -> None:
    """Faults of the worker itself: a crash, no memory, a hang, a hang that ignores SIGTERM."""
    if "out_of_memory" in inject:
        raise MemoryError
    if "crash" in inject or ("crash_once" in inject and attempt == 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if "wedge" in inject:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "hang" in inject or "wedge" in inject:
        while True:
            threading.Event().wait()


def _take_stdout() -> IO[bytes]:
    """A private copy of standard output for messages; whatever libraries print goes to standard error."""
    private = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(private, "wb", buffering=0)


def main() -> int:
    """Serve until standard input ends."""
    # The worker must not outlive its supervisor: it would keep the GPU busy with nobody watching.
    die_with_parent()
    out = _take_stdout()

    def send(message: Mapping[str, Any]) -> None:
        out.write(encode(message))

    def receive() -> Mapping[str, Any] | None:
        line = sys.stdin.buffer.readline()
        return json.loads(line) if line else None

    _prefer_as_victim()
    job = receive()
    if job is None:
        return 1
    kernel_dir = Path(job["kernel_dir"]) if job.get("kernel_dir") else None
    worker = Worker(from_json(Plan, job["plan"]), job["gpu"], send, receive, kernel_dir)
    try:
        send({"type": "ready", "facts": worker.open()})
    except Exception as error:
        send(_failure(error))
        return 1
    while (message := receive()) is not None:
        try:
            send(worker.handle(message))
        except Exception as error:
            send(_failure(error))
    return 0


def _prefer_as_victim() -> None:
    """When memory runs out the kernel must take a worker, not the supervisor, which then reports it."""
    with contextlib.suppress(OSError):  # a wish: without it the kernel chooses by itself
        OOM_SCORE_ADJ.write_text(str(_OOM_SCORE))


def _failure(error: Exception) -> dict[str, Any]:
    """The message of a step that could not be done."""
    scarce = scarce_of(error)
    if isinstance(error, GpuBurninError):
        return {"type": "failed", "message": str(error), "code": error.reason_code, "scarce": scarce}
    if isinstance(error, MemoryError):
        what = f" ({error})" if str(error) else ""
        return {"type": "failed", "message": f"memory ran out{what}; free some or use smaller shapes", "scarce": scarce}
    traceback.print_exc()
    first = next(iter(str(error).split("\n\n")), "")  # NumPy tells a long story when it cannot be imported
    return {"type": "failed", "message": f"{type(error).__name__}: {first}", "scarce": scarce}


if __name__ == "__main__":
    sys.exit(main())
