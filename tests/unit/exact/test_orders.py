"""Every range gives one result whatever the order of summation: simulated adders against plain integers.

The adders: FP32 or FP64 forward, backward and pairwise; a matrix unit that takes blocks of products, aligns them
and the running sum to the largest exponent, cuts each to a number of fraction bits and adds the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.integer import integer_product
from gpu_burnin.exact.operands import MAX_K, OperandRange

ALL = [(p, r) for p in exact.PRECISIONS for r in exact.ranges_for(p) if r.rounds_to is None]
# Fraction bits that matrix units keep while they add: tensor cores since Hopper, of FP8.
_FRACTION_BITS = {"fp8_e4m3": 13}
_DOT_PRODUCTS = 6


def _forward(terms: np.ndarray) -> np.ndarray:
    return np.cumsum(terms, axis=1, dtype=terms.dtype)[:, -1]


def _backward(terms: np.ndarray) -> np.ndarray:
    return _forward(terms[:, ::-1])


def _pairwise(terms: np.ndarray) -> np.ndarray:
    while terms.shape[1] > 1:
        terms = (terms[:, 0::2] + terms[:, 1::2]).astype(terms.dtype)
    return terms[:, 0]


def _blocked(block: int, fraction_bits: int) -> Callable[[np.ndarray], np.ndarray]:
    """A matrix unit: `block` products and the sum at a time, each cut to fraction_bits below the largest."""

    def add(terms: np.ndarray) -> np.ndarray:
        total = np.zeros(terms.shape[0], dtype=np.float64)
        for start in range(0, terms.shape[1], block):
            group = np.column_stack([total, terms[:, start : start + block].astype(np.float64)])
            largest = np.abs(group).max(axis=1)
            exponent = np.frexp(np.where(largest > 0, largest, 1.0))[1] - 1
            unit = np.ldexp(1.0, exponent - fraction_bits)[:, None]
            # The units of the kept terms add up exactly in a double; the result is cut once more.
            total = (np.trunc(group / unit) * unit).sum(axis=1)
            largest = np.abs(total)
            exponent = np.frexp(np.where(largest > 0, largest, 1.0))[1] - 1
            unit = np.ldexp(1.0, exponent - fraction_bits)
            total = np.trunc(total / unit) * unit
        return total

    return add


def _orders(precision: str) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    orders: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "forward": _forward, "backward": _backward, "pairwise": _pairwise,
    }  # fmt: skip
    bits = _FRACTION_BITS.get(precision, 23)
    if precision not in ("fp64", "int8"):
        orders |= {f"blocks of {size}": _blocked(size, bits) for size in (4, 16, 32)}
    return orders


def _vectors(operands: OperandRange) -> tuple[np.ndarray, np.ndarray]:
    """Rows of A and columns of B, the latter as rows: random ones, and the worst that the bounds allow."""
    a = exact.operand_a(operands, 11, _DOT_PRODUCTS, MAX_K)
    b = np.ascontiguousarray(exact.operand_b(operands, 12, MAX_K, _DOT_PRODUCTS).T)
    nonzero = (np.arange(_DOT_PRODUCTS)[:, None] + np.arange(MAX_K)) % operands.stride == 0
    worst = np.where(nonzero, np.int64(operands.ra), np.int64(0))
    a[0], b[0] = worst[0], operands.rb  # every partial sum is as large as it can be
    if operands.signed:
        a[1], b[1] = worst[1], np.where(np.arange(MAX_K) < MAX_K // 2, operands.rb, -operands.rb)  # up and down again
        a[2], b[2] = worst[2], np.where(np.arange(MAX_K) % 2, operands.rb, -operands.rb)
    a[3], b[3] = worst[3], operands.rb
    a[3, np.flatnonzero(a[3])[0]] -= operands.ra > 1  # one less than the largest: all bits of it are in use
    return a, b


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "operands", "scaled"),
    [(*case, scaled) for case in ALL for scaled in (False, True) if exact.can_scale(case[0]) or not scaled],
    ids=lambda x: {True: "scaled", False: "plain"}[x] if isinstance(x, bool) else getattr(x, "name", x),
)
def test_any_order_gives_the_exact_sum(precision: str, operands: OperandRange, scaled: bool) -> None:
    a, b = _vectors(operands)
    right = [int(np.dot(x.astype(object), y.astype(object))) for x, y in zip(a, b, strict=True)]
    assert max(map(abs, right)) == operands.bound(MAX_K), "the bound is reached, not only kept"
    kind = np.int32 if precision == "int8" else np.float64 if precision == "fp64" else np.float32
    exponents = np.zeros(len(a), dtype=np.int32)
    if scaled:
        ends = [exact.exponent_span(precision, operands, side) for side in "ab"]
        sums = [ends[0][i] + ends[1][i] for i in (0, 1)]
        exponents = np.resize(np.array(sums, dtype=np.int32), len(a))  # both ends in turn
    products = a * b  # exact in int64: at most 2^53
    terms = products.astype(kind) if precision == "int8" else np.ldexp(products.astype(kind), exponents[:, None])
    for name, add in _orders(precision).items():
        sums = np.ldexp(add(terms).astype(np.float64), -exponents)
        assert sums.tolist() == right, name


def test_the_simulation_shows_ranges_that_are_too_wide() -> None:
    """The same adders on operands that break a bound: each adder must be able to fail."""
    wide = OperandRange("too wide", 511, 511)  # 4096 * 511 * 511 is beyond 2^24
    assert not exact.is_exact("fp32", wide, MAX_K)
    a, b = exact.operand_a(wide, 1, 4, MAX_K), np.ascontiguousarray(exact.operand_b(wide, 2, MAX_K, 4).T)
    a, b = np.abs(a) | 1, np.abs(b) | 1
    right = (a * b).sum(axis=1)
    for name, add in _orders("fp32").items():
        assert add((a * b).astype(np.float32)).tolist() != right.tolist(), name
    fp8 = OperandRange("too wide", 15, 15, stride=16)
    assert not exact.is_exact("fp8_e4m3", fp8, MAX_K)
    products = np.abs(exact.operand_a(fp8, 1, 4, MAX_K)) * 15
    for size in (4, 16, 32):
        assert _blocked(size, 13)(products.astype(np.float32)).tolist() != products.sum(axis=1).tolist(), size


@pytest.mark.parametrize("name", ["ieee_fp32", "ieee_fp64"])
def test_full_mantissa_products_are_the_ieee_results(name: str) -> None:
    """Integer arithmetic against the processor's own multiplication, which rounds to nearest even."""
    operands = exact.RANGES[name]
    kind = np.float32 if name == "ieee_fp32" else np.float64
    a, b = exact.operand_a(operands, 3, 96, 64), exact.operand_b(operands, 4, 64, 80)
    got = integer_product(a, b, operands)
    with np.errstate(all="ignore"):
        scaled = np.ldexp(b.astype(kind), -operands.shift)
        right = np.stack([(row[np.flatnonzero(row)[0]].astype(kind) * scaled[np.flatnonzero(row)[0]]) for row in a])
    assert right.dtype == kind
    assert np.array_equal(got.astype(np.float64), right.astype(np.float64))
    assert np.abs(got).max() <= exact.EXACT_LIMIT
    assert len({int(v) & 1 for v in (got >> 24 if name == "ieee_fp32" else got).reshape(-1)}) == 2
