"""Wrong words put into words: shapes, counts, the list of errors. And the patterns themselves, on the host."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_burnin.checks.hbm.patterns import KINDS, LANES, MAX_KEPT, MemoryFaults, Pattern, WrongWord, compare, together
from gpu_burnin.checks.hbm.shape import MAX_ENTRIES, Damage, describe
from gpu_burnin.exact.operands import random_words

ALL = (1 << 64) - 1


def _shape(masks: dict[int, int], words: int | None = None, more: bool = False) -> str:
    bits = 0
    for mask in masks.values():
        bits |= mask
    return describe(masks, words or len(masks), bits, more)


@pytest.mark.parametrize(
    ("masks", "shape"),
    [
        ({}, ""),
        ({800: 1 << 17}, "single bit 17 in one word"),
        ({800: 0b101}, "bits 0, 2 in one word"),
        ({800: 0xFF00}, "bits 8-15 in one word"),
        ({800: ALL}, "all bits in one word"),
        ({800: ALL ^ 6}, "62 different bits in one word"),
        ({0: 8, 4096: 8}, "bit lane 3 in 2 words, 4096 bytes apart"),
        ({4096 * i: 8 for i in range(412)}, "bit lane 3 in 412 words, stride of 4096 bytes"),
        ({4096 * i * i: 8 for i in range(9)}, "bit lane 3 in 9 words, multiples of a stride of 4096 bytes"),
        ({8 * i * i: 8 for i in range(9)}, "bit lane 3 in 9 words, scattered"),
        ({64 + 8 * i: ALL for i in range(8)}, "burst of 64 bytes, all bits in 8 words"),
        ({64 + 8 * i: 1 << i for i in range(64)}, "row-like run of 512 bytes, all bits in 64 words"),
        ({512 * i: 3 << i for i in range(5)}, "stride of 512 bytes, bits 0-5 in 5 words"),
        ({8 * i * i: 3 << i for i in range(5)}, "scattered, bits 0-5 in 5 words"),
    ],
)
def test_shapes(masks: dict[int, int], shape: str) -> None:
    assert _shape(masks) == shape


def test_a_shape_of_more_words_than_are_known_says_so() -> None:
    masks = {8 * i: 1 for i in range(MAX_KEPT)}
    assert _shape(masks, 1 << 30, True) == ("bit lane 0 in at least 1073741824 words, a run of at least 32768 bytes")
    # A bit that was wrong only in words that were not kept is not forgotten.
    assert describe(masks, 1 << 30, ALL, True).endswith("all bits in at least 1073741824 words")


def _faults(offsets: range, mask: int = 1, count: int | None = None) -> MemoryFaults:
    words = tuple(WrongWord(offset, 0, mask) for offset in offsets)
    lanes = tuple(len(words) * (mask >> lane & 1) for lane in range(LANES))
    return MemoryFaults(count or len(words), words, mask, lanes, len(words))


def test_a_word_that_many_patterns_find_is_one_word() -> None:
    damage = Damage()
    damage.add("address", Pattern("address"), _faults(range(8, 24, 8), 1))
    damage.add("walking", Pattern("walking", 3, inverted=True), _faults(range(16, 32, 8), 4))
    assert (damage.words, damage.total_reads, damage.reads) == (3, 4, {"address": 2, "walking": 2})
    assert damage.masks == {8: 1, 16: 5, 24: 4}
    assert damage.lanes == {0: 2, 2: 2}
    assert [(e["offset_bytes"], e["pattern"]) for e in damage.errors()] == [
        (8, "address"), (16, "address"), (24, "walking(3) inverted"),
    ]  # fmt: skip
    damage.add("modulo", Pattern("modulo"), MemoryFaults())
    assert "modulo" not in damage.reads


def test_very_many_wrong_words_are_counted_and_not_all_kept() -> None:
    damage = Damage()
    damage.add("address", Pattern("address"), _faults(range(0, 8 * MAX_KEPT, 8), count=1 << 34))
    damage.add("walking", Pattern("walking"), _faults(range(8 * MAX_KEPT, 8 * MAX_KEPT + 80, 8)))
    assert (len(damage.masks), damage.words, damage.more) == (MAX_KEPT, 1 << 34, True)
    assert damage.total_reads == (1 << 34) + 10
    assert "at least 17179869184 words" in damage.shape()
    errors = damage.errors()
    offsets = [int(str(error["offset_bytes"])) for error in errors]
    assert len(errors) == MAX_ENTRIES and (offsets[0], offsets[-1]) == (0, 8 * (MAX_KEPT - 1))
    assert max(np.diff(offsets)) - min(np.diff(offsets)) <= 8, "evenly spread"


# --- patterns ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inverted", [False, True])
def test_patterns_are_functions_of_the_position(kind: str, inverted: bool) -> None:
    pattern = Pattern(kind, 7, inverted)
    whole = pattern.words(0, 100_000)
    assert whole.size == 100_000 and whole.dtype == np.uint64
    for start in (0, 1, 300, 32_767, 32_800, 70_001):
        assert np.array_equal(whole[start : start + 29_000], pattern.words(start, 29_000)[: 100_000 - start])
    assert np.array_equal(~whole, pattern.complement().words(0, 100_000))
    assert compare(whole, pattern, 0) == MemoryFaults()


def test_the_words_of_each_pattern() -> None:
    assert Pattern("address").words(5, 2).tolist() == [40, 48]
    assert Pattern("solid").words(9, 2).tolist() == [0, 0]
    assert [hex(w) for w in Pattern("checker").words(3, 2).tolist()] == ["0xaaaaaaaaaaaaaaaa", "0x5555555555555555"]
    assert Pattern("walking", 2).words(63, 3).tolist() == [2, 4, 8]
    rare = Pattern("modulo", 3).words(20, 20)
    assert np.flatnonzero(rare == np.uint64(0x5555555555555555)).tolist() == [3]
    # By hand, from the definition.
    mask = ALL
    z = (6 * 0x9E3779B97F4A7C15 + 11) & mask
    z = (z ^ z >> 32) * 0xBF58476D1CE4E5B9 & mask
    assert Pattern("random", 11).words(6, 1).tolist() == [z ^ z >> 32]
    with pytest.raises(ValueError, match="unknown memory pattern 'plaid': choose from address"):
        Pattern("plaid").words(0, 1)


@pytest.mark.parametrize("key", [0, 1, ALL, 0x123456789ABCDEF])
@pytest.mark.parametrize("start", [0, 1 << 34])
def test_random_words_are_balanced_and_neighbours_have_nothing_in_common(key: int, start: int) -> None:
    words = Pattern("random", key).words(start, 1 << 16)
    assert np.unique(words).size == words.size
    for distance in (0, 1, 2, 8, 64, 512, 4096):
        other = words[distance:] ^ words[:-distance] if distance else words
        ones = np.unpackbits(other.view(np.uint8), bitorder="little").reshape(-1, LANES).mean(axis=0)
        # Each bit is one half of the time set: five standard deviations of 65,536 throws are 0.0098.
        assert np.abs(ones - 0.5).max() < 0.02, (distance, ones)


def test_comparing_counts_all_and_keeps_some() -> None:
    pattern = Pattern("random", 1)
    got = pattern.words(100, 10_000).copy()
    got[5000:] ^= np.uint64(1 << 63 | 2)
    found = compare(got, pattern, 100)
    assert (found.count, found.lane_words, found.bits) == (5000, 5000, 1 << 63 | 2)
    assert (found.lanes[1], found.lanes[63], sum(found.lanes)) == (5000, 5000, 10_000)
    assert len(found.words) == MAX_KEPT and found.words[0].offset_bytes == 5100 * 8
    assert found.words[0].mask == 1 << 63 | 2
    assert len(compare(got, pattern, 100, keep=3).words) == 3


def test_parts_of_a_comparison_add_up() -> None:
    pattern = Pattern("address")
    got = pattern.words(0, 1000).copy()
    got[random_words(1, 0, 20) % np.uint64(1000)] ^= np.uint64(1)
    parts = [compare(got[i : i + 100], pattern, i) for i in range(900, -1, -100)]
    assert together(parts) == compare(got, pattern, 0)
    assert together([]) == MemoryFaults()
