"""Faulty wires: what is sent is not what arrives. Below every check of copies, between host and GPU or two GPUs.

A wire carries one copy after the other from a source to a target, both arrays of 64-bit words. Which copies of a batch
it spoils follows from a seed. The checks' own copies and the reference tools' rules are sent over the same wires.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_STRIDE_WORDS = 64


class Wire:
    """A wire that carries right, and what the faulty ones share.

    `once`: one copy of batch number `when` is spoiled; otherwise about every third of every batch.
    """

    when = 1

    def __init__(self, seed: int, once: bool = False) -> None:
        self.source = random.Random(seed)
        self.bit = np.uint64(1 << self.source.randrange(64))
        self.injected = 0
        self._once = once
        self._victims: frozenset[int] = frozenset()
        self._index = 0
        self._batches = 0

    def batch(self, copies: int) -> None:
        """The next `copies` copies belong together."""
        self._index, self._batches = 0, self._batches + 1
        if self._once:
            spoil = self._batches == self.when
            self._victims = frozenset({self.source.choice(self._choices(range(copies)))} if spoil else ())
        else:
            first = self.source.randrange(min(3, copies))
            self._victims = frozenset(range(copies)[first::3])

    def carry(self, target: Words, source: Words) -> None:
        """One copy."""
        index, self._index = self._index, self._index + 1
        if index in self._victims:
            self.injected += 1
            self.spoil(target, source)
        else:
            self.deliver(target, source)

    def deliver(self, target: Words, source: Words) -> None:
        """A copy that is no victim."""
        target[...] = source

    def spoil(self, target: Words, source: Words) -> None:
        """A copy that is one; right as it is on a healthy wire."""
        self.deliver(target, source)

    def end(self) -> None:
        """The batch is over: what is still on its way arrives."""

    def _choices(self, copies: range) -> Sequence[int]:
        return copies


class Drops(Wire):
    """The copy never comes."""

    def spoil(self, target: Words, source: Words) -> None:
        pass


class Cuts(Wire):
    """Only the first half of it comes."""

    def spoil(self, target: Words, source: Words) -> None:
        target[: target.size // 2] = source[: source.size // 2]


class Flips(Wire):
    """One bit of one word is turned over on the way."""

    def spoil(self, target: Words, source: Words) -> None:
        target[...] = source
        target[self.source.randrange(target.size)] ^= self.bit


class Repeats(Wire):
    """What was carried before comes again, in its place."""

    _last: Words | None = None

    def deliver(self, target: Words, source: Words) -> None:
        target[...] = source
        self._last = source

    def spoil(self, target: Words, source: Words) -> None:
        target[...] = source if self._last is None else self._last

    def batch(self, copies: int) -> None:
        super().batch(copies)
        self._last = None

    def _choices(self, copies: range) -> Sequence[int]:
        return copies[1:] or copies


class Swaps(Wire):
    """It changes places with the one that comes next."""

    _held: tuple[Words, Words] | None = None

    def deliver(self, target: Words, source: Words) -> None:
        if self._held is None:
            target[...] = source
            return
        (late, its_own), self._held = self._held, None
        late[...] = source
        target[...] = its_own

    def spoil(self, target: Words, source: Words) -> None:
        self.end()
        self._held = target, source

    def end(self) -> None:
        if self._held is not None:
            (target, source), self._held = self._held, None
            target[...] = source

    def _choices(self, copies: range) -> Sequence[int]:
        return copies[:-1] or copies


class StuckLine(Wire):
    """One data line of 64 brings a 1 whatever is sent, in all copies."""

    def __init__(self, seed: int, once: bool = False) -> None:
        super().__init__(seed, once)
        self._lane = self.source.randrange(_STRIDE_WORDS)

    def carry(self, target: Words, source: Words) -> None:
        target[...] = source
        target[self._lane :: _STRIDE_WORDS] |= self.bit
        self.injected += 1


# Name in the matrix -> the wire, and whether it spoils one copy only.
_Make = Callable[[int], Wire]
FAULTY_WIRES: Mapping[str, _Make] = {
    "one copy dropped": lambda seed: Drops(seed, once=True),
    "copies dropped": Drops,
    "one copy cut short": lambda seed: Cuts(seed, once=True),
    "one copy corrupted": lambda seed: Flips(seed, once=True),
    "copies corrupted": Flips,
    "one copy duplicated": lambda seed: Repeats(seed, once=True),
    "two copies reordered": lambda seed: Swaps(seed, once=True),
    "data line stuck": StuckLine,
}
