"""Exact products: operands from a counter, a keyed digest of integer results, and Freivalds' check.

Operands are integers so small that every partial sum of a dot product, in any order, is exactly
representable in the accumulator. There is then one right answer, the same on every GPU and on the CPU, and
no tolerance. Figures: an FP32 accumulator holds integers up to 2^24, FP64 up to 2^53, INT32 up to 2^31 - 1
(IEEE 754-2019, table 3.5); tensor cores keep at least 23 fraction bits for FP32 output, Hopper about 13
for FP8 (project design, section 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

MASK64 = (1 << 64) - 1
# Increment and multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
# The largest prime below 2^32: above 2^31, and the product of two residues still fits in 64 bits.
PRIME = 4294967291
# The longest dot product for which the operand ranges below are proved.
MAX_K = 4096
# Above this magnitude a double is no longer one definite integer.
EXACT_LIMIT = 1 << 53

ACCUMULATOR_LIMIT: dict[str, int] = {
    "fp64": 1 << 53,
    "fp32": 1 << 24,
    "tf32": 1 << 24,
    "bf16": 1 << 24,
    "fp16": 1 << 24,
    "int8": (1 << 31) - 1,
    "fp8_e4m3": 1 << 13,
}
# Largest n such that every integer in [-n, n] is representable in the operand type (INT8 is kept symmetric).
OPERAND_LIMIT: dict[str, int] = {
    "fp64": 1 << 53,
    "fp32": 1 << 24,
    "tf32": 1 << 11,
    "bf16": 1 << 8,
    "fp16": 1 << 11,
    "int8": 127,
    "fp8_e4m3": 1 << 4,
}
PRECISIONS: tuple[str, ...] = tuple(ACCUMULATOR_LIMIT)


@dataclass(frozen=True)
class OperandRange:
    """Bounds of the operands: |a| <= ra, |b| <= rb; never negative when `signed` is False.

    With `stride` s > 1 only every s-th element of a row of A, starting at another column in each row, is
    not zero.
    """

    name: str
    ra: int
    rb: int
    signed: bool = True
    stride: int = 1

    def bound(self, k: int) -> int:
        """Largest possible sum of |a b| over a dot product of length k: a bound on every partial sum in any order."""
        return -(-k // min(self.stride, k)) * self.ra * self.rb


RANGES: dict[str, OperandRange] = {
    r.name: r
    for r in (
        OperandRange("square", 63, 63),
        OperandRange("tall_a", 255, 16),
        OperandRange("tall_b", 16, 255),
        OperandRange("filled", 63, 63, signed=False),
        OperandRange("fine_a", 2047, 2),
        OperandRange("fine_b", 2, 2047),
        OperandRange("single_a", (1 << 24) - 1, 1, stride=MAX_K),
        OperandRange("single_b", 1, (1 << 24) - 1, stride=MAX_K),
        OperandRange("byte", 127, 127),
        OperandRange("wide", (1 << 20) - 1, (1 << 20) - 1),
        OperandRange("single_wide", (1 << 53) - 1, 1, stride=MAX_K),
        OperandRange("sparse", 15, 15, stride=128),
    )
}
_RANGE_NAMES: dict[str, tuple[str, ...]] = {
    "fp64": ("square", "tall_a", "tall_b", "filled", "wide", "single_wide"),
    "fp32": ("square", "tall_a", "tall_b", "filled", "fine_a", "fine_b", "single_a", "single_b"),
    "tf32": ("square", "tall_a", "tall_b", "filled", "fine_a", "fine_b"),
    "fp16": ("square", "tall_a", "tall_b", "filled", "fine_a", "fine_b"),
    "bf16": ("square", "tall_a", "tall_b", "filled"),
    "int8": ("square", "byte", "filled"),
    "fp8_e4m3": ("sparse",),
}


def ranges_for(precision: str) -> tuple[OperandRange, ...]:
    """Operand ranges to rotate through for a precision, in order. Raises KeyError for an unknown precision."""
    return tuple(RANGES[name] for name in _RANGE_NAMES[precision])


def is_exact(precision: str, operands: OperandRange, k: int) -> bool:
    """Whether every operand and every partial sum of length k is exactly representable in this precision."""
    fits = max(operands.ra, operands.rb) <= OPERAND_LIMIT[precision]
    return fits and operands.bound(k) <= ACCUMULATOR_LIMIT[precision]


def mix(value: int) -> int:
    """The output function of splitmix64 on one 64-bit integer: a bijection."""
    value &= MASK64
    value = ((value ^ (value >> 30)) * _MIX1) & MASK64
    value = ((value ^ (value >> 27)) * _MIX2) & MASK64
    return value ^ (value >> 31)


def stream_key(seed: int, stream: str) -> int:
    """64-bit key of one named stream ("a", "b", "w", "v", ...) of a seed."""
    key = mix(seed + _GAMMA)
    for byte in stream.encode():
        key = mix(key ^ (byte + _GAMMA))
    return key


def random_words(key: int, start: int, count: int) -> U64:
    """Words start .. start+count-1 of a stream: splitmix64 by counter, so any part can be made again anywhere."""
    counter = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z = counter * np.uint64(_GAMMA) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX2)
    return z ^ (z >> np.uint64(31))


def operand_values(key: int, bound: int, signed: bool, start: int, count: int) -> I64:
    """Integers in [-bound, bound] (or [0, bound]) at flat positions start .. start+count-1 of a stream."""
    span = 2 * bound + 1 if signed else bound + 1
    low = bound if signed else 0
    return (random_words(key, start, count) % np.uint64(span)).astype(np.int64) - np.int64(low)


def operand_rows(key: int, bound: int, signed: bool, stride: int, first_row: int, rows: int, cols: int) -> I64:
    """Rows first_row .. of a row-major operand with `cols` columns; zero where (row + column) % stride is not 0."""
    values = operand_values(key, bound, signed, first_row * cols, rows * cols).reshape(rows, cols)
    if stride > 1:
        place = np.arange(first_row, first_row + rows)[:, None] + np.arange(cols)[None, :]
        values[place % min(stride, cols) != 0] = 0
    return values


def operand_a(operands: OperandRange, seed: int, m: int, k: int) -> I64:
    """The integers of A (m x k) for this seed."""
    return operand_rows(stream_key(seed, "a"), operands.ra, operands.signed, operands.stride, 0, m, k)


def operand_b(operands: OperandRange, seed: int, k: int, n: int) -> I64:
    """The integers of B (k x n) for this seed; B is never sparse."""
    return operand_rows(stream_key(seed, "b"), operands.rb, operands.signed, 1, 0, k, n)


# --- digest ---


@dataclass(frozen=True)
class Digest:
    """Digest of a result, and how many elements were NaN or Inf, or no integer of magnitude up to 2^53."""

    value: int
    nonfinite: int = 0
    noninteger: int = 0

    @property
    def clean(self) -> bool:
        """No element was left out of the digest."""
        return self.nonfinite == 0 and self.noninteger == 0


def digest_keys(key: int, start: int, count: int) -> U64:
    """32-bit keys of words start .. start+count-1: the lowbias32 mixer (C. Wellons, 2018), 8 operations a word."""
    x = np.arange(start, start + count, dtype=np.uint64).astype(np.uint32) + np.uint32(key & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return (x ^ (x >> np.uint32(16))).astype(np.uint64)


def digest_integers(values: I64, key: int, start: int = 0) -> int:
    """Multilinear digest, 32 x 32 -> 64 bits, summed modulo 2^64, of integers at flat positions start,
    start+1, ...

    Each integer is two signed 32-bit digits, low and high; the high one is 0 for |v| < 2^31, so that
    32-bit and 64-bit results that hold the same integers have the same digest. Were the keys random, two
    different results would collide with probability at most 2^-32: a digit difference d, 0 < |d| < 2^32,
    gives 2^32 distinct products d * key modulo 2^64, of which one at most cancels the rest.
    """
    total = 0
    flat = values.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        part = flat[begin : begin + _CHUNK]
        keys = digest_keys(key, 2 * (start + begin), 2 * part.size)
        low = part.astype(np.int32)
        high = (part - low) >> np.int64(32)
        words = low.astype(np.int64).view(np.uint64) * keys[0::2] + high.view(np.uint64) * keys[1::2]
        total += int(words.sum(dtype=np.uint64))
    return total & MASK64


def digest(values: NDArray[Any], key: int) -> Digest:
    """Digest of a result in its own type (float32, float64, int32, int64); -0 reads as 0."""
    integers, nonfinite, noninteger = to_integers(values)
    return Digest(digest_integers(integers, key), nonfinite, noninteger)


def to_integers(values: NDArray[Any]) -> tuple[I64, int, int]:
    """The integers in an array, 0 where there is none, with the counts of non-finite and non-integer elements."""
    if values.dtype.kind == "i":
        return values.astype(np.int64, copy=False), 0, 0
    with np.errstate(invalid="ignore"):  # a signalling NaN, made by a fault
        wide = values.astype(np.float64, copy=False)
    finite = np.isfinite(wide)
    safe = np.where(finite, wide, 0.0)
    integral = (np.rint(safe) == safe) & (np.abs(safe) <= EXACT_LIMIT)
    integers = np.where(integral, safe, 0.0).astype(np.int64)
    return integers, int(finite.size - finite.sum()), int((~integral).sum())


# --- Freivalds ---

_CHUNK = 1 << 20


def challenge(seed: int, m: int, n: int) -> tuple[U64, U64]:
    """Vectors w (m) and v (n) of a seed, uniform in 1 .. PRIME - 1: with no 0, a single wrong element always shows."""
    w = random_words(stream_key(seed, "w"), 0, m) % np.uint64(PRIME - 1) + np.uint64(1)
    v = random_words(stream_key(seed, "v"), 0, n) % np.uint64(PRIME - 1) + np.uint64(1)
    return w, v


def times_vector(matrix: I64, vector: U64) -> U64:
    """matrix @ vector modulo PRIME. Residues are below 2^32, so each product and each sum of < 2^32 terms fits."""
    out = np.empty(matrix.shape[0], dtype=np.uint64)
    rows = max(1, _CHUNK // max(1, matrix.shape[1]))
    for begin in range(0, matrix.shape[0], rows):
        residues = np.mod(matrix[begin : begin + rows], np.int64(PRIME)).astype(np.uint64)
        out[begin : begin + rows] = (residues * vector % np.uint64(PRIME)).sum(axis=1, dtype=np.uint64)
    return out % np.uint64(PRIME)


def vector_times(vector: U64, matrix: I64) -> U64:
    """vector @ matrix modulo PRIME; chunked by rows like times_vector."""
    out = np.zeros(matrix.shape[1], dtype=np.uint64)
    rows = max(1, _CHUNK // max(1, matrix.shape[1]))
    for begin in range(0, matrix.shape[0], rows):
        residues = np.mod(matrix[begin : begin + rows], np.int64(PRIME)).astype(np.uint64)
        weighted = residues * vector[begin : begin + rows, None] % np.uint64(PRIME)
        out = (out + weighted.sum(axis=0, dtype=np.uint64)) % np.uint64(PRIME)
    return out


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
