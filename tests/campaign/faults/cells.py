"""Faulty memory as a model of single cells: what is stored is not what is loaded. Below every test of memory.

A model is told of each run of words that was stored and of each that is about to be loaded, and changes the words in
place. The checks' own memory and the reference tools' rules are run over the same models.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_ROW_WORDS = 8  # 64 bytes: what one burst of the memory brings
_STRIDE_WORDS = 64
_ONE = np.uint64(1)


class Cells:
    """Healthy cells, and what the faulty kinds share: a place that the seed chooses, within `words` words."""

    def __init__(self, words: int, seed: int) -> None:
        self.source = random.Random(seed)
        self.words = words
        self.word = self.source.randrange(words)
        self.bit = self.source.randrange(64)
        self.mask = _ONE << np.uint64(self.bit)

    def stored(self, memory: Words, start: int, count: int) -> None:
        """Words start .. start+count-1 of `memory` were just written."""

    def loading(self, memory: Words, start: int, count: int) -> None:
        """They are about to be read."""

    def holds(self, word: int, start: int, count: int) -> bool:
        """Whether a word is among them."""
        return start <= word < start + count


class StuckAtZero(Cells):
    """One cell that keeps 0."""

    def stored(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.word, start, count):
            memory[self.word] &= ~self.mask


class StuckAtOne(Cells):
    """One cell that keeps 1."""

    def stored(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.word, start, count):
            memory[self.word] |= self.mask


class CannotFall(Cells):
    """One cell that goes from 0 to 1 and not back: a transition fault."""

    def __init__(self, words: int, seed: int) -> None:
        super().__init__(words, seed)
        self._up = False

    def stored(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.word, start, count):
            self._up = self._up or bool(memory[self.word] & self.mask)
            if self._up:
                memory[self.word] |= self.mask


class Flipping(Cells):
    """One cell that flips at each fifth store into it: it comes and goes."""

    def __init__(self, words: int, seed: int) -> None:
        super().__init__(words, seed)
        self._stores = self.source.randrange(5)

    def stored(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.word, start, count):
            self._stores += 1
            if self._stores % 5 == 0:
                memory[self.word] ^= self.mask


class FlipsWhenRead(Cells):
    """One cell that is turned over by each third load of it: a read that destroys."""

    def __init__(self, words: int, seed: int) -> None:
        super().__init__(words, seed)
        self._loads = self.source.randrange(3)

    def loading(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.word, start, count):
            self._loads += 1
            if self._loads % 3 == 0:
                memory[self.word] ^= self.mask


class AddressLine(Cells):
    """One address line is stuck at 0: words with that bit in their number are the words without it."""

    def __init__(self, words: int, seed: int) -> None:
        super().__init__(words, seed)
        self.line = 1 << self.source.randrange(words.bit_length() - 1)

    def _aliases(self, start: int, count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        high = np.arange(start, start + count)
        high = high[(high & self.line) != 0]
        return high, high & ~self.line

    def stored(self, memory: Words, start: int, count: int) -> None:
        high, low = self._aliases(start, count)
        memory[low] = memory[high]

    def loading(self, memory: Words, start: int, count: int) -> None:
        high, low = self._aliases(start, count)
        memory[high] = memory[low]


class JoinedLines(Cells):
    """Two data lines touch: one bit of every word takes its neighbour's value."""

    def stored(self, memory: Words, start: int, count: int) -> None:
        part = memory[start : start + count]
        other = np.uint64((self.bit + 1) % 64)
        part[...] = (part & ~(_ONE << other)) | (((part >> np.uint64(self.bit)) & _ONE) << other)


class DataLane(Cells):
    """One bit is stuck at 1 in every word that comes over one of 64 lanes: a data line of one channel."""

    def stored(self, memory: Words, start: int, count: int) -> None:
        first = start + (self.word - start) % _STRIDE_WORDS
        memory[first : start + count : _STRIDE_WORDS] |= self.mask


class RowBurst(Cells):
    """One burst of 64 bytes comes back as noise at each third store into it."""

    def __init__(self, words: int, seed: int) -> None:
        super().__init__(words, seed)
        self.row = self.word // _ROW_WORDS * _ROW_WORDS
        self._noise = np.array([self.source.getrandbits(64) | 1 for _ in range(_ROW_WORDS)], dtype=np.uint64)
        self._stores = self.source.randrange(3)

    def stored(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.row, start, count) and self.holds(self.row + _ROW_WORDS - 1, start, count):
            self._stores += 1
            if self._stores % 3 == 0:
                memory[self.row : self.row + _ROW_WORDS] ^= self._noise


class Neighbour(Cells):
    """A store into one word that turns a bit of it over turns the same bit of the next word over too."""

    def __init__(self, words: int, seed: int) -> None:
        super().__init__(words, seed)
        self.word = min(self.word, words - 2)
        self._last = np.uint64(0)

    def stored(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.word, start, count):
            turned = (self._last ^ memory[self.word]) & self.mask
            self._last = memory[self.word]
            memory[self.word + 1] ^= turned


class Fading(Cells):
    """A row that loses what it holds when nobody stores into it for longer than `keeps_s` seconds."""

    keeps_s = 0.25

    def __init__(self, words: int, seed: int) -> None:
        super().__init__(words, seed)
        self.row = self.word // _ROW_WORDS * _ROW_WORDS
        self._stored_s = time.monotonic()

    def stored(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.row, start, count):
            self._stored_s = time.monotonic()

    def loading(self, memory: Words, start: int, count: int) -> None:
        if self.holds(self.row, start, count) and time.monotonic() - self._stored_s > self.keeps_s:
            memory[self.row : self.row + _ROW_WORDS] = 0


# Name in the matrix -> the model, made of the number of words and a seed.
FAULTY_CELLS: Mapping[str, Callable[[int, int], Cells]] = {
    "cell stuck at 0": StuckAtZero,
    "cell stuck at 1": StuckAtOne,
    "cell cannot fall": CannotFall,
    "cell flips at stores": Flipping,
    "cell flips when read": FlipsWhenRead,
    "address line stuck": AddressLine,
    "data lines joined": JoinedLines,
    "data lane stuck": DataLane,
    "burst of 64 bytes": RowBurst,
    "neighbour disturbed": Neighbour,
    "row fades": Fading,
}
