"""Telemetry during a run: one sampler process per GPU, a thread that listens to them, and what they saw.

Nothing a GPU, the driver or a sampler does is raised into the run: a sampler that cannot start, dies or hangs is a
source that is not alive.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from gpu_burnin.system.children import child_environment
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.sampling_record import Record
from gpu_burnin.types import Gpu

INTERVAL_S = 0.1
# A driver that has to wake 8 GPUs without persistence mode takes 20 to 30 s.
READY_S = 60.0
STOP_S = 10.0
# Killing takes a moment; a process that is stuck inside the driver does not end at all.
KILL_S = 5.0
# NVML answers within milliseconds; ten seconds without a sample are a hole in what was watched.
STALL_S = 10.0
# From the end of a process's output to its exit status.
_REAP_S = 1.0
_TAIL_BYTES = 500
_MAX_LINE_BYTES = 1 << 20
_LOG = logging.getLogger(__name__)
OnEvent: TypeAlias = Callable[[Mapping[str, Any]], None]


class _Process:
    """A started sampler. Raises OSError when it cannot be started."""

    def __init__(self, command: Sequence[str], errors: Path) -> None:
        self.errors = errors
        self.buffer = b""
        self.open = True
        try:
            with errors.open("wb") as file:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    start_new_session=True,
                    env=child_environment(os.environ),
                )
        except OSError:
            self._remove_empty()
            raise
        assert self._process.stdout is not None
        self.stdout = self._process.stdout
        self.pid = self._process.pid

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            self._process.send_signal(number)

    def gone(self, until_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until_s - time.monotonic()))
        return self._process.poll() is not None

    def how(self) -> str:
        """How it ended, with the end of what it wrote to standard error."""
        with contextlib.suppress(OSError):  # then the status has to do
            text = self.errors.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
            if text:
                return f"status {self._process.poll()}: {text.splitlines()[-1]}"
        return f"status {self._process.poll()}"

    def close(self) -> None:
        self.stdout.close()
        self._remove_empty()

    def _remove_empty(self) -> None:
        """What it said on standard error stays beside the run's other files; without output there is no file."""
        with contextlib.suppress(OSError):  # an empty file that stays does no harm
            if self.errors.stat().st_size == 0:
                self.errors.unlink()


