"""What keeps one wrong belief from sending many jobs back to their queues, with a share of it for each team."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

# In so long a time at most half of the verdicts may be Retry, and in any case so many: a rack that fails takes its jobs
# back to the queue at once, and a fleet that seems to fail as a whole does so at the pace of the least.
SPAN_S = 300.0
MOST_SHARE = 0.5
LEAST = 5


@dataclass
class RetryBrake:
    """Counts what was written to checks, Ready or Retry.

    A team whose jobs use up all that may be sent back leaves the others their share: so many by as many teams as have
    some, at least one each.
    """

    clock: Callable[[], float] = time.monotonic
    _written: deque[tuple[float, str, bool]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def why(self, team: str) -> str:
        """Why no more jobs of a team are sent back now, "" where one more may be."""
        with self._lock:
            self._forget()
            retries, total = Counter(of for _, of, retry in self._written if retry), len(self._written)
            most = max(LEAST, MOST_SHARE * (total + 1))
            share = max(1, int(most) // len({team, *retries}))
            if retries.total() + 1 <= most or retries[team] + 1 <= share:
                return ""
            return (
                f"{retries.total()} of the last {total} jobs that were judged were sent back to their queues, "
                f"{retries[team]} of them of {team}"
            )

    def wrote(self, team: str, *, retry: bool) -> None:
        """One check of a team's job was written."""
        with self._lock:
            self._forget()
            self._written.append((self.clock(), team, retry))

    def _forget(self) -> None:
        while self._written and self._written[0][0] <= self.clock() - SPAN_S:
            self._written.popleft()
