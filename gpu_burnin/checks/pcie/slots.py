"""The host's end of a link: filling its memory and looking into its slots, on NumPy. Used by both devices."""

from __future__ import annotations

import ctypes
import resource

import numpy as np

from gpu_burnin.checks.pcie.ledger import Flip, SlotComparer, SlotComparison
from gpu_burnin.checks.pcie.port import POISON_WORD, WORD_BYTES
from gpu_burnin.exact.operands import U64, random_words

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes, _memcmp.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
_CHUNK_WORDS = 1 << 15  # 256 KiB: what is made on the way stays in the cache


def fill_words(memory: U64, key: int) -> None:
    """Write exact.random_words(key, 0, ...)."""
    for start in range(0, memory.size, _CHUNK_WORDS):
        part = memory[start : start + _CHUNK_WORDS]
        part[...] = random_words(key, start, part.size)


def flip_bit(ring: U64, slot_words: int, flip: Flip) -> None:
    """Flip bits of one word of a slot."""
    ring[flip.slot * slot_words + flip.word] ^= np.uint64(flip.mask)


def slot_comparer(ring: U64, source: U64, slot_words: int) -> SlotComparer:
    """Compares slots of `ring` with the words of `source`, which is filled by fill_words."""

    def compare(
        slot: int, offset_bytes: int, old_offset_bytes: int | None, poison: bool, brief: bool = False
    ) -> SlotComparison:
        wrong, first = 0, -1
        base, expected_at = slot * slot_words, offset_bytes // WORD_BYTES
        if _same(ring[base : base + slot_words], source[expected_at : expected_at + slot_words]):
            return SlotComparison(0)
        if brief:
            return SlotComparison(1)
        for start in range(0, slot_words, _CHUNK_WORDS):
            end = min(start + _CHUNK_WORDS, slot_words)
            got = ring[base + start : base + end]
            bad = got != source[expected_at + start : expected_at + end]
            if not bad.any():
                continue
            if old_offset_bytes is not None:
                at = old_offset_bytes // WORD_BYTES
                bad &= got != source[at + start : at + end]
            if poison:
                bad &= got != np.uint64(POISON_WORD)
            count = int(np.count_nonzero(bad))
            if count and first < 0:
                first = start + int(np.argmax(bad))
            wrong += count
        return SlotComparison(wrong, first, int(ring[base + first])) if wrong else SlotComparison(0)

    return compare


def _same(one: U64, two: U64) -> bool:
    """Whether two arrays of the same size hold the same words: memcmp, which is faster than NumPy and stays exact."""
    return bool(_memcmp(one.ctypes.data, two.ctypes.data, one.nbytes) == 0)


def refused(size_bytes: int, error: Exception) -> str:
    """One sentence for page-locked memory that the kernel or the driver would not give, with the fix."""
    limit = _locked_limit()
    text = " ".join(str(error).split())[:200]
    return (
        f"{size_bytes} bytes of pinned host memory were refused ({text}; RLIMIT_MEMLOCK is {limit}): set "
        "LimitMEMLOCK=infinity in the unit or ulimit -l unlimited in the shell, and check that the host (and its "
        "memory cgroup) has that much free"
    )


def _locked_limit() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
