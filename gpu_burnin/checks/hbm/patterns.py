"""Memory test patterns: each a pure function of the word's position, so any part can be made again and compared.

Also what a comparison gives. The kernels of kernels.cu make the same words, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpu_burnin.exact.operands import U64

WORD_BYTES = 8
LANES = 64
MODULO = 20
# Wrong words that one comparison keeps; it counts all.
MAX_KEPT = 4096
# Random words: z = position * GAMMA + key, folded, times MIX, folded again. Both constants are odd, so no two positions
# below 2^64 share a word. GAMMA and MIX are those of splitmix64 (Steele, Lea, Flood, OOPSLA 2014); two of its
# three folds are left out, for at 4.8 TB/s a GPU has only about 100 instructions for 16 bytes.
GAMMA = 0x9E3779B97F4A7C15
MIX = 0xBF58476D1CE4E5B9
CHECKER = (0x5555555555555555, 0xAAAAAAAAAAAAAAAA)

# Kind -> number of the kernels' template. "solid" is all zeros, "checker" alternates from word to word.
KINDS: dict[str, int] = {"address": 0, "random": 1, "solid": 2, "checker": 3, "walking": 4, "modulo": 5}
_TILE_WORDS = 1 << 15
_PERIODS = {"solid": 1, "checker": 2, "walking": LANES, "modulo": MODULO}


@dataclass(frozen=True)
class Pattern:
    """One pattern of 64-bit words.

    `kind`: "address" (the word's own byte offset), "random" (keyed by `parameter`), "solid" (zeros), "checker"
    (0x55.. and 0xAA.. in turn), "walking" (bit position + parameter modulo 64 set) or "modulo" (one value where
    position % 20 == parameter, its complement elsewhere: a neighbour that leaks shows in the rare cells).
    `inverted` complements every word.
    """

    kind: str
    parameter: int = 0
    inverted: bool = False

    @property
    def name(self) -> str:
        """Name for reports, such as walking(3) or random inverted."""
        text = f"{self.kind}({self.parameter})" if self.kind in ("walking", "modulo") else self.kind
        return f"{text} inverted" if self.inverted else text

    def complement(self) -> Pattern:
        """The same pattern with every bit flipped."""
        return replace(self, inverted=not self.inverted)

    def words(self, start: int, count: int) -> U64:
        """The words at positions start .. start+count-1, to be read only. Raises ValueError for an unknown kind."""
        if self.kind == "address":
            out = np.arange(start, start + count, dtype=np.uint64)
            out *= np.uint64(WORD_BYTES)
        elif self.kind == "random":
            out = keyed_words(self.parameter, start, count)
        elif self.kind in _PERIODS:
            return _periodic(self, start % _PERIODS[self.kind], count)
        else:
            raise ValueError(f"unknown memory pattern {self.kind!r}: choose from {', '.join(KINDS)}")
        return np.invert(out, out=out) if self.inverted else out


def keyed_words(key: int, start: int, count: int) -> U64:
    """The words of the pattern "random"."""
    z = np.arange(start, start + count, dtype=np.uint64)
    z *= np.uint64(GAMMA)
    z += np.uint64(key & ((1 << 64) - 1))
    z ^= z >> np.uint64(32)
    z *= np.uint64(MIX)
    z ^= z >> np.uint64(32)
    return z


def _periodic(pattern: Pattern, phase: int, count: int) -> U64:
    if phase + count <= _TILE_WORDS + _PERIODS[pattern.kind]:
        return _tile(pattern)[phase : phase + count]
    period = _tile(pattern)[: _PERIODS[pattern.kind]]
    return np.resize(np.roll(period, -phase), count)


@lru_cache(maxsize=8)
def _tile(pattern: Pattern) -> U64:
    """A long piece of a periodic pattern from position 0, made once: reading it costs nothing."""
    period = _PERIODS[pattern.kind]
    position = np.arange(_TILE_WORDS + period, dtype=np.uint64)
    if pattern.kind == "solid":
        out = np.zeros(position.size, dtype=np.uint64)
    elif pattern.kind == "checker":
        out = np.where(position % np.uint64(2) == 0, np.uint64(CHECKER[0]), np.uint64(CHECKER[1]))
    elif pattern.kind == "walking":
        out = np.uint64(1) << ((position + np.uint64(pattern.parameter)) % np.uint64(LANES))
    else:
        rare = position % np.uint64(MODULO) == np.uint64(pattern.parameter)
        out = np.where(rare, np.uint64(CHECKER[0]), np.uint64(CHECKER[1]))
    out = ~out if pattern.inverted else out
    out.setflags(write=False)
    return out


class WrongWord(NamedTuple):
    """One word that came back wrong. `offset_bytes` counts from the start of the memory under test."""

    offset_bytes: int
    expected: int
    got: int

    @property
    def mask(self) -> int:
        """The bits that differ."""
        return self.expected ^ self.got


@dataclass(frozen=True)
class MemoryFaults:
    """What one comparison found.

    `count` is exact: every wrong word. `words` are some of them, MAX_KEPT at most, by their offset. `bits` has
    each bit set that was wrong in any word. `lanes` says in how many words each of the 64 bits was wrong, among
    `lane_words` of them: all unless they are very many.
    """

    count: int = 0
    words: tuple[WrongWord, ...] = ()
    bits: int = 0
    lanes: tuple[int, ...] = field(default=(0,) * LANES)
    lane_words: int = 0


def compare(got: U64, pattern: Pattern, start: int, keep: int = MAX_KEPT) -> MemoryFaults:
    """Compare words read from position `start` on with the pattern; at most `keep` wrong ones are kept."""
    expected = pattern.words(start, got.size)
    differs = got != expected
    if not differs.any():
        return MemoryFaults()
    wrong = np.flatnonzero(differs)
    masks = got[wrong] ^ expected[wrong]
    lanes = np.unpackbits(masks.astype("<u8").view(np.uint8), bitorder="little").reshape(-1, LANES).sum(axis=0)
    words = tuple(WrongWord((start + int(i)) * WORD_BYTES, int(expected[i]), int(got[i])) for i in wrong[:keep])
    return MemoryFaults(wrong.size, words, int(np.bitwise_or.reduce(masks)), tuple(lanes.tolist()), wrong.size)


def together(parts: Iterable[MemoryFaults]) -> MemoryFaults:
    """The faults of several parts of one comparison."""
    found = [part for part in parts if part.count]
    if len(found) < 2:
        return found[0] if found else MemoryFaults()
    words = sorted(word for part in found for word in part.words)
    bits = 0
    for part in found:
        bits |= part.bits
    lanes = tuple(sum(part.lanes[bit] for part in found) for bit in range(LANES))
    return MemoryFaults(
        sum(part.count for part in found), tuple(words[:MAX_KEPT]), bits, lanes, sum(part.lane_words for part in found)
    )
