"""What keeps a wrong decision from becoming the whole fleet's: how many nodes are changed by it, and how fast."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_burnin.admission.record import State
from gpu_burnin.admission.service.cache import HELD_BACK, Records
from gpu_burnin.admission.view import Brake

# How long a withheld decision waits before it asks again, when nothing says when there is room.
ASK_AGAIN_S = 60.0


@dataclass(frozen=True)
class Leave:
    """The answer: "" for yes, else why not (a sentence without the node) and after how many seconds to ask again."""

    why: str = ""
    after_s: float = 0.0


GRANTED = Leave()


@dataclass
class Brakes:
    """Gives leave. A grant counts until the record shows it."""

    fleet: Records
    joins_per_s: float
    join_burst: int
    max_unready_share: float
    expire_share: float
    tests_at_once: Callable[[int], int]
    clock: Callable[[], float] = time.monotonic
    _granted: dict[Brake, set[str]] = field(default_factory=lambda: {brake: set() for brake in Brake})
    _joins: dict[str, float] = field(default_factory=dict)
    _next_join: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, brake: Brake, name: str) -> Leave:
        """Whether this node's decision may be carried out now."""
        with self._lock:
            if brake is Brake.JOIN:
                return self._join(name)
            if name in self._granted[brake]:
                return GRANTED
            most, taken, words = self._room(brake, name)
            if len(taken) >= most:
                return Leave(f"{words}, {most} of {len(self.fleet)} nodes, is reached", ASK_AGAIN_S)
            self._granted[brake].add(name)
            return GRANTED

    def settled(self, name: str) -> None:
        """The node's decision is written, or needs no leave any more: what was granted shows in its record now."""
        with self._lock:
            self._joins.pop(name, None)
            for names in self._granted.values():
                names.discard(name)

    def gated(self) -> int:
        """How many nodes the admitter keeps from work by itself."""
        return len(self.fleet.held_back(*HELD_BACK))

    def _join(self, name: str) -> Leave:
        """Each node gets its own moment, so that a whole fleet that waits asks twice and not each second."""
        now, interval_s = self.clock(), 1.0 / self.joins_per_s
        if name not in self._joins:
            # A bucket that has been full for long holds a burst.
            self._next_join = max(self._next_join, now - (self.join_burst - 1) * interval_s)
            self._joins[name] = self._next_join
            self._next_join += interval_s
        wait_s = self._joins[name] - now
        if wait_s <= 0:
            return GRANTED
        return Leave(f"nodes are let in at {self.joins_per_s:g} a second, and others are before it", wait_s)

    def _room(self, brake: Brake, name: str) -> tuple[int, set[str], str]:
        """How many nodes there may be, those that there are (but for this one), and the limit in words."""
        fleet = len(self.fleet)
        if brake is Brake.TEST:
            taken = self.fleet.running | self._granted[brake]
            return self.tests_at_once(fleet), taken - {name}, "the limit of tests at a time"
        by_itself = self._granted[Brake.GATE] | self._granted[Brake.EXPIRE]
        gated, most = self.fleet.held_back(*HELD_BACK) | by_itself, _most(self.max_unready_share, fleet)
        if brake is Brake.EXPIRE and len(gated - {name}) < most:
            expired = self.fleet.held_back(State.EXPIRING) | self._granted[brake]
            words = "the share of nodes that are kept from work for old evidence"
            return _most(self.expire_share, fleet), expired - {name}, words
        return most, gated - {name}, "the share of nodes that the admitter keeps from work by itself"


def _most(share: float, fleet: int) -> int:
    """Of a small fleet one."""
    return max(1, math.floor(share * fleet))
