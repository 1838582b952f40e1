"""Which copy belongs where, and what a slot that does not hold its copy tells. Pure; one ledger for each way.

A device asks for the steps of a batch, makes them, and lets each slot that was written be judged. Faults are made
here too, in the steps: what is judged knows nothing of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from gpu_burnin.checks.pcie.port import (
    MOST_LOCATED,
    POISON_WORD,
    STRIDE_BYTES,
    WORD_BYTES,
    Geometry,
    Kind,
    Planted,
    Verified,
    WrongCopy,
)
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.operands import mix, random_words


@dataclass(frozen=True)
class Step:
    """One copy to make: `size_bytes` from `offset_bytes` of the source to the beginning of a slot."""

    copy: int
    slot: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Flip:
    """A bit to flip in a slot when a batch is over: a corrupted copy."""

    slot: int
    word: int
    mask: int


@dataclass(frozen=True)
class Steps:
    """A batch of one way; `hit` are the numbers of the copies that an injected fault spoils."""

    copies: tuple[Step, ...]
    flip: Flip | None = None
    hit: frozenset[int] = frozenset()


@dataclass(frozen=True)
class SlotComparison:
    """How many words of a slot are not what was asked for, with place and value of the first of them."""

    wrong_words: int
    first_word: int = 0
    got: int = 0


class SlotComparer(Protocol):
    """Reads a slot where it lies."""

    def __call__(
        self, slot: int, offset_bytes: int, old_offset_bytes: int | None, poison: bool, brief: bool = False
    ) -> SlotComparison:
        """Count the words of a slot that differ from the source's from `offset_bytes` on; with `old_offset_bytes`
        those that differ from the words from there on as well, with `poison` from POISON_WORD as well. `brief`: whether
        there are any is enough, in the least time."""
        ...


class Ledger:
    """The copies of one way. Numbers go on from batch to batch until `start` is called again."""

    def __init__(self, way: str, geometry: Geometry) -> None:
        self.way, self._geometry = way, geometry
        self.planted: tuple[Planted, ...] = ()
        self._faults: deque[tuple[Kind, int]] = deque()
        self.start(0)

    def start(self, key: int) -> None:
        """New data from `key`, poisoned slots, copies from 0 on."""
        self._key, self._next = key, 0
        self._held: list[int | None] = [None] * self._geometry.slots
        self._before: list[int | None] = [None] * self._geometry.slots
        self._due: set[int] = set()
        self._located = 0

    def inject(self, fault: Kind, seed: int) -> None:
        """Spoil one copy of the next batch that no earlier fault is to hit."""
        self._faults.append((fault, seed))

    def batch(self, copies: int, load: bool = False) -> Steps:
        """The steps of the next `copies` copies. Raises DeviceError where one would come over a copy that was not
        judged, unless they are only `load`, and for a fault that needs more copies."""
        made = self._geometry
        if not load and copies + len(self._due) > made.slots:
            raise DeviceError(
                f"{copies} copies have no room beside {len(self._due)} that were not verified: this is a fault of the "
                "caller"
            )
        first, self._next = self._next, self._next + copies
        steps: list[Step] = []
        for copy in range(first, self._next):
            slot = made.slot(copy)
            self._before[slot], self._held[slot] = self._held[slot], copy
            self._due.add(slot)
            steps.append(Step(copy, slot, made.offset_bytes(copy), made.size_bytes))
        self.planted = ()
        if not self._faults or not copies:
            return Steps(tuple(steps))
        fault, seed = self._faults.popleft()
        spoiled = _spoiled(steps, fault, seed, made)
        offset_bytes, mask = (spoiled.flip.word * WORD_BYTES, spoiled.flip.mask) if spoiled.flip else (0, 0)
        self.planted = (Planted(self.way, fault, spoiled.hit, offset_bytes, mask),)
        return spoiled

    def judge(self, compare: SlotComparer) -> Verified:
        """Compare every slot that was written since the last call, and look into the first that are wrong."""
        slots, self._due = sorted(self._due), set()
        found: dict[int, SlotComparison] = {}
        bad: list[int] = []
        for slot in slots:
            brief = self._located + len(bad) >= MOST_LOCATED
            found[slot] = compare(slot, self._offset(slot), None, False, brief)
            if found[slot].wrong_words:
                bad.append(slot)
        located, counted = bad[: MOST_LOCATED - self._located], bad[MOST_LOCATED - self._located :]
        self._located += len(located)
        wrong = (
            *(self._entry(slot, found[slot], *self._explain(slot, found, compare)) for slot in located),
            *(WrongCopy(self.way, self._copy(slot), None) for slot in counted),
        )
        return Verified(len(slots), len(slots) * self._geometry.size_bytes, wrong)

    def _offset(self, slot: int) -> int:
        return self._geometry.offset_bytes(self._copy(slot))

    def _copy(self, slot: int) -> int:
        copy = self._held[slot]
        assert copy is not None  # only slots that were written are judged
        return copy

    def _word(self, copy: int, index: int) -> int:
        start = self._geometry.offset_bytes(copy) // WORD_BYTES + index
        return int(random_words(self._key, start, 1)[0])

    def _entry(self, slot: int, seen: SlotComparison, kind: Kind, came_from: int | None) -> WrongCopy:
        copy = self._copy(slot)
        expected = self._word(copy, seen.first_word)
        offset = seen.first_word * WORD_BYTES
        return WrongCopy(self.way, copy, kind, offset, expected, seen.got, seen.wrong_words, came_from)

    def _explain(self, slot: int, found: dict[int, SlotComparison], compare: SlotComparer) -> tuple[Kind, int | None]:
        seen, before = found[slot], self._before[slot]
        old = POISON_WORD if before is None else self._word(before, seen.first_word)
        if seen.got == old:
            offset = None if before is None else self._geometry.offset_bytes(before)
            if compare(slot, self._offset(slot), offset, before is None).wrong_words == 0:
                whole = seen.wrong_words == self._geometry.size_bytes // WORD_BYTES
                return (Kind.DROPPED if whole else Kind.STALE), None
        for other in self._others(slot, seen):
            if compare(slot, self._geometry.offset_bytes(other), None, False).wrong_words == 0:
                own = found.get(self._geometry.slot(other))
                return (Kind.REORDERED if own is not None and own.wrong_words else Kind.DUPLICATED), other
        return Kind.CORRUPTED, None

    def _others(self, slot: int, seen: SlotComparison) -> Iterator[int]:
        """Copies in other slots whose word would be what was found first."""
        for other, copy in enumerate(self._held):
            if other != slot and copy is not None and self._word(copy, seen.first_word) == seen.got:
                yield copy


def _spoiled(steps: list[Step], fault: Kind, seed: int, made: Geometry) -> Steps:
    """The fault hits one of the last copies, which no later copy of the batch covers up."""
    last = min(len(steps), made.slots)
    victim = len(steps) - 1 - mix(seed) % last
    hit, flip = steps[victim], None
    struck = {hit.copy}
    if fault is Kind.CORRUPTED:
        word = mix(seed + 1) % (made.size_bytes // WORD_BYTES)
        flip = Flip(hit.slot, word, 1 << mix(seed + 2) % 64)
    elif fault is Kind.DROPPED:
        del steps[victim]
    elif fault is Kind.STALE:
        half = max(WORD_BYTES, made.size_bytes // 2 // STRIDE_BYTES * STRIDE_BYTES)
        steps[victim] = replace(hit, size_bytes=half)
    else:
        if last < 2:
            raise DeviceError(f"a {fault} copy needs a batch of two at least: this is a fault of the caller")
        other = victim - 1 if victim > len(steps) - last else victim + 1
        steps[victim] = replace(hit, offset_bytes=steps[other].offset_bytes)
        if fault is Kind.REORDERED:
            steps[other] = replace(steps[other], offset_bytes=hit.offset_bytes)
            struck.add(steps[other].copy)
    return Steps(tuple(steps), flip, frozenset(struck))
