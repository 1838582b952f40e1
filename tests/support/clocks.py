"""Clocks that tests put in place of a module's `time`, so that nothing depends on how fast its machine is."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType

import pytest

# What must come gets this long, on a machine however slow: only a hang reaches it.
PATIENCE_S = 300.0


def wait_until(condition: Callable[[], bool]) -> None:
    """Look for a condition until it holds. Raises AssertionError after PATIENCE_S."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:g} s"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Whether a process has; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class HandClock:
    """Seconds that pass by what the test says, and by sleeping."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        """The time."""
        return self.now_s

    __call__ = monotonic

    def sleep(self, seconds: float) -> None:
        """Nobody waits."""
        self.now_s += seconds


class LookClock:
    """Each look takes `tick_s`, and nothing else does; threads share it."""

    def __init__(self, tick_s: float) -> None:
        self._looks, self._tick_s = itertools.count(), tick_s

    def monotonic(self) -> float:
        """The time, which goes on by this look."""
        return next(self._looks) * self._tick_s

    def sleep(self, seconds: float) -> None:
        """No time passes."""


class ThreadClock:
    """A clock of its own for each thread, which goes on by a tick at each look and by sleeping: no thread is late
    because another one had the processor. Threads that agree on a moment meet there."""

    def __init__(self, tick_s: float) -> None:
        self._own, self._tick_s = threading.local(), tick_s

    def monotonic(self) -> float:
        """The thread's time."""
        self._own.now_s = getattr(self._own, "now_s", 0.0) + self._tick_s
        return float(self._own.now_s)

    perf_counter = thread_time = monotonic

    def sleep(self, seconds: float) -> None:
        """Nobody waits."""
        self._own.now_s = getattr(self._own, "now_s", 0.0) + seconds


class IdleClock:
    """Real seconds, but only those in which the thread that entered it and all processes below this one have nothing to
    do: what is only slow, since others have the processor, comes in time, and what hangs does not.

    After PATIENCE_S all seconds count, so that a hang which keeps a processor busy ends as well.
    """

    def __init__(self) -> None:
        self._begun_s, self._passed_s = time.monotonic(), 0.0
        self._ended = threading.Event()

    def __call__(self) -> float:
        """The time, which begins with that of CLOCK_MONOTONIC."""
        return self._begun_s + self._passed_s

    def __enter__(self) -> IdleClock:
        own = _TASKS / str(threading.get_native_id())
        self._thread = threading.Thread(target=self._run, args=(own,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self, own: Path) -> None:
        last_s = time.monotonic()
        while not self._ended.wait(_LOOK_EVERY_S):
            now_s = time.monotonic()
            if now_s - self._begun_s > PATIENCE_S or not (_busy(own) or any(map(_busy, _threads_below(_TASKS)))):
                # A look that itself came late saw only its own moment.
                self._passed_s += min(now_s - last_s, 2 * _LOOK_EVERY_S)
            last_s = now_s


_LOOK_EVERY_S = 0.005
_TASKS = Path("/proc/self/task")


def _busy(thread: Path) -> bool:
    """Whether a thread runs, would run, or waits for a disk."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "RD"
    except OSError:
        return False


def _threads_below(tasks: Path) -> Iterator[Path]:
    """All threads of all processes below the one with these threads."""
    for task in _listed(tasks):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            below = Path("/proc", child, "task")
            yield from _listed(below)
            yield from _threads_below(below)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def use(monkeypatch: pytest.MonkeyPatch, clock: HandClock | LookClock | ThreadClock, *modules: ModuleType) -> None:
    """Let modules take the time from `clock`."""
    for module in modules:
        monkeypatch.setattr(module, "time", clock)
