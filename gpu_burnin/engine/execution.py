"""What the supervisors of one execution share: plan, limits, events, results so far. Standard library only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from gpu_burnin.engine.plan import Plan
from gpu_burnin.types import SelftestResult

OnEvent = Callable[[Mapping[str, Any]], None]
# Entered around each wait: where it may be cut short by KeyboardInterrupt.
Waiting = Callable[[], AbstractContextManager[None]]
# Counts of host_limits.oom_kills.
OomKills = Callable[[], Mapping[str, int]]
_LOG = logging.getLogger(__name__)


class EventSink(Protocol):
    """Where events are kept; gpu_burnin.engine.journal.Journal is one."""

    def write(self, event: Mapping[str, Any]) -> None:
        """Keep one event."""


class Run:
    """One execution. `started_s` is the time of `clock` from which the plan's time counts. `oom_kills` counts the
    kernel's kills for lack of memory."""

    def __init__(
        self,
        plan: Plan,
        journal: EventSink | None,
        on_event: OnEvent | None,
        oom_kills: OomKills,
        command: Sequence[str] | None,
        started_s: float,
        waiting: Waiting = nullcontext,
        kernel_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.oom_kills, self.command, self.started_s = plan, oom_kills, command, started_s
        self.waiting, self.clock = waiting, clock
        self._waited_s = 0.0
        self.kernel_dir = kernel_dir
        self._journal, self._on_event = journal, on_event
        self.events: list[Mapping[str, Any]] = []
        self.selftests: list[SelftestResult] = []
        self.worker_pids: list[int] = []
        self.killed_pids: list[int] = []
        self.facts: dict[str, Mapping[str, Any]] = {}

    def left_s(self) -> float:
        """Seconds of the plan's time that are left, negative when it is over."""
        return self.started_s + self.plan.total_s - self.clock()

    @property
    def ends_s(self) -> float:
        """The time of the clock at which the run is given up, whatever its workers are at."""
        return self.started_s + self._waited_s + self.plan.deadlines.steps_s

    def wait_more(self, seconds: float) -> None:
        """Of the time for which a check waits for somebody outside, the run's stands still: as long as the plan says
        at the most, whatever a worker says."""
        most_s = self.plan.options.get("wave_wait_s")
        self._waited_s = min(self._waited_s + seconds, float(most_s) if isinstance(most_s, int | float) else 0.0)

    def emit(self, event: Mapping[str, Any]) -> None:
        """Tell an event to the journal (but for "progress") and to the display."""
        if event["event"] != "progress":
            self.events.append(event)
            if self._journal is not None:
                self._journal.write(event)
        if self._on_event is not None:
            self._on_event(event)


@contextmanager
def shielded(display: AbstractContextManager[OnEvent]) -> Iterator[OnEvent]:
    """The display as one that cannot end a run: when it fails (its reader went away) it gets no more events."""
    tell: OnEvent | None = display.__enter__()

    def show(event: Mapping[str, Any]) -> None:
        nonlocal tell
        try:
            if tell is not None:
                tell(event)
        except OSError:
            tell = None
        except Exception:
            tell = None
            _LOG.exception("the display failed and gets no more events")

    try:
        yield show
    finally:
        with suppress(OSError):  # its reader went away
            display.__exit__(None, None, None)
