"""Exact products: operands from a counter, ranges with their bounds, powers of two on rows and columns.

Operands are integers so small that every partial sum of a dot product, in any order, is exactly
representable in the accumulator. There is then one right answer, the same on every GPU and on the CPU, and
no tolerance. Figures: an FP32 accumulator holds integers up to 2^24, FP64 up to 2^53, INT32 up to 2^31 - 1
(IEEE 754-2019, table 3.5); tensor cores keep at least 23 fraction bits for FP32 output, Hopper about 13
for FP8. The digest of a result is in digest.py, Freivalds' check in freivalds.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
I16 = NDArray[np.int16]

MASK64 = (1 << 64) - 1
# Increment and multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
# The largest prime below 2^32: above 2^31, and the product of two residues still fits in 64 bits.
PRIME = 4294967291
# The longest dot product for which the operand ranges below are proved.
MAX_K = 4096
# Elements of an operand that are made together.
_BLOCK = 1 << 15
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
# Exponents e of the smallest normal number 2^e of the operand type, and of the largest power of two 2^e such
# that every number below 2^(e+1) with the type's significand is finite (IEEE 754-2019 table 3.5; OCP 8-bit
# floating point 1.0: E4M3 ends at 448, so 2^8 is left out). INT8 has no exponent.
_OPERAND_EXPONENTS: dict[str, tuple[int, int]] = {
    "fp64": (-1022, 1023),
    "fp32": (-126, 127),
    "tf32": (-126, 127),
    "bf16": (-126, 127),
    "fp16": (-14, 15),
    "fp8_e4m3": (-6, 7),
}


@dataclass(frozen=True)
class OperandRange:
    """Bounds of the operands: |a| <= ra, |b| <= rb; never negative when `signed` is False.

    With `stride` s > 1 only every s-th element of a row of A, starting at another column in each row, is
    not zero. `rounds_to` names the precision of an ieee range: |a| >= low_a and |b| >= low_b have full
    mantissas, there is one product in a dot product, and the result is that product rounded to nearest even.
    B carries 2^-shift, so that the rounded product is an integer of magnitude up to 2^53.
    """

    name: str
    ra: int
    rb: int
    signed: bool = True
    stride: int = 1
    rounds_to: str | None = None
    low_a: int = 0
    low_b: int = 0
    shift: int = 0

    def bound(self, k: int) -> int:
        """Largest possible sum of |a b| over a dot product of length k: a bound on every partial sum in any order."""
        return -(-k // min(self.stride, k)) * self.ra * self.rb >> self.shift


# floor(2^52.5): the product of two such factors is below 2^105, so it always has the unit 2^52.
_IEEE64 = 6369051672525772
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
        OperandRange("every_eighth", 4, 4, stride=8),
        OperandRange("unit_a", 1, 2),
        OperandRange("unit_b", 2, 1),
        OperandRange("unit_filled", 1, 2, signed=False),
        OperandRange("byte_filled", 127, 127, signed=False),
        OperandRange("wide_filled", (1 << 20) - 1, (1 << 20) - 1, signed=False),
        OperandRange("ieee_fp32", (1 << 24) - 1, (1 << 24) - 1, True, MAX_K, "fp32", 1 << 23, 1 << 23),
        OperandRange("ieee_fp64", _IEEE64, _IEEE64, True, MAX_K, "fp64", 1 << 52, 1 << 52, 52),
    )
}
_RANGE_NAMES: dict[str, tuple[str, ...]] = {
    "fp64": ("square", "tall_a", "tall_b", "filled", "wide", "wide_filled", "single_wide", "ieee_fp64"),
    "fp32": ("square", "tall_a", "tall_b", "filled", "fine_a", "fine_b", "single_a", "single_b", "ieee_fp32"),
    "tf32": ("square", "tall_a", "tall_b", "filled", "fine_a", "fine_b"),
    "fp16": ("square", "tall_a", "tall_b", "filled", "fine_a", "fine_b"),
    "bf16": ("square", "tall_a", "tall_b", "filled"),
    "int8": ("square", "byte", "filled", "byte_filled"),
    "fp8_e4m3": ("sparse", "every_eighth", "unit_a", "unit_b", "unit_filled"),
}


def ranges_for(precision: str) -> tuple[OperandRange, ...]:
    """Operand ranges to rotate through for a precision, in order. Raises KeyError for an unknown precision."""
    return tuple(RANGES[name] for name in _RANGE_NAMES[precision])


def is_exact(precision: str, operands: OperandRange, k: int) -> bool:
    """Whether there is one right result of length k: every operand and partial sum exactly representable.

    Of an ieee range only the one product is rounded, and only in its own precision.
    """
    if not max(operands.ra, operands.rb) <= OPERAND_LIMIT[precision]:
        return False
    if operands.rounds_to is not None:
        return operands.rounds_to == precision and k <= operands.stride and operands.bound(k) <= EXACT_LIMIT
    return operands.bound(k) <= ACCUMULATOR_LIMIT[precision]


# --- the counter-based generator ---


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


def random_words(key: int, start: int, count: int, step: int = 1) -> U64:
    """`count` words start, start + step, ... of a stream: splitmix64 by counter, so any can be made again anywhere."""
    z = _counters(start, count, step)
    z += np.uint64(key)
    return _mixed(z)


def random_rows(keys: U64, start: int, count: int, step: int = 1) -> U64:
    """Row i has the random_words of keys[i]."""
    return _mixed(keys[:, None] + _counters(start, count, step))


def _counters(start: int, count: int, step: int) -> U64:
    z = np.arange(start + 1, start + 1 + count * step, step, dtype=np.uint64)
    z *= np.uint64(_GAMMA)
    return z


def _mixed(z: U64) -> U64:
    """`mix` of each word, in its place."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX2)
    z ^= z >> np.uint64(31)
    return z


