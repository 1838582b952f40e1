"""One worker process as the supervisor sees it: start, talk, end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_burnin.engine.messages import ProtocolError
from gpu_burnin.engine.plan import Plan
from gpu_burnin.engine.wire import encode
from gpu_burnin.system.children import PACKAGE_ROOT
from gpu_burnin.system.codec import to_json
from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT

# Variables that change which kernels run or how: a burn-in must not depend on the caller's shell.
_DROPPED_PREFIXES = ("CUDA", "CUBLAS", "CUDNN", "CUPY_", "NVIDIA_TF32", "NCCL", "PYTHON", "OMP_", "OPENBLAS_", "MKL_")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_STDERR_TAIL_BYTES = 2000
_MAX_LINE_BYTES = 8 << 20
_READ_BYTES, _MOST_READS = 1 << 16, 16


def worker_environment(base: Mapping[str, str], backend: str, gpu: str | None) -> dict[str, str]:
    """The caller's environment without what steers CUDA, BLAS or Python; one thread; only this GPU visible."""
    clean = {k: v for k, v in base.items() if not k.startswith(_DROPPED_PREFIXES)}
    clean.update(dict.fromkeys(_THREADS, "1"))
    # With -P neither the working directory nor the package's own folder is searched for modules.
    clean["PYTHONPATH"] = PACKAGE_ROOT
    if backend == "cuda":
        clean.pop(ENVIRONMENT, None)  # simulated GPUs compute nothing
        if gpu is not None:
            clean["CUDA_VISIBLE_DEVICES"] = gpu
    return clean


class WorkerProcess:
    """A started worker with its pipes. Raises OSError when it cannot be started."""

    def __init__(
        self, plan: Plan, gpu: str | None, command: Sequence[str] | None = None, kernel_dir: Path | None = None
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 closed with the process
        self._buffer = bytearray()
        self._process = subprocess.Popen(
            command or [sys.executable, "-P", "-m", "gpu_burnin.engine.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=worker_environment(os.environ, plan.backend, gpu),
            start_new_session=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()
        os.set_blocking(self.fd, False)
        self.send({"plan": to_json(plan), "gpu": gpu, "kernel_dir": None if kernel_dir is None else str(kernel_dir)})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; a worker that is gone shows as end of file on its output, not here."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Whole messages that are there, and whether the output has ended. Raises ProtocolError."""
        ended, known = False, len(self._buffer)
        # Not until nothing is left: a worker that never stops must not keep the others from being heard.
        for _ in range(_MOST_READS):
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            self._buffer += data
        end = self._buffer.rfind(b"\n", known) + 1
        lines = bytes(self._buffer[:end]).split(b"\n")[:-1]
        del self._buffer[:end]
        if len(self._buffer) > _MAX_LINE_BYTES:
            raise ProtocolError("an endless line")
        return [_message(line) for line in lines], ended

    def signal(self, number: signal.Signals) -> None:
        """Signal the worker's whole session; nothing when it is gone."""
        if self._process.poll() is None:
            os.killpg(self.pid, number)

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the process is gone, waiting up to timeout_s for it."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def obituary(self) -> dict[str, Any]:
        """How the process ended: exit status (negative: signal) and the end of its standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _STDERR_TAIL_BYTES))
        text = self._errors.read().decode(errors="replace")
        return {"pid": self.pid, "exit_status": self._process.poll(), "stderr_tail": text}

    def hang_up(self) -> None:
        """End the worker's input: it ends when it has nothing more to do."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """Close the pipes."""
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        raise ProtocolError(f"a line that is not JSON: {line[:80]!r}") from None
    if not isinstance(message, dict) or "type" not in message:
        raise ProtocolError(f"a line that is not a message: {line[:80]!r}")
    return message
