"""What keeps a wrong decision from becoming the whole fleet's: how many nodes are changed by it, and how fast."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_burnin.admission.service.cache import HELD_BACK, Records
from gpu_burnin.admission.view import Budget
from gpu_burnin.api.record import State

# How long a withheld decision waits before it asks again, when nothing says when there is room.
ASK_AGAIN_S = 60.0


@dataclass(frozen=True)
class Grant:
    """The answer: "" for yes, else why not (a sentence without the node) and after how many seconds to ask again."""

    why: str = ""
    after_s: float = 0.0


GRANTED = Grant()


class Pace:
    """Lets at most `per_s` nodes join in any second; a rate below one in any 1 / `per_s` seconds.

    A leave counts from when it is given until that span after the node's writes were over: so no more of the writes
    than that lie within a span either, however late an overloaded API server carries them out.
    """

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self.per_s, self._clock = per_s, clock
        # A part of a node above a whole one is not let in.
        self._most = max(1, math.floor(per_s))
        self._span_s = max(1.0, 1.0 / per_s)
        self._interval_s = self._span_s / self._most
        self._moments: dict[str, float] = {}
        self._next_s = self._next_late_s = 0.0
        self._under_way: set[str] = set()
        self._over: deque[float] = deque()

    def ask(self, name: str) -> float:
        """0 for yes, else after how many seconds to ask again.

        Each node gets its own moment, so that a whole fleet that waits asks twice and not each second.
        """
        now_s = self._clock()
        if name in self._under_way:
            return 0.0
        if name not in self._moments:
            self._moments[name] = max(self._next_s, now_s)
            self._next_s = self._moments[name] + self._interval_s
        if now_s < self._moments[name]:
            return self._moments[name] - now_s
        while self._over and self._over[0] <= now_s - self._span_s:
            self._over.popleft()
        if len(self._under_way) + len(self._over) < self._most:
            del self._moments[name]
            self._under_way.add(name)
            return 0.0
        # Others were late too, when an API server was slow: one after the other, as soon as there may be room.
        room_at_s = (self._over[0] if self._over else now_s) + self._span_s
        self._moments[name] = self._next_late_s = max(self._next_late_s + self._interval_s, room_at_s)
        return self._next_late_s - now_s

    def over(self, name: str) -> None:
        """Its writes are over, whatever became of them, or it does not want to join any more."""
        self._moments.pop(name, None)
        if name in self._under_way:
            self._under_way.discard(name)
            self._over.append(self._clock())


@dataclass
class Budgets:
    """Grants. A grant counts until the record shows it.

    `wake` has a node looked at that was refused a test, once there is room for it: it does not wait out its time.
    """

    fleet: Records
    joins_per_s: float
    max_unready_share: float
    expire_share: float
    tests_at_once: Callable[[int], int]
    clock: Callable[[], float] = time.monotonic
    # Nodes that are in a test with others.
    between: set[str] = field(default_factory=set)
    wake: Callable[[str], None] = lambda name: None
    # Those that wait for a test, in the order in which they have asked.
    _waiting: dict[str, None] = field(default_factory=dict)
    _granted: dict[Budget, set[str]] = field(default_factory=lambda: {budget: set() for budget in Budget})
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Nobody has joined yet."""
        self._joins = Pace(self.joins_per_s, self.clock)

    def ask(self, budget: Budget, name: str) -> Grant:
        """Whether this node's decision may be carried out now."""
        with self._lock:
            if budget is Budget.JOIN:
                wait_s = self._joins.ask(name)
                words = f"nodes are let in at {self.joins_per_s:g} a second, and others are before it"
                return Grant(words, wait_s) if wait_s > 0 else GRANTED
            if name in self._granted[budget]:
                return GRANTED
            most, taken, words = self._room(budget, name)
            if len(taken) >= most:
                if budget is Budget.TEST:
                    self._waiting[name] = None
                return Grant(f"{words}, {most} of {len(self.fleet)} nodes, is reached", ASK_AGAIN_S)
            self._granted[budget].add(name)
            self._waiting.pop(name, None)
            return GRANTED

    def settled(self, name: str) -> None:
        """The node's decision is written, or needs no grant any more: what was granted shows in its record now."""
        with self._lock:
            self._joins.over(name)
            for names in self._granted.values():
                names.discard(name)
            self._waiting.pop(name, None)
            if not self._waiting:
                return
            most, taken, _ = self._room(Budget.TEST, "")
            if len(taken) < most:
                following = next(iter(self._waiting))
                del self._waiting[following]
                self.wake(following)

    def broke_off(self, name: str) -> None:
        """Its writes did not go well: whether it may join is asked anew; the other grants count on."""
        with self._lock:
            self._joins.over(name)

    def room(self) -> int:
        """How many nodes more the admitter may keep from work by itself."""
        with self._lock:
            most, taken, _ = self._room(Budget.GATE, "")
            return max(0, most - len(taken))

    def tests_left(self) -> int:
        """How many nodes more may be tested now."""
        with self._lock:
            most, taken, _ = self._room(Budget.TEST, "")
            return max(0, most - len(taken))

    def gated(self) -> int:
        """How many nodes the admitter keeps from work by itself."""
        return len(self.fleet.held_back(*HELD_BACK))

    def _room(self, budget: Budget, name: str) -> tuple[int, set[str], str]:
        """How many nodes there may be, those that there are (but for this one), and the limit in words."""
        fleet = len(self.fleet)
        if budget is Budget.TEST:
            taken = self.fleet.under_test() | self._granted[budget] | self.between
            return self.tests_at_once(fleet), taken - {name}, "the limit of tests at a time"
        by_itself = self._granted[Budget.GATE] | self._granted[Budget.EXPIRE]
        gated, most = self.fleet.held_back(*HELD_BACK) | by_itself, _most(self.max_unready_share, fleet)
        if budget is Budget.EXPIRE and len(gated - {name}) < most:
            expired = self.fleet.held_back(State.EXPIRING) | self._granted[budget]
            words = "the share of nodes that are kept from work for old evidence"
            return _most(self.expire_share, fleet), expired - {name}, words
        return most, gated - {name}, "the share of nodes that the admitter keeps from work by itself"


def _most(share: float, fleet: int) -> int:
    """Of a small fleet one."""
    return max(1, math.floor(share * fleet))
