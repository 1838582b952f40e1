"""What is to be looked at next: each name once, one worker at a name, each name's trouble at its own pace."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

FIRST_DELAY_S = 0.2
MOST_DELAY_S = 300.0
# A name that others keep changing is looked at this often in a row, and then once in SPACING_S.
BURST = 30.0
SPACING_S = 2.0


class WorkQueue:
    """Names to look at. `get` blocks; what comes for a name that is being looked at waits until `done`.

    Three ways to come later than at once: `add_at` (time alone changes something: the newest word counts), `fail`
    (trouble: doubled delays, which no change cuts short) and too many changes (BURST, SPACING_S).
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self._clock, self._jitter = clock, jitter
        self._changed = threading.Condition()
        self._ready: deque[str] = deque()
        self._queued: set[str] = set()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._wakes: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._credit: dict[str, tuple[float, float]] = {}
        self._closed = False

    def add(self, name: str) -> None:
        """Look at it as soon as its own delay allows."""
        with self._changed:
            self._add(name)

    def add_all(self, names: Iterable[str]) -> None:
        """Look at all of them."""
        with self._changed:
            for name in names:
                self._add(name)

    def add_at(self, name: str, at: float | None) -> None:
        """Look at it at this time of the clock, whatever was said before; None: when something changes."""
        with self._changed:
            if at is None:
                self._wakes.pop(name, None)
                return
            self._wake(name, at)

    def get(self) -> str | None:
        """The next name; None when the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                self._ripen(now)
                if self._ready:
                    name = self._ready.popleft()
                    self._queued.discard(name)
                    self._busy.add(name)
                    self._spend(name, now)
                    return name
                self._changed.wait(self._heap[0][0] - now if self._heap else None)
            return None

    def done(self, name: str) -> None:
        """It was looked at; what came meanwhile is next."""
        with self._changed:
            self._busy.discard(name)
            if name in self._again:
                self._again.discard(name)
                self._add(name)

    def fail(self, name: str, most_s: float = MOST_DELAY_S) -> float:
        """It was looked at in vain: again after a delay (returned, in seconds) that nothing cuts short."""
        with self._changed:
            count = self._failures.get(name, 0)
            self._failures[name] = count + 1
            delay = min(most_s, FIRST_DELAY_S * 2.0 ** min(count, 30)) * self._jitter()
            at = self._clock() + delay
            self._not_before[name] = at
            self._busy.discard(name)
            self._again.discard(name)
            self._wake(name, at)
            return delay

    def reset_backoff(self, name: str) -> None:
        """It went well: the next trouble starts with the first delay."""
        with self._changed:
            self._failures.pop(name, None)
            self._not_before.pop(name, None)

    def forget(self, name: str) -> None:
        """It is gone."""
        with self._changed:
            for table in (self._failures, self._not_before, self._wakes, self._credit):
                table.pop(name, None)

    def settled(self, name: str) -> bool:
        """Whether nothing of it waits to be looked at, and the last look was not in vain."""
        with self._changed:
            return not (name in self._queued or name in self._busy or name in self._failures)

    def failures(self, name: str) -> int:
        """How often in a row it failed."""
        return self._failures.get(name, 0)

    def delayed(self) -> int:
        """How many names are in back-off."""
        return len(self._not_before)

    def __len__(self) -> int:
        """How many names wait to be looked at now."""
        with self._changed:
            self._ripen(self._clock())
            return len(self._ready)

    def close(self) -> None:
        """Have every `get` end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, name: str) -> None:
        if name in self._busy:
            self._again.add(name)
            return
        if name in self._queued:
            return
        at = max(self._not_before.get(name, 0.0), self._affordable(name))
        if at > self._clock():
            # An earlier wake keeps its place: it is not later than this one.
            self._wake(name, min(at, self._wakes.get(name, at)) if name not in self._not_before else at)
            return
        self._queued.add(name)
        self._ready.append(name)
        self._changed.notify()

    def _wake(self, name: str, at: float) -> None:
        self._wakes[name] = at
        heapq.heappush(self._heap, (at, name))
        self._changed.notify()

    def _ripen(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            at, name = heapq.heappop(self._heap)
            if self._wakes.get(name) != at:
                continue
            del self._wakes[name]
            if name in self._busy:
                self._again.add(name)
            elif name not in self._queued:
                self._queued.add(name)
                self._ready.append(name)
        if len(self._heap) > 4 * len(self._wakes) + 1000:
            self._heap = [(at, name) for name, at in self._wakes.items()]
            heapq.heapify(self._heap)

    def _affordable(self, name: str) -> float:
        """When it has credit for one more look."""
        credit, since = self._credit.get(name, (BURST, 0.0))
        return 0.0 if credit >= 1.0 else since + (1.0 - credit) * SPACING_S

    def _spend(self, name: str, now: float) -> None:
        credit, since = self._credit.get(name, (BURST, now))
        credit = min(BURST, credit + (now - since) / SPACING_S)
        self._credit[name] = (max(0.0, credit - 1.0), now)
