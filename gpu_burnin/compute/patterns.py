"""Memory test patterns: each a pure function of the word's position, so any part can be made again and compared."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpu_burnin.compute.exact import MASK64, U64, random_words
from gpu_burnin.types import JSON

WORD_BYTES = 8
MODULO = 20
MAX_RECORDED = 16


@dataclass(frozen=True)
class Pattern:
    """One pattern of 64-bit words.

    `kind`: "address" (the word's own byte offset), "random" (keyed by `parameter`), "walking" (bit
    position + parameter modulo 64 set) or "modulo" (one value where position % 20 == parameter, its
    complement elsewhere: a neighbour that leaks shows in the rare cells). `inverted` complements every word.
    """

    kind: str
    parameter: int = 0
    inverted: bool = False

    @property
    def name(self) -> str:
        """Name for reports, such as walking(3) or random inverted."""
        text = self.kind if self.kind in ("address", "random") else f"{self.kind}({self.parameter})"
        return f"{text} inverted" if self.inverted else text

    def complement(self) -> Pattern:
        """The same pattern with every bit flipped."""
        return Pattern(self.kind, self.parameter, not self.inverted)

    def words(self, start: int, count: int) -> U64:
        """The words at positions start .. start+count-1. Raises ValueError for an unknown kind."""
        position = np.arange(start, start + count, dtype=np.uint64)
        if self.kind == "address":
            out = position * np.uint64(WORD_BYTES)
        elif self.kind == "random":
            out = random_words(self.parameter, start, count)
        elif self.kind == "walking":
            out = np.uint64(1) << ((position + np.uint64(self.parameter)) % np.uint64(64))
        elif self.kind == "modulo":
            rare = position % np.uint64(MODULO) == np.uint64(self.parameter)
            out = np.where(rare, np.uint64(0x5555555555555555), np.uint64(0xAAAAAAAAAAAAAAAA))
        else:
            raise ValueError(f"unknown memory pattern {self.kind!r}")
        return ~out if self.inverted else out


@dataclass(frozen=True)
class MemoryFaults:
    """How many words differed from the pattern, and the first of them as report entries."""

    count: int = 0
    recorded: tuple[dict[str, JSON], ...] = field(default=())

    def __add__(self, other: MemoryFaults) -> MemoryFaults:
        recorded = (self.recorded + other.recorded)[:MAX_RECORDED]
        return MemoryFaults(self.count + other.count, recorded)


def compare(got: U64, pattern: Pattern, start: int) -> MemoryFaults:
    """Compare words read from position `start` on with the pattern."""
    expected = pattern.words(start, got.size)
    wrong = np.flatnonzero(got != expected)
    recorded = tuple(_entry(pattern, start + int(i), int(expected[i]), int(got[i])) for i in wrong[:MAX_RECORDED])
    return MemoryFaults(int(wrong.size), recorded)


def _entry(pattern: Pattern, position: int, expected: int, got: int) -> dict[str, JSON]:
    flipped = (expected ^ got) & MASK64
    return {
        "offset_bytes": position * WORD_BYTES,
        "bit_lanes": [bit for bit in range(64) if flipped >> bit & 1],
        "pattern": pattern.name,
        "expected": f"{expected:#018x}",
        "got": f"{got:#018x}",
    }
