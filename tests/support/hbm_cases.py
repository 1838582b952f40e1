"""What the kernels of the memory test must do, for any HbmPort: one whose kernels are compiled for the host (unit
tests) and one on a real GPU (tests/gpu). The judge is the CPU's memory, word for word.
"""

from __future__ import annotations

import numpy as np
import pytest

from gpu_burnin.checks.hbm.cpu import CpuHbm
from gpu_burnin.checks.hbm.patterns import KINDS, MAX_KEPT, MemoryFaults, Pattern
from gpu_burnin.checks.hbm.port import HbmPort
from gpu_burnin.exact.operands import random_words

PARAMETERS = {"random": (0, 5, (1 << 64) - 1), "walking": (0, 1, 63), "modulo": (0, 1, 13, 19)}
ALL = [
    Pattern(kind, parameter, inverted)
    for kind in KINDS
    for parameter in PARAMETERS.get(kind, (0,))
    for inverted in (False, True)
]


def flip(memory: HbmPort, offset_bytes: int, mask: int) -> None:
    """Flip bits of the word at an offset."""
    memory.poke(offset_bytes, memory.peek(offset_bytes, 1) ^ np.uint64(mask))


def all_words(memory: HbmPort, size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Everything that lies there."""
    return memory.peek(0, size_bytes // 8)


class HbmCases:
    """`memory` has taken `size_bytes`, in several pieces and of no round number."""

    @pytest.mark.parametrize("pattern", ALL, ids=lambda p: f"{p.name} {p.parameter}")
    def test_what_is_written_is_the_pattern(self, memory: HbmPort, size_bytes: int, pattern: Pattern) -> None:
        memory.write(pattern)
        assert np.array_equal(all_words(memory, size_bytes), pattern.words(0, size_bytes // 8))
        assert memory.verify(pattern) == MemoryFaults()
        assert memory.verify(pattern, downwards=True) == MemoryFaults()

    @pytest.mark.parametrize("downwards", [False, True], ids=["upwards", "downwards"])
    @pytest.mark.parametrize("pattern", ALL, ids=lambda p: f"{p.name} {p.parameter}")
    def test_the_complement_is_written_behind(
        self, memory: HbmPort, size_bytes: int, pattern: Pattern, downwards: bool
    ) -> None:
        memory.write(pattern)
        flip(memory, 8 * 11, 1 << 40)
        assert memory.verify(pattern, invert=True, downwards=downwards).count == 1
        assert np.array_equal(all_words(memory, size_bytes), pattern.complement().words(0, size_bytes // 8))

    @pytest.mark.parametrize("downwards", [False, True], ids=["upwards", "downwards"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_wrong_words_are_those_that_the_cpu_finds(
        self, memory: HbmPort, size_bytes: int, kind: str, downwards: bool
    ) -> None:
        cpu, words = CpuHbm(), size_bytes // 8
        cpu.take(size_bytes)
        pattern = Pattern(kind, 3, inverted=downwards)
        places = {0, 1, words - 1, words - 2, *(int(w) % words for w in random_words(9, 0, 40))}
        for tester in (memory, cpu):
            tester.write(pattern)
            for place in sorted(places):
                flip(tester, 8 * place, 1 << (place % 64) | 1 << 63 | 1)
        assert memory.verify(pattern, downwards=downwards).count == len(places)
        found, wanted = (tester.verify(pattern, True, downwards) for tester in (memory, cpu))
        assert sorted(found.words) == sorted(wanted.words)
        assert (found.count, found.bits, found.lanes) == (wanted.count, wanted.bits, wanted.lanes)
        assert found.lane_words == found.count == len(places)
        assert memory.verify(pattern.complement()) == MemoryFaults()

    def test_memory_that_is_wrong_everywhere_is_counted_to_the_last_word(
        self, memory: HbmPort, size_bytes: int
    ) -> None:
        memory.write(Pattern("solid"))
        found = memory.verify(Pattern("solid", inverted=True))
        assert (found.count, found.bits) == (size_bytes // 8, (1 << 64) - 1)
        assert 0 < found.lane_words <= found.count
        assert set(found.lanes) == {found.lane_words}
        assert len(found.words) == min(found.lane_words, MAX_KEPT)
        assert len({word.offset_bytes for word in found.words}) == len(found.words)

    def test_two_addresses_of_one_cell_are_seen_from_piece_to_piece(self, memory: HbmPort, size_bytes: int) -> None:
        pattern, far = Pattern("address"), size_bytes - 8 * 5
        memory.write(pattern)
        memory.poke(16, memory.peek(far, 1))
        (word,) = memory.verify(pattern).words
        assert (word.offset_bytes, word.expected, word.got) == (16, 16, far)

    def test_time_passes(self, memory: HbmPort) -> None:
        before = memory.seconds
        memory.write(Pattern("solid"))
        written = memory.seconds
        memory.verify(Pattern("solid"))
        assert before < written < memory.seconds
