"""When a run began and ended, though somebody may set the host's clock meanwhile. Standard library only."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpu_burnin.types import Notice

CODE = "CLOCK_STEPPED"
# In the place of a time that nobody tells.
NEVER = datetime.min.replace(tzinfo=UTC)
# ntpd slews by 500 parts in a million at the most. What is beyond both bounds was a step, or as good as one.
_LEAST_STEP_S = 1.0
_SLEWED_SHARE = 0.001
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def rfc3339(moment: datetime) -> str:
    """An aware UTC time as RFC 3339 with milliseconds, ending in Z."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rfc3339_s(moment: datetime) -> str:
    """An aware time as RFC 3339 UTC in whole seconds, ending in Z."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> datetime:
    """The time of an RFC 3339 text, in UTC. Raises ValueError, also for a time without an offset."""
    if not _RFC3339.fullmatch(text):
        raise ValueError("it is no time such as 2026-11-22T18:00:00Z")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except OverflowError as error:  # the first and the last day that there are, east or west of here
        raise ValueError(str(error)) from None


def time_of(text: object) -> datetime | None:
    """The time of an RFC 3339 text; None for anything else."""
    try:
        return parse_rfc3339(str(text))
    except ValueError:
        return None


@dataclass(frozen=True)
class Times:
    """RFC 3339 UTC by the clock as it was at the end; `step_s` is by how much it was set forward (negative: back)."""

    started_at: str
    finished_at: str
    step_s: float = 0.0

    def notices(self) -> tuple[Notice, ...]:
        """The warning that the clock was set during the run."""
        if not self.step_s:
            return ()
        way = "forward" if self.step_s > 0 else "back"
        message = (
            f"the host's clock was set {way} by {abs(self.step_s):.1f} s during the run: its times follow the clock at "
            "the end, its durations a clock that nobody sets"
        )
        return (Notice(CODE, "run", message, None, {"step_s": round(self.step_s, 3)}),)


class RunClock:
    """Started with the run. `now` and `monotonic_s` are the clocks."""

    def __init__(
        self,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now, self._monotonic_s = now, monotonic_s
        self._began, self._began_s = now(), monotonic_s()

    def ended(self) -> Times:
        """The times of a run that ends now: as far apart as it lasted."""
        finished, lasted_s = self._now(), self._monotonic_s() - self._began_s
        step_s = (finished - self._began).total_seconds() - lasted_s
        stepped = abs(step_s) > max(_LEAST_STEP_S, _SLEWED_SHARE * lasted_s)
        return Times(rfc3339(finished - timedelta(seconds=lasted_s)), rfc3339(finished), step_s if stepped else 0.0)