class Sampling:
    """Samples GPUs from `__enter__` to `stop` (or `__exit__`). `left_behind` are pids that could not be killed.

    `gpus` are those of the plan. Samplers that write to standard error leave sampler-INDEX.log in `run_dir`.
    `on_event` is called from a thread with {"event": "sample", "gpu": UUID, ...} for each ten samples of a GPU.
    `command` starts another program in place of the sampler (tests); its arguments are added to it.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        run_dir: Path,
        on_event: OnEvent,
        interval_s: float = INTERVAL_S,
        *,
        ready_s: float = READY_S,
        stop_s: float = STOP_S,
        kill_s: float = KILL_S,
        stall_s: float = STALL_S,
        command: Sequence[str] | None = None,
    ) -> None:
        self._records = [Record(gpu, interval_s, stall_s) for gpu in gpus]
        self._run_dir, self._on_event, self._interval_s = run_dir, on_event, interval_s
        self._ready_s, self._stop_s, self._kill_s = ready_s, stop_s, kill_s
        self._command = tuple(command or (sys.executable, "-P", "-m", "gpu_burnin.telemetry.sampler"))
        self._processes: dict[int, _Process] = {}
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._wake = os.pipe()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self.left_behind: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        """Start the samplers; returns when each is ready or dead, at the latest after `ready_s` seconds."""
        try:
            for number, record in enumerate(self._records):
                self._start(number, record)
            self._selector.register(self._wake[0], selectors.EVENT_READ)
            self._thread = threading.Thread(target=self._listen, name="telemetry", daemon=True)
            self._thread.start()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def findings(self) -> TelemetryFindings:
        """Stop the samplers if they still run, and give everything they saw."""
        self.stop()
        records = self._records
        return TelemetryFindings(
            counters=tuple(counter for record in records for counter in record.counters()),
            series=tuple(record.series() for record in records),
            xids=tuple(xid for record in records for xid in record.xids()),
            sources=tuple(source for record in records for source in record.sources()),
            events=tuple(event for record in records for event in record.events()),
            simulated=any(record.simulated for record in records),
        )

    def stop(self) -> None:
        """End the samplers: SIGTERM, after `stop_s` seconds SIGKILL, after `kill_s` more they are left behind."""
        if self._stopped:
            return
        self._stopped = True
        now_s = time.monotonic()
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
        self._until(lambda: not any(process.open for process in self._processes.values()), self._stop_s)
        for number, process in self._processes.items():
            if process.open:
                self._records[number].trouble(f"the sampler did not answer within {self._stop_s:g} s and was killed")
                process.signal(signal.SIGKILL)
        end_s = time.monotonic() + self._kill_s
        self.left_behind = tuple(process.pid for process in self._processes.values() if not process.gone(end_s))
        self._hang_up()
        for number, record in enumerate(self._records):
            held = number in self._processes and self._processes[number].pid in self.left_behind
            if held:
                record.trouble("the sampler hangs inside the driver and could not be killed")
            record.ended(now_s)

    def _start(self, number: int, record: Record) -> None:
        arguments = (record.gpu.uuid, repr(self._interval_s), str(os.getpid()))
        errors = self._run_dir / f"sampler-{record.gpu.index}.log"
        try:
            process = _Process((*self._command, *arguments), errors)
        except OSError as error:
            record.trouble(f"the sampler could not be started ({error.strerror})")
            return
        os.set_blocking(process.stdout.fileno(), False)
        self._processes[number] = process
        self._selector.register(process.stdout, selectors.EVENT_READ, number)

    def _wait_until_ready(self) -> None:
        def settled() -> bool:
            return all(self._records[number].ready or not p.open for number, p in self._processes.items())

        if self._until(settled, self._ready_s):
            return
        for number, process in self._processes.items():
            if process.open and not self._records[number].ready:
                self._records[number].trouble(f"the sampler was not ready within {self._ready_s:g} s and was killed")
                process.signal(signal.SIGKILL)

    def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        if self._thread is None:
            return condition()
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def _hang_up(self) -> None:
        """End the thread and close every pipe."""
        if self._thread is not None:
            os.write(self._wake[1], b".")
            self._thread.join()
        for fd in self._wake:
            os.close(fd)
        self._selector.close()
        for process in self._processes.values():
            process.close()

    def _listen(self) -> None:
        """The thread: takes what the samplers say until it is woken to end."""
        while True:
            ready = [key for key, _ in self._selector.select()]
            for key in ready:
                if key.fd != self._wake[0]:
                    self._take(key.data)
            with self._changed:
                self._changed.notify_all()
            if any(key.fd == self._wake[0] for key in ready):
                return

    def _take(self, number: int) -> None:
        process, record = self._processes[number], self._records[number]
        try:
            data = os.read(process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(process.stdout)
            if not record.finished:
                process.gone(time.monotonic() + _REAP_S)
                record.trouble(f"the sampler ended ({process.how()})")
            process.open = False
            return
        *lines, process.buffer = (process.buffer + data).split(b"\n")
        if len(process.buffer) > _MAX_LINE_BYTES:
            record.trouble("the sampler sent an endless line and was killed")
            process.buffer = b""
            process.signal(signal.SIGKILL)
        for line in lines:
            self._feed(record, line)

    def _feed(self, record: Record, line: bytes) -> None:
        try:
            shown = record.feed(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            record.trouble(f"the sampler sent something that is not a message: {line[:80]!r}")
            return
        if shown is not None:
            try:
                self._on_event(shown)
            except Exception:
                # A display that fails must not end the telemetry.
                _LOG.exception("the display of samples failed and gets no more samples")
                self._on_event = _nobody


def _nobody(_event: Mapping[str, Any]) -> None:
    """Shows nothing."""
