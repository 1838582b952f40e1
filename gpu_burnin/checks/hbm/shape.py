"""Which words of memory were wrong, gathered over all patterns, and their shape in one line. Pure.

Words and offsets are those of the test's own allocation. Their cells, rows and chips are not known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_burnin.checks.hbm.patterns import LANES, MAX_KEPT, WORD_BYTES, MemoryFaults, Pattern
from gpu_burnin.types import JSON, word_text

# Entries of the report's error list.
MAX_ENTRIES = 64
# A run of neighbouring words up to this long is a burst (two transfers of 64 bytes), a longer one is like a row.
_BURST_BYTES = 128
# Scattered words of which only some are wrong still show a stride, if it is this long and this often there.
_SPARSE_STRIDE_BYTES = 512
_SPARSE_WORDS = 6


@dataclass
class Damage:
    """All wrong words of a check. A word that several patterns found wrong is one word.

    `masks` has the wrong bits by offset, for MAX_KEPT words at most; `reads` counts each time that a word came back
    wrong, by the name of the test that read it, and `lanes` how often each bit was among what was wrong. `more` tells
    that not all wrong words are in `masks`; `bits` has every bit that was ever wrong.
    """

    masks: dict[int, int] = field(default_factory=dict)
    entries: dict[int, dict[str, JSON]] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)
    lanes: dict[int, int] = field(default_factory=dict)
    bits: int = 0
    most_in_one: int = 0
    more: bool = False

    def add(self, test: str, pattern: Pattern, faults: MemoryFaults) -> None:
        """What one comparison of a test found."""
        if faults.count == 0:
            return
        self.reads[test] = self.reads.get(test, 0) + faults.count
        self.bits |= faults.bits
        for lane, count in enumerate(faults.lanes):
            if count:
                self.lanes[lane] = self.lanes.get(lane, 0) + count
        self.most_in_one = max(self.most_in_one, faults.count)
        self.more |= faults.count > len(faults.words)
        for word in faults.words:
            if word.offset_bytes in self.masks:
                self.masks[word.offset_bytes] |= word.mask
            elif len(self.masks) < MAX_KEPT:
                self.masks[word.offset_bytes] = word.mask
                self.entries[word.offset_bytes] = {
                    "offset_bytes": word.offset_bytes,
                    "bit_lanes": lanes_of(word.mask),
                    "pattern": pattern.name,
                    "expected": word_text(word.expected),
                    "got": word_text(word.got),
                }
            else:
                self.more = True

    @property
    def words(self) -> int:
        """Words that were wrong at least once; with `more` at least so many."""
        return max(len(self.masks), self.most_in_one)

    @property
    def total_reads(self) -> int:
        """How often a word came back wrong."""
        return sum(self.reads.values())

    def errors(self) -> tuple[dict[str, JSON], ...]:
        """Entries for the report: MAX_ENTRIES at most, spread evenly over the wrong words, the first and last too."""
        offsets = sorted(self.entries)
        if len(offsets) > MAX_ENTRIES:
            last = len(offsets) - 1
            offsets = [offsets[round(i * last / (MAX_ENTRIES - 1))] for i in range(MAX_ENTRIES)]
        return tuple(self.entries[offset] for offset in offsets)

    def shape(self) -> str:
        """One line; empty when nothing was wrong."""
        return describe(self.masks, self.words, self.bits, self.more)


def lanes_of(mask: int) -> list[JSON]:
    """Positions of the set bits."""
    return [bit for bit in range(LANES) if mask >> bit & 1]


def describe(masks: Mapping[int, int], words: int, bits: int, more: bool = False) -> str:
    """The shape of wrong words: `masks` has the wrong bits by byte offset, of `words` words (with `more`: at least),
    and `bits` those of all.

    A single bit, bits of one word, a bit lane in many words, a burst, a row-like run, a stride, or scattered words.
    """
    if not masks:
        return ""
    offsets = sorted(masks)
    where = _bits(bits)
    if len(offsets) == 1 and not more:
        return f"single {where} in one word" if bits.bit_count() == 1 else f"{where} in one word"
    place = _place(offsets, more)
    count = f"{'at least ' if more else ''}{words} words"
    if bits.bit_count() == 1:
        return ", ".join([f"bit lane {where.removeprefix('bit ')} in {count}", *place])
    return ", ".join([*place, f"{where} in {count}"])


def _place(offsets: Sequence[int], more: bool) -> list[str]:
    """How the offsets lie to each other, where a pattern shows."""
    gaps = [after - before for before, after in itertools.pairwise(offsets)]
    if not gaps:
        return []
    length = offsets[-1] - offsets[0] + WORD_BYTES
    if set(gaps) == {WORD_BYTES}:
        if more:
            return [f"a run of at least {length} bytes"]
        return [f"burst of {length} bytes" if length <= _BURST_BYTES else f"row-like run of {length} bytes"]
    stride = math.gcd(*gaps)
    if len(gaps) > 1 and len(set(gaps)) == 1:
        return [f"stride of {stride} bytes"]
    if stride >= _SPARSE_STRIDE_BYTES and len(offsets) >= _SPARSE_WORDS:
        return [f"multiples of a stride of {stride} bytes"]
    return ["scattered"] if len(offsets) > 2 else [f"{gaps[0]} bytes apart"]


def _bits(mask: int) -> str:
    """Bits in words: "bit 17", "bits 8-15", "bits 1, 4, 9", "37 different bits", "all bits"."""
    found = [bit for bit in range(LANES) if mask >> bit & 1]
    if len(found) == LANES:
        return "all bits"
    if len(found) == 1:
        return f"bit {found[0]}"
    if found == list(range(found[0], found[-1] + 1)):
        return f"bits {found[0]}-{found[-1]}"
    return f"bits {', '.join(map(str, found))}" if len(found) <= 6 else f"{len(found)} different bits"
