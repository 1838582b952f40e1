"""Freivalds' check of products in exact integers: (w^T C) v = (w^T A)(B v) modulo a prime."""

from __future__ import annotations

import numpy as np

from gpu_burnin.exact.operands import I64, PRIME, U64, random_words, stream_key

_BLOCK = 1 << 17
# Vectors are taken in halves of 16 bits: sums of 16-bit times matrix elements stay integers below 2^53 in
# FP64, in any order, while terms * largest element is at most 2^37.
_HALF_BITS = 16
_FAST_LIMIT = 1 << (53 - _HALF_BITS)


def challenge(seed: int, m: int, n: int) -> tuple[U64, U64]:
    """Vectors w (m) and v (n) of a seed, uniform in 1 .. PRIME - 1: with no 0, a single wrong element always shows."""
    w = random_words(stream_key(seed, "w"), 0, m) % np.uint64(PRIME - 1) + np.uint64(1)
    v = random_words(stream_key(seed, "v"), 0, n) % np.uint64(PRIME - 1) + np.uint64(1)
    return w, v


def _halves(vector: U64) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], ...]:
    low = (vector & np.uint64((1 << _HALF_BITS) - 1)).astype(np.float64)
    return low, (vector >> np.uint64(_HALF_BITS)).astype(np.float64)


def _join(low: I64, high: I64) -> U64:
    """low + 2^16 high modulo PRIME."""
    residue = low % np.int64(PRIME) + (high % np.int64(PRIME) << np.int64(_HALF_BITS))
    return (residue % np.int64(PRIME)).astype(np.uint64)


def _is_small(block: I64, terms: int) -> bool:
    largest = max(int(block.max(initial=0)), -int(block.min(initial=0)))
    return largest * terms <= _FAST_LIMIT


def times_vector(matrix: I64, vector: U64) -> U64:
    """matrix @ vector modulo PRIME."""
    out = np.empty(matrix.shape[0], dtype=np.uint64)
    low, high = _halves(vector)
    rows = max(1, _BLOCK // max(1, matrix.shape[1]))
    for begin in range(0, matrix.shape[0], rows):
        block = matrix[begin : begin + rows]
        if _is_small(block, block.shape[1]):
            wide = block.astype(np.float64)
            out[begin : begin + rows] = _join((wide @ low).astype(np.int64), (wide @ high).astype(np.int64))
            continue
        # Residues are below 2^32, so each product and each sum of fewer than 2^32 terms fits.
        residues = np.mod(block, np.int64(PRIME)).astype(np.uint64)
        out[begin : begin + rows] = (residues * vector % np.uint64(PRIME)).sum(axis=1, dtype=np.uint64)
    return out % np.uint64(PRIME)


def vector_times(vector: U64, matrix: I64) -> U64:
    """vector @ matrix modulo PRIME."""
    out = np.zeros(matrix.shape[1], dtype=np.uint64)
    low, high = _halves(vector)
    rows = max(1, _BLOCK // max(1, matrix.shape[1]))
    for begin in range(0, matrix.shape[0], rows):
        block, part = matrix[begin : begin + rows], slice(begin, begin + rows)
        if _is_small(block, block.shape[0]):
            wide = block.astype(np.float64)
            out += _join((low[part] @ wide).astype(np.int64), (high[part] @ wide).astype(np.int64))
            continue
        residues = np.mod(block, np.int64(PRIME)).astype(np.uint64)
        weighted = residues * vector[part, None] % np.uint64(PRIME)
        out = (out + weighted.sum(axis=0, dtype=np.uint64)) % np.uint64(PRIME)
    return out % np.uint64(PRIME)


def dot(left: U64, right: U64) -> int:
    """Dot product of residues modulo PRIME."""
    return int((left * right % np.uint64(PRIME)).sum(dtype=np.uint64)) % PRIME


def bilinear(matrix: I64, w: U64, v: U64) -> int:
    """w^T matrix v modulo PRIME, in exact integers."""
    return dot(w, times_vector(matrix, v))


def expected_bilinear(a: I64, b: I64, w: U64, v: U64) -> int:
    """(w^T A)(B v) modulo PRIME: what w^T (A B) v must be.

    A wrong product passes with probability <= 2 / (PRIME - 1) (Schwartz-Zippel).
    """
    return dot(vector_times(w, a), times_vector(b, v))
