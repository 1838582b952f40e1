"""Faults of memory for the self-test and --inject: they change the cells themselves, below every comparison.

Each goes by the name in FAULTS. The places depend on the seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpu_burnin.checks.hbm.patterns import WORD_BYTES, MemoryFaults, Pattern
from gpu_burnin.checks.hbm.port import HbmPort, Taken, words_in
from gpu_burnin.exact.operands import U64, mix, random_words

ROW_WORDS = 128
_FADE_WORDS = 8
_LANE_STRIDE_WORDS = 64
_LANE_MOST_WORDS = 64
_BIT = 17
_LANE = 0xFF00


class CellFault:
    """Healthy memory, and what the faults share. `part` is the part of memory that the self-test's table names.

    `waits` says whether the memory will be held (retention): a fault of fading waits for that, and otherwise comes
    between a write and the comparison. `changed_bits` are the bits that it turned over at its largest change.
    """

    part = "cell"

    def __init__(self, size_bytes: int, seed: int, waits: bool) -> None:
        self.words, self.place, self.waits = words_in(size_bytes), mix(seed), waits
        self.changed_bits = 0

    def stored(self, memory: HbmPort) -> None:
        """All of the memory was just written."""

    def loading(self, memory: HbmPort) -> None:
        """All of it is about to be read."""

    def held(self, memory: HbmPort) -> None:
        """It was left alone for a while."""

    def start(self, span: int) -> int:
        """First word of a place of `span` words."""
        return self.place % max(1, self.words - span + 1)

    def put(self, memory: HbmPort, start: int, words: U64) -> None:
        """Change words, and count the bits."""
        before = memory.peek(start * WORD_BYTES, words.size)
        changed = int(np.unpackbits((before ^ words).view(np.uint8)).sum())
        self.changed_bits = max(self.changed_bits, changed)
        memory.poke(start * WORD_BYTES, words)


class _BitFlip(CellFault):
    """One bit of one cell turns over, once."""

    def stored(self, memory: HbmPort) -> None:
        if self.changed_bits == 0:
            word = self.start(1)
            self.put(memory, word, memory.peek(word * WORD_BYTES, 1) ^ np.uint64(1 << _BIT))


class _Stuck(CellFault):
    """A byte of two neighbouring words keeps its value whatever is written: ones in the first, zeros in the second."""

    def stored(self, memory: HbmPort) -> None:
        start = self.start(2)
        words = memory.peek(start * WORD_BYTES, 2)
        self.put(memory, start, np.array([words[0] | np.uint64(_LANE), words[1] & ~np.uint64(_LANE)], dtype=np.uint64))


class _Flipping(CellFault):
    """One bit turns over at each third write: it comes and goes."""

    _every = 3

    def __init__(self, size_bytes: int, seed: int, waits: bool) -> None:
        super().__init__(size_bytes, seed, waits)
        self._stores = self.place % self._every

    def stored(self, memory: HbmPort) -> None:
        self._stores += 1
        if self._stores % self._every == 0:
            word = self.start(1)
            self.put(memory, word, memory.peek(word * WORD_BYTES, 1) ^ np.uint64(1 << _BIT))


class _Coupling(CellFault):
    """One bit takes the value of the same bit of the next word."""

    def stored(self, memory: HbmPort) -> None:
        start, bit = self.start(2), np.uint64(1 << _BIT)
        victim, aggressor = memory.peek(start * WORD_BYTES, 2)
        self.put(memory, start, np.array([(victim & ~bit) | (aggressor & bit)], dtype=np.uint64))


class _Alias(CellFault):
    """Two addresses half the memory apart share a cell: what went to the upper one last is in both."""

    part = "address"

    def stored(self, memory: HbmPort) -> None:
        half = self.words // 2
        low = self.place % half
        self.put(memory, low, memory.peek((low + half) * WORD_BYTES, 1))


class _Lane(CellFault):
    """One bit keeps 1 in every 64th word of a stretch: a data line of one channel."""

    part = "line"

    def stored(self, memory: HbmPort) -> None:
        span = min(self.words, _LANE_STRIDE_WORDS * _LANE_MOST_WORDS)
        start = self.start(span)
        words = memory.peek(start * WORD_BYTES, span)
        words[::_LANE_STRIDE_WORDS] |= np.uint64(1 << _BIT)
        self.put(memory, start, words)


class _RowBurst(CellFault):
    """A run of 1,024 bytes comes back as noise."""

    part = "row"

    def stored(self, memory: HbmPort) -> None:
        start = self.start(ROW_WORDS)
        noise = random_words(self.place, 0, ROW_WORDS) | np.uint64(1)
        self.put(memory, start, memory.peek(start * WORD_BYTES, ROW_WORDS) ^ noise)


class _Fade(CellFault):
    """64 bytes lose their ones while nobody touches them."""

    part = "row"

    def __init__(self, size_bytes: int, seed: int, waits: bool) -> None:
        super().__init__(size_bytes, seed, waits)
        self._fresh = False

    def stored(self, memory: HbmPort) -> None:
        self._fresh = True

    def loading(self, memory: HbmPort) -> None:
        if not self.waits and self._fresh:
            self._lose(memory)
        self._fresh = False

    def held(self, memory: HbmPort) -> None:
        self._lose(memory)

    def _lose(self, memory: HbmPort) -> None:
        self.put(memory, self.start(_FADE_WORDS), np.zeros(_FADE_WORDS, dtype=np.uint64))


FAULTS: Mapping[str, type[CellFault]] = {
    "bitflip": _BitFlip,
    "stuck": _Stuck,
    "flipping": _Flipping,
    "coupling": _Coupling,
    "alias": _Alias,
    "lane": _Lane,
    "row_burst": _RowBurst,
    "fade": _Fade,
}


class FaultyMemory:
    """The HbmPort protocol on memory that has a fault."""

    def __init__(self, memory: HbmPort, fault: CellFault) -> None:
        self._memory, self.fault = memory, fault

    @property
    def seconds(self) -> float:
        """Of the memory itself."""
        return self._memory.seconds

    def take(self, size_bytes: int) -> Taken:
        """As the memory itself."""
        return self._memory.take(size_bytes)

    def write(self, pattern: Pattern) -> None:
        """Write, and let the fault have its way."""
        self._memory.write(pattern)
        self.fault.stored(self._memory)

    def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
        """Compare after the fault had its way."""
        self.fault.loading(self._memory)
        faults = self._memory.verify(pattern, invert, downwards)
        if invert:
            self.fault.stored(self._memory)
        return faults

    def hold(self, seconds: float) -> None:
        """Wait, and let the fault have its way."""
        self._memory.hold(seconds)
        self.fault.held(self._memory)

    def peek(self, offset_bytes: int, count: int) -> U64:
        """As the memory itself."""
        return self._memory.peek(offset_bytes, count)

    def poke(self, offset_bytes: int, words: U64) -> None:
        """As the memory itself."""
        self._memory.poke(offset_bytes, words)

    def give_back(self) -> None:
        """As the memory itself."""
        self._memory.give_back()
