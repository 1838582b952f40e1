"""What keeps one wrong belief from sending many jobs back to their queues."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

# In so long a time at most half of the verdicts may be Retry, and in any case so many: a rack that fails takes its jobs
# back to the queue at once, and a fleet that seems to fail as a whole does so at the pace of the least.
SPAN_S = 300.0
MOST_SHARE = 0.5
LEAST = 5


@dataclass
class RetryBrake:
    """Counts what was written to checks, Ready or Retry."""

    clock: Callable[[], float] = time.monotonic
    _written: deque[tuple[float, bool]] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def why(self) -> str:
        """Why no more jobs are sent back now, "" where one more may be."""
        with self._lock:
            self._forget()
            retries, total = sum(retry for _, retry in self._written), len(self._written)
            if retries + 1 <= max(LEAST, MOST_SHARE * (total + 1)):
                return ""
            return f"{retries} of the last {total} jobs that were judged were sent back to their queues"

    def wrote(self, *, retry: bool) -> None:
        """One check was written."""
        with self._lock:
            self._forget()
            self._written.append((self.clock(), retry))

    def _forget(self) -> None:
        while self._written and self._written[0][0] <= self.clock() - SPAN_S:
            self._written.popleft()
