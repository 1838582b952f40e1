"""A line now and then that says how far a long task is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

# A task that is done sooner says nothing; a longer one speaks up this often.
EVERY_S = 5.0
# Of a smaller share, or of fewer, the time left would be a guess: the first host may be one that is waited for, and
# others are waited for beside it.
LEAST_SHARE = 0.05
LEAST_DONE = 10


@dataclass
class Progress:
    """Counts work. `what` is its verb ("checked"), `of` what it is done to.

    `show` prints a line, `clock` gives seconds.
    """

    what: str
    total: int
    show: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    of: str = "hosts"
    done: int = 0
    _started_s: float = field(init=False)
    _said_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_s = self._said_s = self.clock()

    def advance(self, more: int) -> None:
        """So many more are done."""
        self.done += more
        now_s = self.clock()
        if now_s - self._said_s < EVERY_S or not 0 < self.done < self.total:
            return
        self._said_s = now_s
        left_s = (now_s - self._started_s) / self.done * (self.total - self.done)
        left = f", about {_duration(left_s)} left" if self.done >= max(LEAST_SHARE * self.total, LEAST_DONE) else ""
        self.show(f"{self.what} {self.done:,} of {self.total:,} {self.of}{left}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
