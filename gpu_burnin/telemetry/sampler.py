"""The sampler: a process that reads one GPU through NVML until a signal stops it, and reports to its parent.

`python -P -m gpu_burnin.telemetry.sampler UUID INTERVAL_S PARENT_PID`, started by telemetry/sampling.py. It writes
one JSON object a line: ready (first counters) or dead (why), then sample (ten samples in one), counters that
changed, event, lost, and after SIGTERM finished. It ends with its parent.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml

from gpu_burnin.hardware import load_skus
from gpu_burnin.system.children import die_with_parent
from gpu_burnin.telemetry.counters import Reading
from gpu_burnin.telemetry.counters_nvml import CounterReader
from gpu_burnin.telemetry.events import EventWatch
from gpu_burnin.telemetry.nvml_library import initialise, is_simulated
from gpu_burnin.telemetry.nvml_reader import Reader, error_name
from gpu_burnin.telemetry.sampler_columns import Bucket, Columns

# In intervals: with ten samples a second a message comes once a second.
REPORT_EVERY = 10
# Counters are read between the ends of a run too: one that rises and is then set back would look untouched.
COUNTERS_EVERY = 100
Send = Callable[[dict[str, Any]], None]


class EventTally:
    """Tells each event at once when it first comes, and how often it came again with the samples."""

    def __init__(self) -> None:
        self._again: dict[tuple[str, int], int] = {}

    def add(self, kind: str, data: int, t_s: float) -> dict[str, Any] | None:
        """The message for a first event, None for a repeated one, which waits for `repeated`."""
        if (kind, data) in self._again:
            self._again[kind, data] += 1
            return None
        self._again[kind, data] = 0
        return _event(kind, data, 1, t_s)

    def repeated(self, t_s: float) -> list[dict[str, Any]]:
        """Messages for what came again since the last call."""
        found = [_event(kind, data, count, t_s) for (kind, data), count in self._again.items() if count]
        self._again = dict.fromkeys(self._again, 0)
        return found


def _event(kind: str, data: int, count: int, t_s: float) -> dict[str, Any]:
    return {"type": "event", "kind": kind, "data": data, "count": count, "t_s": round(t_s, 4)}


class Schedule:
    """Slots at fixed times after a start: late work moves none of them, and slots that it missed are skipped."""

    def __init__(self, start_s: float, interval_s: float) -> None:
        self._start_s, self._interval_s = start_s, interval_s
        self.slot = 0

    def following(self, now_s: float) -> tuple[float, int]:
        """Go on to the next slot after `now_s`: when it is, and how many were missed on the way."""
        missed = max(0, int((now_s - self._start_s) / self._interval_s) - self.slot)
        self.slot += missed + 1
        return self._start_s + self.slot * self._interval_s, missed


class Sampler:
    """Samples one GPU, each `interval_s` seconds, and sends what it sees."""

    def __init__(self, handle: Any, driver: str, interval_s: float, send: Send) -> None:
        self._reader = Reader(handle)
        self._counters = CounterReader(self._reader, driver)
        self._columns = Columns(self._reader)
        self._watch = EventWatch(handle)
        self._tally = EventTally()
        self._interval_s = interval_s
        self._send = send
        self._last: dict[str, Reading] = {}
        self._reported_lost = False
        self.stopping = False

    def run(self) -> None:
        """Sample until `stopping`, which a signal sets."""
        self._last = self._counters.read()
        self._send(
            {
                "type": "ready",
                "t_s": time.monotonic(),
                "simulated": is_simulated(),
                "counters": self._last,
                "limits": self._columns.limits(),
                "unsupported": self._columns.unsupported,
                "events": list(self._watch.kinds),
                "events_why": self._watch.why,
            }
        )
        self._sample()
        self._changed_counters()
        self._send({"type": "finished", "t_s": time.monotonic(), "events_why": self._watch.why})

    def _sample(self) -> None:
        schedule = Schedule(time.monotonic(), self._interval_s)
        bucket, report_slot, counters_slot = Bucket(), REPORT_EVERY, COUNTERS_EVERY
        while not self.stopping:
            bucket.add(self._columns.sample())
            self._report_lost()
            if schedule.slot >= report_slot:
                self._report(bucket, time.monotonic())
                bucket, report_slot = Bucket(), schedule.slot + REPORT_EVERY
            if schedule.slot >= counters_slot:
                self._changed_counters()
                counters_slot = schedule.slot + COUNTERS_EVERY
            due_s, missed = schedule.following(time.monotonic())
            bucket.late += missed
            self._wait(due_s)
        self._report(bucket, time.monotonic())

    def _wait(self, until_s: float) -> None:
        for kind, data in self._watch.wait(until_s):
            message = self._tally.add(kind, data, time.monotonic())
            if message:
                self._send(message)

    def _report(self, bucket: Bucket, now_s: float) -> None:
        for message in self._tally.repeated(now_s):
            self._send(message)
        if bucket.samples:
            self._send(bucket.message(now_s))

    def _report_lost(self) -> None:
        if self._reader.lost and not self._reported_lost:
            self._reported_lost = True
            self._send({"type": "lost", "why": self._reader.lost, "t_s": time.monotonic()})

    def _changed_counters(self) -> None:
        now = self._counters.read()
        changed = {name: value for name, value in now.items() if value != self._last.get(name)}
        self._last = now
        self._report_lost()
        self._send({"type": "counters", "t_s": time.monotonic(), "counters": changed})


def send(message: dict[str, Any]) -> None:
    """One message to the parent; ends the process when nobody reads any more."""
    try:
        sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)


def main(arguments: list[str]) -> int:
    """The process: 0 after SIGTERM or when NVML cannot be used, which the parent knows."""
    uuid, interval_s, parent_pid = arguments[0], float(arguments[1]), int(arguments[2])
    die_with_parent(parent_pid)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_skus()  # kept for the counters, whose first reading must not wait for it
    try:
        initialise()
        sampler = Sampler(
            pynvml.nvmlDeviceGetHandleByUUID(uuid), str(pynvml.nvmlSystemGetDriverVersion()), interval_s, send
        )
    except pynvml.NVMLError as error:
        send({"type": "dead", "why": error_name(error.value)})
        return 0

    def stop(_number: int, _frame: object) -> None:
        sampler.stopping = True

    signal.signal(signal.SIGTERM, stop)
    sampler.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
