"""The memory test on host memory: the detectors' logic, and no GPU memory."""

from __future__ import annotations

import time

import numpy as np

from gpu_burnin.checks.hbm.patterns import MAX_KEPT, WORD_BYTES, MemoryFaults, Pattern, compare, together
from gpu_burnin.checks.hbm.port import Taken, words_in
from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.exact.operands import U64

_CHUNK_WORDS = 1 << 15  # 256 KiB: the temporary arrays stay in the cache
# What "all that is free" means on a host that other work shares.
DEFAULT_BYTES = 16 << 20


def make_port(_: Device) -> CpuHbm:
    """See Device.port."""
    return CpuHbm()


class CpuHbm:
    """The HbmPort protocol on host memory. Every store goes through _store and every load through _load."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._words: U64 = np.empty(0, dtype=np.uint64)

    def take(self, size_bytes: int) -> Taken:
        size = size_bytes or DEFAULT_BYTES
        try:
            self._words = np.zeros(words_in(size), dtype=np.uint64)
        except MemoryError:
            raise DeviceError(f"no host memory for a test of {size} bytes: lower shapes.hbm_bytes") from None
        return Taken(size, (size,), size, 0, 0)

    def write(self, pattern: Pattern) -> None:
        started = time.perf_counter()
        for start, count in self._chunks():
            self._store(start, pattern.words(start, count))
        self.seconds += time.perf_counter() - started

    def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
        started = time.perf_counter()
        then, found, chunks = pattern.complement(), [], self._chunks()
        room = MAX_KEPT
        for start, count in reversed(chunks) if downwards else chunks:
            found.append(compare(self._load(start, count), pattern, start, room))
            room -= len(found[-1].words)
            if invert:
                self._store(start, then.words(start, count))
        self.seconds += time.perf_counter() - started
        return together(found)

    def hold(self, seconds: float) -> None:
        time.sleep(seconds)

    def peek(self, offset_bytes: int, count: int) -> U64:
        start = offset_bytes // WORD_BYTES
        return self._words[start : start + count].copy()

    def poke(self, offset_bytes: int, words: U64) -> None:
        start = offset_bytes // WORD_BYTES
        self._words[start : start + words.size] = words

    def give_back(self) -> None:
        self._words = np.empty(0, dtype=np.uint64)

    def _store(self, start_word: int, words: U64) -> None:
        self._words[start_word : start_word + words.size] = words

    def _load(self, start_word: int, count: int) -> U64:
        return self._words[start_word : start_word + count]

    def _chunks(self) -> list[tuple[int, int]]:
        """(first word, number of words) of the parts that are worked on one after the other."""
        size = self._words.size
        return [(start, min(_CHUNK_WORDS, size - start)) for start in range(0, size, _CHUNK_WORDS)]
