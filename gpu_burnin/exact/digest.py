"""The digest of a result: multilinear, keyed, on integers, so common to the CPU, every GPU and every precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.exact.operands import EXACT_LIMIT, I64, MASK64, U64, Digest, Scale

U32 = NDArray[np.uint32]
# Elements handled at a time: the temporary arrays (512 KiB at most) stay in a core's second-level cache.
_BLOCK = 1 << 15
_INT32_MAX = (1 << 31) - 1


def digest_keys(key: int, start: int, count: int, step: int = 1) -> U32:
    """32-bit keys of words start, start + step, ...: the lowbias32 mixer (C. Wellons, 2018), 8 operations a word."""
    x = np.arange(start, start + step * count, step, dtype=np.uint64).astype(np.uint32)
    x += np.uint32(key & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def low_keys(key: int, start: int, count: int) -> U32:
    """Keys of the low digits of elements start .. start+count-1."""
    return digest_keys(key, 2 * start, count, 2)


def digest_integers(values: I64, key: int) -> int:
    """Multilinear digest, 32 x 32 -> 64 bits, summed modulo 2^64, of integers at flat positions 0, 1, ...

    Each integer is two signed 32-bit digits, low and high; the high one is 0 for |v| < 2^31, so that
    32-bit and 64-bit results that hold the same integers have the same digest. Digit d of element i is
    multiplied by the key of word 2 i + d. Were the keys random, two different results would collide with
    probability at most 2^-32: a digit difference d, 0 < |d| < 2^32, gives 2^32 distinct products d * key
    modulo 2^64, of which one at most cancels the rest.
    """
    flat = values.reshape(-1)
    total = 0
    for begin in range(0, flat.size, _BLOCK):
        total += _two_digits(flat[begin : begin + _BLOCK], key, begin)
    return total & MASK64


def _two_digits(values: I64, key: int, start: int) -> int:
    low = values.astype(np.int32)
    high = (values - low) >> np.int64(32)
    total = _weighted(low, low_keys(key, start, values.size))
    if high.any():
        total += _weighted(high, digest_keys(key, 2 * start + 1, values.size, 2))
    return total


def _weighted(digits: NDArray[Any], keys: NDArray[Any]) -> int:
    """Sum of digit * key modulo 2^64, digits as signed integers."""
    words = digits.astype(np.int64).view(np.uint64)
    return int(np.dot(words, keys.astype(np.uint64, copy=False)))


def digest_raw(bits: NDArray[Any], key: int) -> int:
    """The same digest of the raw bits of a result (unsigned integers of 4 or 8 bytes).

    The low and the high 32 bits of an element, each read as a signed 32-bit integer, are its digits. For
    INT32 it equals digest_integers; for floats it also tells -0 from 0 and one NaN from another.
    """
    flat = np.ascontiguousarray(bits).reshape(-1)
    total = 0
    for begin in range(0, flat.size, _BLOCK):
        part = flat[begin : begin + _BLOCK]
        if part.itemsize == 4:
            total += _weighted(part.view(np.int32), low_keys(key, begin, part.size))
            continue
        signed = part.view(np.int64)
        total += _weighted(signed.astype(np.int32), low_keys(key, begin, part.size))
        total += _weighted(signed >> np.int64(32), digest_keys(key, 2 * begin + 1, part.size, 2))
    return total & MASK64


def digest(values: NDArray[Any], key: int, scale: Scale | None = None, keys: U64 | None = None) -> Digest:
    """Digest of a result in its own type (float32, float64, int32, int64); -0 reads as 0.

    `scale` names the powers of two to take away first (then `values` is a matrix). `keys`, the low_keys of
    all elements, saves making them again.
    """
    total = nonfinite = noninteger = 0
    narrow = _Narrow()
    for begin, part in unscaled_blocks(values, scale):
        words = narrow.words(part)
        if words is not None:
            weights = low_keys(key, begin, part.size).astype(np.uint64) if keys is None else keys[begin:][: part.size]
            total += int(np.dot(words, weights))
            continue
        integers, bad, odd = to_integers(part)
        total += _two_digits(integers, key, begin)
        nonfinite += bad
        noninteger += odd
    return Digest(total & MASK64, nonfinite, noninteger)


class _Narrow:
    """Reads blocks whose values all fit in 32 bits, the common case; its arrays serve block after block."""

    def __init__(self) -> None:
        self._low = np.empty(0, dtype=np.int32)
        self._back = np.empty(0, dtype=np.float64)
        self._same = np.empty(0, dtype=np.bool_)
        self._words = np.empty(0, dtype=np.int64)

    def words(self, values: NDArray[Any]) -> U64 | None:
        """All values as 64-bit words, or None when any is none of 32 bits: NaN, Inf, a fraction, 2^31 and more."""
        size = values.size
        if self._low.size < size or self._back.dtype != values.dtype:
            self._low, self._same = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.bool_)
            self._words, self._back = np.empty(size, dtype=np.int64), np.empty(size, dtype=values.dtype)
        low, words = self._low[:size], self._words[:size]
        with np.errstate(invalid="ignore"):  # some processors saturate here, others give the least integer
            np.copyto(low, values, casting="unsafe")
        np.copyto(self._back[:size], low, casting="unsafe")
        np.equal(self._back[:size], values, out=self._same[:size])
        if not self._same[:size].all():
            return None
        # A processor that saturates would let 2^31 pass for 2^31 - 1 in FP32, which rounds it back up.
        if values.dtype == np.float32 and int(low.max()) == _INT32_MAX:
            return None
        np.copyto(words, low)
        return words.view(np.uint64)


def unscaled_blocks(values: NDArray[Any], scale: Scale | None) -> Iterator[tuple[int, NDArray[Any]]]:
    """Blocks of a result without its powers of two, flat, each with the flat position of its first element.

    Multiplying FP64 by the inverse of each factor is exact, unless the value is far outside of what a right
    product can be. Then it may end as 0; such an element becomes 0.5, which is no integer either.
    """
    if scale is None:
        flat = np.ascontiguousarray(values).reshape(-1)
        for begin in range(0, flat.size, _BLOCK):
            yield begin, flat[begin : begin + _BLOCK]
        return
    count, width = values.shape
    down = np.ldexp(1.0, -scale.rows.astype(np.int32))[:, None]
    across = np.ldexp(1.0, -scale.cols.astype(np.int32))[None, :]
    step = max(1, _BLOCK // width)
    for row in range(0, count, step):
        with np.errstate(all="ignore"):  # NaN, Inf and overflow are made by faults, and counted
            part = values[row : row + step].astype(np.float64)
            lost = part != 0
            part *= down[row : row + step]
            part *= across
        lost &= part == 0
        if lost.any():
            part[lost] = 0.5
        nonfinite = ~np.isfinite(part)
        if nonfinite.any():  # finite values that overflowed are no integers, but not Inf either
            part[nonfinite & np.isfinite(values[row : row + step])] = 0.5
        yield row * width, part.reshape(-1)


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


def integers_of(values: NDArray[Any], scale: Scale | None = None) -> I64:
    """The integers of a whole matrix without its powers of two, 0 where there is none."""
    out = np.empty(values.size, dtype=np.int64)
    narrow = _Narrow()
    for begin, part in unscaled_blocks(values, scale):
        words = narrow.words(part)
        out[begin : begin + part.size] = to_integers(part)[0] if words is None else words.view(np.int64)
    return out.reshape(values.shape)
