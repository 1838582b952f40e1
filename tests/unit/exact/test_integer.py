"""Right results by integer arithmetic: rounding proved against fractions, large products against int64."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from gpu_burnin.exact import integer
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.operands import RANGES


def _factors(low: int, bound: int) -> list[int]:
    """Random factors of full length that end in 0 to all zeros: paired from both ends, many products are ties."""
    chance = random.Random(5)
    zeros = [z for z in range(low.bit_length() - 1) for _ in range(120)]
    ending = [(chance.randint(low, bound) >> z | 1) << z for z in zeros]
    return [x if low <= x <= bound else low for x in ending] + [low, bound, bound]


def _check(precision: str, low: int, bound: int, results: int) -> int:
    """Compare with fractions; returns how many products lay right between two results."""
    left = _factors(low, bound)
    right = left[::-1]
    got = integer.rounded_product(np.array(left), np.array(right), precision)
    ties = 0
    for x, y, z in zip(left, right, got.tolist(), strict=True):
        unit = 1 << (x * y).bit_length() - results if precision == "fp32" else 1 << 52
        ties += 2 * (x * y % unit) == unit
        assert z == round(Fraction(x * y, unit)) * (unit if precision == "fp32" else 1)  # Python rounds to even
        kind = np.float32 if precision == "fp32" else np.float64
        assert float(kind(x) * kind(y)) == math.ldexp(z, 0 if precision == "fp32" else 52), "as the processor does"
    return ties


def test_fp32_products_are_rounded_to_nearest_even() -> None:
    assert _check("fp32", 1 << 23, (1 << 24) - 1, 24) > 50


def test_fp64_products_are_rounded_to_nearest_even() -> None:
    bound = RANGES["ieee_fp64"].ra
    assert bound**2 <= 1 << 105 < (bound + 1) ** 2
    assert _check("fp64", 1 << 52, bound, 53) > 50


@pytest.mark.parametrize("name", ["single_a", "single_wide", "ieee_fp32", "ieee_fp64"])
def test_rows_with_one_nonzero(name: str) -> None:
    operands = RANGES[name]
    a, b = exact.operand_a(operands, 1, 40, 32), exact.operand_b(operands, 2, 32, 24)
    plain = a.astype(object) @ b.astype(object)
    got = integer.integer_product(a, b, operands)
    if operands.rounds_to is None:
        assert np.array_equal(got, plain.astype(np.int64))
    else:
        digits = 53 if name == "ieee_fp64" else 24
        for mine, true in zip(got.reshape(-1).tolist(), plain.reshape(-1), strict=True):
            error = abs((mine << operands.shift) - true)
            assert 0 <= error <= abs(true) >> digits
        assert (np.sign(got) == np.sign(plain.astype(np.float64))).all()


def test_large_products_carry_an_integer_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = RANGES["wide"]
    a, b = exact.operand_a(operands, 1, 32, 32), exact.operand_b(operands, 1, 32, 32)
    monkeypatch.setattr(integer, "_DIRECT_LIMIT", 0)
    assert np.array_equal(integer.integer_product(a, b, operands), a @ b)
    monkeypatch.setattr(integer.freivalds, "expected_bilinear", lambda *_: -1)
    with pytest.raises(ArithmeticError, match="certificate"):
        integer.integer_product(a, b, operands)