# --- operands ---


@dataclass(frozen=True)
class Operand:
    """One matrix to fill, element (row, col) of its logical shape (rows, cols) being integer * 2^exponent.

    The integer comes from word row * cols + col of the stream `key`, see operand_values; it is zero where
    (row + col) % min(stride, cols) is not 0. The exponent is exponents[row] for axis "rows" (A) and
    exponents[col] for axis "cols" (B); None means 0.
    """

    key: int
    bound: int
    signed: bool
    stride: int = 1
    low: int = 0
    exponents: I16 | None = None
    axis: str = "rows"


def operand_values(key: int, bound: int, signed: bool, start: int, count: int, low: int = 0, step: int = 1) -> I64:
    """`count` integers at flat positions start, start + step, ... of a stream, low <= |v| <= bound.

    With low = 0: word % (2 bound + 1) - bound, or word % (bound + 1) when not signed. With low > 0 and
    width = bound - low + 1: x = word % (2 width) is low + x for x < width, else -(low + x - width); not
    signed: low + word % width.
    """
    words = random_words(key, start, count, step)
    width = bound - low + 1
    if low == 0:
        span, offset = (2 * bound + 1, bound) if signed else (width, 0)
        return _modulo(words, span) - np.int64(offset)
    if not signed:
        return _modulo(words, width) + np.int64(low)
    x = _modulo(words, 2 * width)
    return np.where(x < width, x + np.int64(low), np.int64(width - low) - x)


def _modulo(words: U64, span: int) -> I64:
    """words % span; NumPy divides by a scalar much faster than it takes remainders."""
    quotient = words // np.uint64(span)
    quotient *= np.uint64(span)
    words -= quotient
    return words.view(np.int64)


