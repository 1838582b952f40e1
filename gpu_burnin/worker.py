"""The worker: one process for one GPU (or for the node), driven by JSON lines on standard input.

First line: the job, {"plan": ..., "gpu": UUID or null}. Then {"op": "check"|"selftest", "name": ...,
"attempt": n}. Answers on standard output: ready, progress, result, selftest, failed. Run by the executor
only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import IO, Any

from gpu_burnin.checks import REGISTRY, CheckContext
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.plan import CheckPlan, Plan, plan_from_json
from gpu_burnin.types import JSON
from gpu_burnin.wire import encode, to_json

_PR_SET_PDEATHSIG = 1


class Worker:
    """State of one worker process: plan, GPU and, once a check of a GPU asks for it, the opened backend."""

    def __init__(self, plan: Plan, gpu: str | None, send: Callable[[Mapping[str, Any]], None]) -> None:
        self._plan, self._send = plan, send
        self._gpu = next((g for g in plan.gpus if g.uuid == gpu), None)
        self._backend: Any = None

    def open(self) -> Mapping[str, JSON]:
        """Open the backend for the GPU; the node's worker needs none. Raises BackendError."""
        if self._gpu is None:
            return {}
        from gpu_burnin.compute.backend import make_backend

        self._backend = make_backend(self._plan.backend)
        self._backend.open(self._gpu)
        facts: Mapping[str, JSON] = self._backend.facts()
        return facts

    def handle(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run one check or its self-test and return the answer."""
        check = next(c for c in self._plan.checks if c.name == message["name"])
        if message["op"] == "selftest":
            from gpu_burnin.selftest import run_selftest

            return {"type": "selftest", "results": to_json(run_selftest(check.name, self._context(check, ())))}
        inject = self._plan.injections(check.name, self._gpu)
        _worker_fault(inject, int(message["attempt"]))
        return {"type": "result", "result": to_json(REGISTRY[check.name].run(self._context(check, inject)))}

    def _context(self, check: CheckPlan, inject: tuple[str, ...]) -> CheckContext:
        return CheckContext(
            seed=self._plan.seed,
            level=self._plan.level,
            budget_s=check.budget_s,
            gpus=self._plan.gpus,
            gpu=self._gpu,
            backend=self._backend,
            shapes=self._plan.shapes,
            options=self._plan.options,
            inject=inject,
            progress=lambda data: self._send({"type": "progress", "data": data}),
        )


def _worker_fault(inject: tuple[str, ...], attempt: int) -> None:
    """Faults of the worker itself: a crash, a hang, a hang that ignores SIGTERM."""
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
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    out = _take_stdout()

    def send(message: Mapping[str, Any]) -> None:
        out.write(encode(message))

    job = json.loads(sys.stdin.buffer.readline())
    worker = Worker(plan_from_json(job["plan"]), job["gpu"], send)
    try:
        send({"type": "ready", "facts": worker.open()})
    except Exception as error:
        send({"type": "failed", "message": _sentence(error)})
        return 1
    for line in sys.stdin.buffer:
        try:
            send(worker.handle(json.loads(line)))
        except Exception as error:
            send({"type": "failed", "message": _sentence(error)})
    return 0


def _sentence(error: Exception) -> str:
    if isinstance(error, GpuBurninError):
        return str(error)
    traceback.print_exc()
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
