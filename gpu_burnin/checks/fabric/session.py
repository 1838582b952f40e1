"""A test after all have met: small and large messages on each link, each pair directly, rings, each rail alone.

All members go on together: after each operation they agree, by way of rank 0, on how it went and on what comes next.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_burnin.checks.fabric.audit import Culprit, Facts, culprits
from gpu_burnin.checks.fabric.collectives import Collectives, Compared
from gpu_burnin.checks.fabric.link import Bytes, Frame
from gpu_burnin.checks.fabric.meeting import Fault, Meeting
from gpu_burnin.checks.fabric.mesh import Mesh
from gpu_burnin.checks.fabric.result import WrongElement
from gpu_burnin.checks.fabric.selftest import kinds_of
from gpu_burnin.checks.fabric.tally import Rates, Tally
from gpu_burnin.checks.nccl.operations import KINDS, Operation, Wrong, expected_bits, explain, operation
from gpu_burnin.exact.operands import mix, random_words, stream_key
from gpu_burnin.types import word_text

# The first messages; 32 KiB are more than a packet of Ethernet, and fit what a kernel
# takes for a process that does not read.
SMALL_BYTES, LARGE_BYTES = 64, 32 << 10
# The first size of a ring, and how many times as large the next is.
_FIRST_BYTES, _GROWTH = 16 << 10, 4
# Of a direct exchange, in all.
_DIRECT_BYTES = 4 << 20
# Tags of the first messages: above all that operations use.
_FIRST_TAG = 1 << 60
_RINGS = ("all_reduce", "all_gather")
# An operation is begun when so many times what it should take is left; a larger one may take longer than thought.
_ROOM, _ROOM_TO_GROW = 1.2, 2.0


@dataclass(frozen=True)
class Report:
    """How an operation went at one member: wrong elements, and seconds with filling and comparing."""

    wrong: int
    whole_s: float


@dataclass(frozen=True)
class Part:
    """Rails that are tested together, to a share of the time."""

    rails: tuple[int, ...]
    rates: Rates
    until_share: float


class Session:
    """One member's part."""

    def __init__(self, mesh: Mesh, faults: Sequence[Fault]) -> None:
        self._mesh, self._meeting = mesh, mesh.meeting
        self._work = Collectives(mesh, faults)
        self._key = stream_key(self._meeting.seed, "fabric")
        self._made = 0
        self.tally = Tally()

    async def run(self, usable: Sequence[int]) -> None:
        """Everything, on the rails that all can use. Raises Ended, and DeviceError without memory."""
        began_s = time.monotonic()
        self._work.open(self._meeting.size_bytes)
        await self._first_messages(usable)
        for part in parts(self._meeting, usable, self.tally):
            await self._rails(part, began_s + part.until_share * self._meeting.seconds)
        # Nobody ends before all have come here.
        await self._mesh.agree(None)
        self.tally.done = True

    # --- first messages ---

    async def _first_messages(self, rails: Sequence[int]) -> None:
        """Small ones on every link, then large ones: whether only those are lost."""
        await self._mesh.agree(None)
        await self._on_each_link(rails, SMALL_BYTES)
        await self._mesh.agree(None)
        self._mesh.large = True
        await self._on_each_link(rails, LARGE_BYTES)
        await self._mesh.agree(None)
        self._mesh.large = False

    async def _on_each_link(self, rails: Sequence[int], size_bytes: int) -> None:
        """To each member and from each, compared."""
        me, tag = self._meeting.rank, _FIRST_TAG + size_bytes
        links = [self._mesh.links[rail, rank] for rank in self._meeting.others for rail in rails]
        rooms = [np.zeros(size_bytes, dtype=np.uint8) for _ in links]
        came = [link.expect(tag, room) for link, room in zip(links, rooms, strict=True)]
        sent = [link.post(Frame.DATA, self._message(me, link.rank, link.rail, size_bytes), tag) for link in links]
        await self._mesh.all([*came, *sent])
        for link, room in zip(links, rooms, strict=True):
            self.tally.elements += size_bytes
            right = self._message(link.rank, me, link.rail, size_bytes)
            bad = np.flatnonzero(room != right)
            if bad.size:
                at = int(bad[0])
                first = WrongElement(at, word_text(int(right[at]), 1), word_text(int(room[at]), 1))
                self.tally.note(Culprit(link.rank, me), int(bad.size), first)
                self.tally.wrong += int(bad.size)
                self.tally.wrong_rails.add(link.rail)

    def _message(self, sender: int, receiver: int, rail: int, size_bytes: int) -> Bytes:
        key = stream_key(self._meeting.seed, f"{sender}-{receiver}-{rail}-{size_bytes}")
        return random_words(key, 0, size_bytes // 8).view(np.uint8)

    # --- operations ---

    async def _rails(self, part: Part, until_s: float) -> None:
        """On some rails: each pair directly, then rings that grow, until the time is up by rank 0's clock."""
        self._work.rails = part.rails
        first, most = min(_FIRST_BYTES, self._meeting.size_bytes), self._meeting.size_bytes
        for size in dict.fromkeys((first, min(_DIRECT_BYTES, most))):
            await self._operation("all_to_all", size, part, until_s)
        # Those of all rails together where there are any.
        self.tally.peer_rates = {**self._work.peer_rates, **self.tally.peer_rates}
        size, number = first, 0
        while size:
            collective = _RINGS[number % len(_RINGS)]
            number += 1
            size = await self._operation(collective, size, part, until_s, number)
        if len(part.rails) == 1:
            self.tally.tested.add(part.rails[0])

    async def _operation(self, collective: str, size: int, part: Part, until_s: float, number: int = 0) -> int:
        """One, compared; the size of the next ring, 0 when the time is up. `number` counts rings from 1."""
        began_s = time.monotonic()
        op = self._next(collective, size)
        await self._work.fill(op)
        await self._mesh.agree(None)
        seconds = await self._work.run(op)
        result = await self._work.compare(op)
        self.tally.operations += 1
        self.tally.elements += result.outcome.compared
        self.tally.wrong += result.outcome.wrong
        if number:
            part.rates.add(op, seconds)

        def decide(reports: Sequence[Report]) -> int:
            slowest_s = max(report.whole_s for report in reports)
            return next_size(number, size, self._meeting.size_bytes, slowest_s, until_s - time.monotonic())

        mine = Report(result.outcome.wrong, time.monotonic() - began_s)
        reports, following = await self._mesh.agree(mine, Report, decide)
        if any(report.wrong for report in reports):
            await self._find_source(op, result, part.rails)
        return min(max(0, following), self._meeting.size_bytes)

    def _next(self, collective: str, size: int) -> Operation:
        """With data of its own, the same at all members, which count alike; types in turn."""
        older, self._key = self._key, mix(self._key + 1)
        kinds = kinds_of(self._meeting.ranks)
        kind = kinds[self._made // len(_RINGS) % len(kinds)]
        self._made += 1
        return operation(collective, kind, size, self._meeting.ranks, self._meeting.rank, self._key, older)

    async def _find_source(self, op: Operation, result: Compared, rails: Sequence[int]) -> None:
        """Of a result that was wrong at any member: where it first was."""
        facts, _ = await self._mesh.agree(await self._work.facts(op, result), Facts)
        if result.outcome.wrong and len(rails) == 1:
            self.tally.wrong_rails.add(rails[0])
        firsts = {wrong.position // op.chunk: wrong for wrong in reversed(result.outcome.recorded)}
        for chunk, culprit in culprits(op.collective, op.ranks, facts):
            # Of a direct exchange each member has chunks of its own.
            own = op.collective != "all_to_all" or culprit.taker == op.rank
            count = result.by_chunk.get(chunk, 0) if own else 0
            wrong = firsts.get(chunk) if own else None
            self.tally.note(
                culprit, count, _element(op, wrong) if wrong else None, f"{op.collective} of {op.size_bytes} bytes"
            )


def parts(meeting: Meeting, usable: Sequence[int], tally: Tally) -> list[Part]:
    """All rails together for one half of the time and each alone for the other; alone only where one cannot be used.

    Of one rail in all there is nothing to test twice.
    """
    whole = len(usable) == len(meeting.together)
    alone = [rail for rail in meeting.rails if rail in usable and len(meeting.together) > 1]
    first = (0.5 if alone else 1.0) if whole else 0.0
    found = [Part(tuple(usable), tally.together, first)] if whole else []
    for number, rail in enumerate(alone, 1):
        rates = tally.by_rail.setdefault(rail, Rates())
        found.append(Part((rail,), rates, first + (1 - first) * number / len(alone)))
    return found


def next_size(number: int, size: int, most: int, slowest_s: float, left_s: float) -> int:
    """Of the next ring, after ring `number` (from 1) of `size`: both collectives, then larger; 0: there is no time.

    Both collectives run at least once.
    """
    if number == 1:
        return size
    larger = min(most, size * _GROWTH)
    if number % len(_RINGS) == 0 and larger > size and slowest_s * _GROWTH * _ROOM_TO_GROW <= left_s:
        return larger
    return size if slowest_s * _ROOM <= left_s else 0


def _element(op: Operation, wrong: Wrong) -> WrongElement:
    size_bytes = KINDS[op.kind].size_bytes
    right = int(expected_bits(op, wrong.position, 1)[0])
    kind, _ = explain(op, wrong)
    return WrongElement(wrong.position, word_text(right, size_bytes), word_text(wrong.got, size_bytes), kind)