def operand_rows(
    key: int, bound: int, signed: bool, stride: int, first_row: int, rows: int, cols: int, low: int = 0
) -> I64:
    """Integers of rows first_row .. of an operand with `cols` columns; zero where (row + column) % stride is not 0."""
    stride = min(stride, cols)
    if stride == 1:
        return operand_values(key, bound, signed, first_row * cols, rows * cols, low).reshape(rows, cols)
    values = np.zeros((rows, cols), dtype=np.int64)
    for row in range(rows):  # only what is not zero is made: the rest would take nearly all of the time
        first = -(first_row + row) % stride
        start, count = (first_row + row) * cols + first, -(-(cols - first) // stride)
        values[row, first::stride] = operand_values(key, bound, signed, start, count, low, stride)
    return values


def operand_for(operands: OperandRange, side: str, seed: int, exponents: I16 | None = None) -> Operand:
    """The operand of one side, "a" or "b", for a seed; only A is sparse."""
    key = stream_key(seed, side)
    if side == "a":
        return Operand(key, operands.ra, operands.signed, operands.stride, operands.low_a, exponents, "rows")
    return Operand(key, operands.rb, operands.signed, 1, operands.low_b, exponents, "cols")


def operand_blocks(operand: Operand, rows: int, cols: int) -> Iterator[tuple[slice, I64]]:
    """The integers of an operand by groups of rows, so small that they stay in a core's cache."""
    o, step = operand, max(1, _BLOCK // cols)
    for row in range(0, rows, step):
        part = slice(row, min(row + step, rows))
        yield part, operand_rows(o.key, o.bound, o.signed, o.stride, row, part.stop - row, cols, o.low)


def operand_integers(operand: Operand, rows: int, cols: int) -> I64:
    """The integers of an operand (rows x cols), without its powers of two."""
    out = np.empty((rows, cols), dtype=np.int64)
    for part, block in operand_blocks(operand, rows, cols):
        out[part] = block
    return out


def operand_a(operands: OperandRange, seed: int, m: int, k: int) -> I64:
    """The integers of A (m x k) for this seed."""
    return operand_integers(operand_for(operands, "a", seed), m, k)


def operand_b(operands: OperandRange, seed: int, k: int, n: int) -> I64:
    """The integers of B (k x n) for this seed; B is never sparse."""
    return operand_integers(operand_for(operands, "b", seed), k, n)


# --- powers of two on rows and columns ---


@dataclass(frozen=True)
class Scale:
    """Element (i, j) of a result carries 2^(rows[i] + cols[j]); the digest is that of the result without them."""

    rows: I16
    cols: I16


def exponent_span(precision: str, operands: OperandRange, side: str) -> tuple[int, int]:
    """Least and greatest exponent for a row of A (side "a") or a column of B ("b"), both included.

    Scaling keeps a product exact: all terms of one dot product share the factor 2^(r + c), and binary
    floating point commutes with it as long as nothing leaves the normal range; so does an adder that aligns
    its terms to the largest exponent, as tensor cores have. Conditions, with e_min and e_max of the type:
    - operands: the unit 2^x (2^(x - shift) for B of an ieee range) is normal, and bound * 2^x below
      2^(e_max + 1);
    - partial sums are multiples of 2^(r + c), so r + c >= e_min of the accumulator, and at most
      bound(K) 2^(r + c) < 2^(e_max + 1). Each side gets half of that room, so any row goes with any column.
    Raises KeyError for INT8, which has no exponents.
    """
    bound, shift = (operands.ra, 0) if side == "a" else (operands.rb, operands.shift)
    lowest, highest = _OPERAND_EXPONENTS[precision]
    accumulator_lowest, accumulator_highest = _OPERAND_EXPONENTS["fp64" if precision == "fp64" else "fp32"]
    result_bits = operands.bound(MAX_K).bit_length()
    least = max(lowest + shift, -(-accumulator_lowest // 2))
    greatest = min(highest + 1 - bound.bit_length() + shift, (accumulator_highest + 1 - result_bits) // 2)
    return least, greatest


def scale_exponents(precision: str, operands: OperandRange, side: str, seed: int, count: int) -> I16:
    """Random exponents of `count` rows of A ("a") or columns of B ("b") for a seed, within exponent_span."""
    least, greatest = exponent_span(precision, operands, side)
    words = random_words(stream_key(seed, f"exponents {side}"), 0, count)
    return (_modulo(words, greatest - least + 1) + least).astype(np.int16)


def can_scale(precision: str) -> bool:
    """Whether operands of this precision have an exponent."""
    return precision in _OPERAND_EXPONENTS


# --- full-range random operands ---

# Storage -> (exponent bits, fraction bits, exponent bits that vary around the bias in random_bits).
FORMATS: dict[str, tuple[int, int, int]] = {
    "fp64": (11, 52, 7),
    "fp32": (8, 23, 6),
    "bf16": (8, 7, 6),
    "fp16": (5, 10, 5),
    "fp8_e4m3": (4, 3, 4),
}


def random_bits(storage: str, key: int, start: int, count: int, positive: bool = False) -> NDArray[np.unsignedinteger]:
    """Bits of random finite numbers at flat positions start .. start+count-1, in unsigned integers of their size.

    Element bits are the low bits of random_words. Then, in formats with more than five exponent bits, the
    exponent field becomes bias - 2^(v-1) + its low v bits (v = 7 for FP64, 6 for FP32 and BF16), so that no
    product of MAX_K terms overflows; in FP16 and E4M3 the top exponent bit is cleared where the field is all
    ones (E4M3: where the number is NaN). `positive` clears the sign. Integer types keep all bits.
    """
    words = random_words(key, start, count)
    if storage not in FORMATS:
        size = {"int8": 1, "int32": 4}[storage]
        keep = MASK64 >> (64 - 8 * size + int(positive))
        return (words & np.uint64(keep)).astype(f"u{size}")
    exponent_bits, fraction_bits, varying = FORMATS[storage]
    ones = (1 << exponent_bits) - 1
    field = (words >> np.uint64(fraction_bits)) & np.uint64(ones)
    fraction = words & np.uint64((1 << fraction_bits) - 1)
    if varying < exponent_bits:
        field = (field & np.uint64((1 << varying) - 1)) + np.uint64((ones >> 1) - (1 << (varying - 1)))
    else:
        special = field == np.uint64(ones)
        if storage == "fp8_e4m3":
            special &= fraction == np.uint64((1 << fraction_bits) - 1)
        field = np.where(special, np.uint64(ones >> 1), field)
    sign = words & np.uint64(0 if positive else 1 << (exponent_bits + fraction_bits))
    bits = sign | (field << np.uint64(fraction_bits)) | fraction
    narrow: NDArray[np.unsignedinteger] = bits.astype(f"u{(1 + exponent_bits + fraction_bits) // 8}")
    return narrow


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
