"""How fast this machine's processors are while a stage runs: a fixed piece of work, timed again and again beside it.

A CPU second is no fixed amount of work: another machine, neighbours on the same host, or the other lane on the same
core make one stage of `make test` a quarter dearer from one run to the next (seen: 894 and 1,104 CPU s of `check`, with
the same tests). What is judged is therefore the work: seconds times speed. The piece is what the stages do most: start
Python, compile, read and write JSON, hash.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import fmean
from threading import Event, Thread

# A piece takes about 0.1 s: at this interval it is a half per cent of two cores.
INTERVAL_S = 10.0


class SpeedMeter:
    """Times the piece every INTERVAL_S while it is entered.

    `reference_s` is what the piece costs at speed 1; `piece` does it once and returns what it cost in CPU seconds.
    """

    def __init__(self, reference_s: float, piece: Callable[[], float] | None = None) -> None:
        self._reference_s = reference_s
        self._piece = piece or piece_cpu_s
        self._seen: list[tuple[float, float]] = []
        self._ended = Event()
        self._thread = Thread(target=self._measure, name="cpu-speed")

    def __enter__(self) -> SpeedMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def speed(self, since: float) -> float:
        """Mean speed since then (time.monotonic()): 0.8 does four fifths of the work in a CPU second.

        A stage that is shorter than the interval is measured at its end.
        """
        cost_s = [cost_s for at, cost_s in list(self._seen) if at >= since] or [self._piece()]
        return self._reference_s / fmean(cost_s)

    def _measure(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            at = time.monotonic()
            self._seen.append((at, self._piece()))


def piece_cpu_s() -> float:
    """Do the piece in a process of its own; its CPU seconds, the start of Python included (getrusage(2)).

    Raises RuntimeError where it cannot run.
    """
    with subprocess.Popen([sys.executable, "-I", "-S", __file__]) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{__file__} ended with {process.returncode}: run it by itself and read why")
    return usage.ru_utime + usage.ru_stime


def work() -> None:
    """The piece."""
    source = inspect.getsource(argparse)
    for _ in range(2):
        compile(source, "argparse", "exec")
    json.loads(json.dumps([{"name": str(number), "value": number} for number in range(10_000)]))
    hashlib.sha256(bytes(4_000_000)).digest()


if __name__ == "__main__":
    work()
