"""All connections of one member: heartbeats on each, who went silent or away, agreement by way of rank 0, the end.

Every member has a connection to every other one on each rail, so each sees for itself who is gone. Members also say why
they end, so that nobody takes an end for a fault; what one says of a third one ends the test and blames nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpu_burnin.checks.fabric.link import Frame, Link
from gpu_burnin.checks.fabric.meeting import Meeting
from gpu_burnin.checks.fabric.result import MTU, OUTCOMES, STALLED, gravest
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.prose import printable

T = TypeVar("T")

# Heartbeats in the time after which a link has stalled.
_BEATS = 5
# To hear why others end, and for them to read it.
MOST_PART_S = 2.0
_MOST_WORD = 200
# Nobody comes to a step before all have come to the one before it; rank 0 may have begun the next.
_MOST_AHEAD = 2
_NO_MESSAGE = "it sent what is no message of a test between nodes"


class Ended(Exception):
    """The members cannot go on together; `Mesh.lost`, `Mesh.word` and `Mesh.stood_s` say why."""


@dataclass(frozen=True)
class Loss:
    """What became of another member, by this one's own links."""

    outcome: str
    why: str
    rails: tuple[int, ...] = ()


@dataclass(frozen=True)
class Word:
    """Why another member ended."""

    rank: int
    outcome: str
    why: str


