"""Right results of products, made on the host by integer arithmetic: never with the unit under test."""

from __future__ import annotations

import numpy as np

from gpu_burnin.exact import freivalds
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.operands import I64, OperandRange

# Above this many multiplications a plain int64 product takes minutes; see integer_product.
_DIRECT_LIMIT = 1 << 25
_BLOCK = 1 << 18


def integer_product(a: I64, b: I64, operands: OperandRange) -> I64:
    """The right result of A B for operands of a range, in integers; of an ieee range the rounded one.

    Rows with a single nonzero by one multiplication an element. Others, when small, by int64 products. Large
    ones in FP64, where every partial sum is an integer below 2^53 (bound proved by OperandRange.bound), and
    then certified in integer arithmetic by Freivalds' check on four challenges: a wrong product is accepted
    with probability below 2^-120. Raises ArithmeticError when the certificate fails.
    """
    m, k = a.shape
    n = b.shape[1]
    if operands.stride >= k and k > 1:
        return single_product(a, b, operands)
    if m * n * k <= _DIRECT_LIMIT or operands.bound(k) > exact.EXACT_LIMIT:
        return a @ b
    product = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    for seed in range(4):
        w, v = freivalds.challenge(seed, m, n)
        if freivalds.bilinear(product, w, v) != freivalds.expected_bilinear(a, b, w, v):
            raise ArithmeticError(f"product {m}x{n}x{k} of range {operands.name} failed its certificate")
    return product


def single_product(a: I64, b: I64, operands: OperandRange) -> I64:
    """A B where each row of A has at most one nonzero: one multiplication (and rounding) for each element."""
    places = np.abs(a).argmax(axis=1)
    factors = a[np.arange(a.shape[0]), places]
    out = np.empty((a.shape[0], b.shape[1]), dtype=np.int64)
    step = max(1, _BLOCK // b.shape[1])
    for row in range(0, a.shape[0], step):
        part = slice(row, row + step)
        out[part] = factor_products(factors[part], b[places[part]], operands.rounds_to)
    return out


def factor_products(left: I64, right: I64, rounds_to: str | None) -> I64:
    """left[i] * right[i, j], rounded where `rounds_to` names a precision (see rounded_product)."""
    if rounds_to is None:
        return left[:, None] * right
    magnitude = rounded_product(np.abs(left)[:, None], np.abs(right), rounds_to)
    return np.where((left < 0)[:, None] ^ (right < 0), -magnitude, magnitude)


def rounded_product(left: I64, right: I64, precision: str) -> I64:
    """left * right rounded to nearest even in FP32 or FP64 (IEEE 754-2019, 4.3.1), the latter divided by 2^52.

    FP32: both in [2^23, 2^24), so the product is in [2^46, 2^48) and loses its last 23 or 24 bits. FP64: both
    in [2^52, 2^52.5], so the product is in [2^104, 2^105] and loses its last 52 bits. Zeros stay.
    """
    if precision == "fp32":
        product = left * right
        lost = np.where(product >= np.int64(1 << 47), np.int64(24), np.int64(23))
        return _round_half_even(product >> lost, product & ((np.int64(1) << lost) - np.int64(1)), lost) << lost
    # 53-bit factors in digits of 27 bits: left * right = high 2^54 + middle 2^27 + low, each below 2^55.
    digit = np.int64((1 << 27) - 1)
    left_high, left_low = left >> np.int64(27), left & digit
    right_high, right_low = right >> np.int64(27), right & digit
    middle = left_high * right_low + left_low * right_high
    rest = left_low * right_low + ((middle & np.int64((1 << 25) - 1)) << np.int64(27))
    quotient = (left_high * right_high << np.int64(2)) + (middle >> np.int64(25)) + (rest >> np.int64(52))
    return _round_half_even(quotient, rest & np.int64((1 << 52) - 1), np.int64(52))


def _round_half_even(quotient: I64, remainder: I64, lost: I64 | np.int64) -> I64:
    """quotient + remainder / 2^lost, rounded to the nearest integer, ties to even."""
    half = np.int64(1) << (lost - np.int64(1))
    up = (remainder > half) | ((remainder == half) & (quotient & np.int64(1) == 1))
    rounded: I64 = quotient + up.astype(np.int64)
    return rounded