class Mesh:
    """The links of one member, by rail and rank."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self.links: dict[tuple[int, int], Link] = {}
        self.lost: dict[int, Loss] = {}
        self.word: Word | None = None  # of the first member that ended with a fault
        self.tries: dict[tuple[int, int], str] = {}  # by rail and rank: why it could not be reached, the last time
        self.stood_s = 0.0  # so long this member did not run itself, when the test failed because of it
        self._stood_for_s, self._stood_to_s = 0.0, -math.inf
        self.joining = True
        self.large = False  # large messages are on their way for the first time
        self.changed = asyncio.Event()  # while joining: a link came or went
        self.closing = asyncio.Event()  # somebody does not wait for more members
        self.failed = asyncio.Event()
        self._failure = asyncio.create_task(self.failed.wait())
        self._values: dict[int, dict[int, Any]] = {}
        self._answers: dict[int, tuple[list[Any], int]] = {}
        self._step, self._settled, self._news = 0, 0, asyncio.Event()
        self._gone: set[int] = set()  # who has said that it ends
        self._replaced: set[asyncio.Task[None]] = set()
        self._beat_at_s = time.monotonic()
        self._beating = asyncio.create_task(self._beat())

    # --- links ---

    def add(self, sock: Any, rail: int, rank: int) -> None:
        """A connection that has authenticated; it takes the place of an earlier one of the same member."""
        older = self.links.pop((rail, rank), None)
        if older is not None:
            self._close_soon(older)
        self.links[rail, rank] = Link(sock, rail, rank, self._heard, self._link_ended)
        self.changed.set()

    def missing(self) -> list[tuple[int, int]]:
        """Rail and rank of each link that is not there."""
        wanted = ((rail, rank) for rail in self.meeting.together for rank in self.meeting.others)
        return [way for way in wanted if way not in self.links]

    def to(self, rank: int, rails: Iterable[int]) -> list[Link]:
        """The links to a member on some rails."""
        return [self.links[rail, rank] for rail in rails]

    def blame(self, rank: int, outcome: str, why: str, rails: tuple[int, ...] = ()) -> None:
        """Something is wrong with a member: the first that is found of it counts."""
        self.lost.setdefault(rank, Loss(outcome, why, rails))
        self.fail()

    def fail(self) -> None:
        """The members cannot go on. If this one has just not run for a while, that is why."""
        if not self.failed.is_set():
            now_s = time.monotonic()
            late_s = self._late_s(now_s)
            if late_s > self.meeting.stall_s / 2:
                self.stood_s = late_s
            elif now_s - self._stood_to_s < self.meeting.stall_s:
                self.stood_s = self._stood_for_s
            self.failed.set()

    def _late_s(self, now_s: float) -> float:
        """How late a heartbeat is."""
        return now_s - self._beat_at_s - self.meeting.stall_s / _BEATS

    def _close_soon(self, link: Link) -> None:
        self._replaced.add(asyncio.create_task(link.close()))

    def _link_ended(self, link: Link, why: str) -> None:
        if self.links.get((link.rail, link.rank)) is not link or link.rank in self._gone:
            return
        if self.joining:
            # It may come again; else it is missing in the end.
            del self.links[link.rail, link.rank]
            self._close_soon(link)
            self.changed.set()
        else:
            self.blame(link.rank, STALLED, why, (link.rail,))

    # --- waiting ---

    async def until(self, future: asyncio.Future[T]) -> T:
        """What a future gives. Raises Ended when the members cannot go on."""
        waited: set[asyncio.Future[Any]] = {future, self._failure}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.is_set() or not future.done():
            raise Ended
        return future.result()

    async def all(self, futures: Iterable[asyncio.Future[Any]]) -> list[Any]:
        """What each of several gives. Raises Ended."""
        return [await self.until(future) for future in list(futures)]

    async def _beat(self) -> None:
        """Say on each link that this member runs, and look who does not."""
        interval_s = self.meeting.stall_s / _BEATS
        while True:
            await asyncio.sleep(interval_s)
            now_s = time.monotonic()
            late_s = self._late_s(now_s)
            self._beat_at_s = now_s
            if late_s > self.meeting.stall_s / 2:
                # It was stopped itself: nothing that it did not hear meanwhile says anything of others.
                self._stood_for_s, self._stood_to_s = late_s, now_s
                for link in self.links.values():
                    link.last_in_s = now_s
            for link in [*self.links.values()]:
                if not link.sends:
                    link.post(Frame.BEAT)
                self._look(link, now_s)

    def _look(self, link: Link, now_s: float) -> None:
        silent_s = now_s - link.last_in_s
        if link.waits or link.rank in self._gone or silent_s < self.meeting.stall_s or self.joining:
            return
        if self.large and link.in_data:
            why = f"small messages come through on rail {link.rail}, and large ones do not"
            self.blame(link.rank, MTU, why, (link.rail,))
        else:
            self.blame(
                link.rank, STALLED, f"nothing came from it in {silent_s:.1f} s on rail {link.rail}", (link.rail,)
            )

    # --- messages ---

    def send(self, ranks: Iterable[int], kind: Frame, message: dict[str, Any]) -> None:
        """A message on each link to these members, so that one rail is enough."""
        payload = json.dumps(message).encode()
        wanted = set(ranks)
        for (_, rank), link in self.links.items():
            if rank in wanted:
                link.post(kind, payload)

    def _heard(self, link: Link, kind: Frame, payload: bytes) -> None:
        try:
            message = json.loads(payload)
            if kind is Frame.BYE:
                self._bye(link, message)
            elif message["kind"] == "closing":
                self.closing.set()
            elif (step := int(message["step"])) <= self._settled:
                pass  # the same on another rail
            elif step > self._step + _MOST_AHEAD:
                raise ValueError("a step that nobody can have come to")
            elif message["kind"] == "value":
                self._values.setdefault(step, {})[link.rank] = message["value"]
            elif message["kind"] == "all" and link.rank == 0:
                self._answers[step] = [*message["all"]], int(message["next"])
            self._news.set()
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            self.blame(link.rank, STALLED, _NO_MESSAGE, (link.rail,))

    def _bye(self, link: Link, message: dict[str, Any]) -> None:
        self._gone.add(link.rank)
        if not message["why"]:
            return
        faults = {int(rank): str(outcome) for rank, outcome in message["faults"].items()}
        mine = faults.get(self.meeting.rank)
        if mine in OUTCOMES:
            what = "large messages of this member do" if mine == MTU else "what this member sends does"
            self.blame(link.rank, mine, f"{what} not come through to it", (link.rail,))
        outcome = gravest([one for one in faults.values() if one in OUTCOMES] or [STALLED])
        # A flipped bit makes a control character of a letter, and what this member signs has none.
        self.word = self.word or Word(link.rank, outcome, printable(str(message["why"])[:_MOST_WORD]))
        self.closing.set()
        self.fail()

    async def agree(
        self, value: object, kind: type[T] | None = None, decide: Callable[[Sequence[T]], int] = lambda _: 0
    ) -> tuple[list[T], int]:
        """Give a value, and get those of all by rank, and what rank 0 decides of them. Raises Ended."""
        self._step += 1
        step, ranks = self._step, self.meeting.ranks
        if self.meeting.rank:
            self.send([0], Frame.MESSAGE, {"kind": "value", "step": step, "value": to_json(value)})
            await self._when(lambda: step in self._answers)
            self._settled = step
            given, decision = self._answers.pop(step)
            return self._read(kind, given, from_rank=0), decision
        mine = self._values.setdefault(step, {})
        mine[0] = to_json(value)
        await self._when(lambda: len(mine) == ranks)
        self._settled = step
        del self._values[step]
        listed = [mine[rank] for rank in range(ranks)]
        values = self._read(kind, listed)
        decision = decide(values)
        self.send(self.meeting.others, Frame.MESSAGE, {"kind": "all", "step": step, "all": listed, "next": decision})
        return values, decision

    def _read(self, kind: type[T] | None, given: list[Any], from_rank: int | None = None) -> list[T]:
        """Values of all ranks. Raises Ended when one of them is none."""
        found: list[T] = []
        for rank, one in enumerate(given if kind else ()):
            try:
                found.append(from_json(kind, one))  # type: ignore[arg-type]
            except Misfit:
                self.blame(rank if from_rank is None else from_rank, STALLED, _NO_MESSAGE)
                raise Ended from None
        if kind and len(found) != self.meeting.ranks:
            self.blame(0, STALLED, _NO_MESSAGE)
            raise Ended
        return found

    async def _when(self, there: Callable[[], bool]) -> None:
        while not there():
            self._news.clear()
            news = asyncio.ensure_future(self._news.wait())
            try:
                await self.until(news)
            finally:
                news.cancel()

    # --- the end ---

    async def own_evidence(self) -> None:
        """After another one's word: time for this member's own links to show what is wrong, or that nothing is."""
        if self.word is None or self.word.outcome not in (MTU, STALLED):
            return
        for link in self.links.values():
            link.drain()
        interval_s = self.meeting.stall_s / _BEATS
        until_s = time.monotonic() + self.meeting.stall_s + 2 * interval_s
        while not self.lost and not self.stood_s and time.monotonic() < until_s:
            await asyncio.sleep(interval_s / 4)

    async def part(self, why: str, faults: dict[int, str]) -> None:
        """Tell all others that this is the end and what was found, hear the same of them, and close everything."""
        payload = json.dumps({"why": why, "faults": faults}).encode()
        byes = [asyncio.create_task(link.say_bye(payload)) for link in self.links.values()]
        ends = [asyncio.create_task(link.read_to_end()) for link in self.links.values()]
        try:
            if byes:
                await asyncio.wait([*byes, *ends], timeout=min(MOST_PART_S, self.meeting.stall_s))
        finally:
            await self.close([*byes, *ends])

    async def close(self, tasks: Iterable[asyncio.Task[None]] = ()) -> None:
        """Leave no task and no socket."""
        left = [*tasks, self._beating, self._failure, *self._replaced]
        for task in left:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*left, return_exceptions=True)
        for link in self.links.values():
            await link.close()
