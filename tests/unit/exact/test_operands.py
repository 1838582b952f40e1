"""Operands, bounds, digest and Freivalds' check: proved against plain Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_burnin.device.storage import raw_from_integers, values_from_raw
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.operands import EXACT_LIMIT, MASK64, MAX_K, RANGES, OperandRange
from gpu_burnin.exact.port import STORAGE_OF

ALL = [(p, r) for p in exact.PRECISIONS for r in exact.ranges_for(p)]


def _reference_word(key: int, index: int) -> int:
    return exact.mix((key + (index + 1) * 0x9E3779B97F4A7C15) & MASK64)


def test_words_follow_splitmix64() -> None:
    # First outputs of splitmix64 for seed 0, as published with its reference implementation.
    assert [int(x) for x in exact.random_words(0, 0, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_any_part_of_an_operand_can_be_made_again() -> None:
    whole = exact.operand_a(RANGES["sparse"], 99, 96, 256)
    part = exact.operand_rows(exact.stream_key(99, "a"), 15, True, 128, 40, 5, 256)
    assert np.array_equal(whole[40:45], part)
    assert int(exact.random_words(5, 1000, 1)[0]) == _reference_word(5, 1000)


def test_streams_and_seeds_differ() -> None:
    keys = {exact.stream_key(seed, stream) for seed in range(50) for stream in ("a", "b", "w", "v", "aa")}
    assert len(keys) == 250


@pytest.mark.parametrize(("precision", "operands"), ALL, ids=lambda x: getattr(x, "name", x))
def test_every_range_is_exact_up_to_the_longest_dot_product(precision: str, operands: OperandRange) -> None:
    for k in (16, 64, 100, 1024, MAX_K):
        assert exact.is_exact(precision, operands, k)


def test_bounds_refuse_what_does_not_fit() -> None:
    assert not exact.is_exact("bf16", RANGES["fine_a"], 16)  # 2047 is no BF16 integer
    assert not exact.is_exact("fp32", OperandRange("x", 64, 65), MAX_K)  # 4096 * 64 * 65 > 2^24
    assert not exact.is_exact("fp8_e4m3", RANGES["square"], 16)
    assert not exact.is_exact("fp32", RANGES["square"], 2 * MAX_K)


@pytest.mark.slow
@pytest.mark.parametrize("operands", RANGES.values(), ids=lambda r: r.name)
@pytest.mark.parametrize("k", [16, 80, 256])
def test_operands_keep_to_their_bounds(operands: OperandRange, k: int) -> None:
    a, b = exact.operand_a(operands, 3, 64, k), exact.operand_b(operands, 3, k, 64)
    assert np.abs(a).max() <= operands.ra
    assert np.abs(b).max() <= operands.rb
    assert operands.signed or (a.min() >= 0 and b.min() >= 0)
    largest = (np.abs(a).astype(object) @ np.abs(b).astype(object)).max()
    assert largest >> operands.shift <= operands.bound(k)


@pytest.mark.parametrize("operands", RANGES.values(), ids=lambda r: r.name)
def test_operands_reach_their_bounds(operands: OperandRange) -> None:
    values = np.concatenate(
        [exact.operand_values(exact.stream_key(s, "a"), operands.ra, operands.signed, 0, 1 << 16) for s in range(4)]
    )
    assert values.max() >= operands.ra * 0.99
    assert not operands.signed or values.min() <= -operands.ra * 0.99
    bits = np.bitwise_or.reduce(np.abs(values).view(np.uint64))
    assert int(bits) == (1 << operands.ra.bit_length()) - 1, "every operand bit moves"


def test_ieee_ranges_belong_to_their_own_precision_and_have_full_mantissas() -> None:
    assert exact.is_exact("fp32", RANGES["ieee_fp32"], MAX_K)
    assert not exact.is_exact("fp64", RANGES["ieee_fp32"], 64)  # FP64 would not round
    assert not exact.is_exact("tf32", RANGES["ieee_fp32"], 64)
    for name, bits in (("ieee_fp32", 24), ("ieee_fp64", 53)):
        values = np.abs(exact.operand_b(RANGES[name], 5, 64, 64))
        assert {int(v).bit_length() for v in values.reshape(-1)} == {bits}
        a = exact.operand_a(RANGES[name], 5, 64, 64)
        assert (np.count_nonzero(a, axis=1) == 1).all()
        assert (values % 2 == 1).any() and (exact.operand_b(RANGES[name], 5, 64, 64) < 0).any()


def test_values_with_a_least_magnitude_follow_their_definition() -> None:
    for signed in (True, False):
        values = exact.operand_values(9, 20, signed, 3, 4000, low=16)
        words = [_reference_word(9, 3 + i) for i in range(4000)]
        if signed:
            expected = [16 + w % 10 if w % 10 < 5 else -(16 + w % 10 - 5) for w in words]
        else:
            expected = [16 + w % 5 for w in words]
        assert values.tolist() == expected


# --- powers of two ---

SCALABLE = [(p, r, side) for p, r in ALL if exact.can_scale(p) for side in ("a", "b")]
_NORMAL = {"fp64": -1022, "fp32": -126, "bf16": -126, "fp16": -14, "fp8_e4m3": -6}


@pytest.mark.parametrize(("precision", "operands", "side"), SCALABLE, ids=lambda x: getattr(x, "name", x))
def test_operands_with_powers_of_two_are_representable(precision: str, operands: OperandRange, side: str) -> None:
    """The largest and the smallest operand, at both ends of the span, survive their storage type, all normal."""
    storage = STORAGE_OF[precision][0]
    bound, low = (operands.ra, operands.low_a) if side == "a" else (operands.rb, operands.low_b)
    for exponent in exact.exponent_span(precision, operands, side):
        exponent -= operands.shift if side == "b" else 0
        values = np.array([bound, -bound, max(1, low), 0], dtype=np.int64)
        if precision == "tf32":
            assert bound < 1 << 11, "TF32 keeps 11 bits of what FP32 stores"
        bits = raw_from_integers(values, storage, np.array(exponent))
        got = values_from_raw(bits, storage).astype(np.float64)
        assert np.array_equal(got, np.ldexp(values.astype(np.float64), exponent))
        assert np.abs(got[2]) >= 2.0 ** _NORMAL[storage]


@pytest.mark.parametrize(("precision", "operands"), ALL, ids=lambda x: getattr(x, "name", x))
def test_sums_with_powers_of_two_stay_normal(precision: str, operands: OperandRange) -> None:
    """Any row may meet any column: both ends of both spans together."""
    if not exact.can_scale(precision):
        with pytest.raises(KeyError):
            exact.exponent_span(precision, operands, "a")
        return
    spans = [exact.exponent_span(precision, operands, side) for side in "ab"]
    lowest, highest = (spans[0][i] + spans[1][i] for i in (0, 1))
    accumulator = np.finfo(np.float64 if precision == "fp64" else np.float32)
    assert lowest >= accumulator.minexp
    assert operands.bound(MAX_K).bit_length() + highest <= accumulator.maxexp
    for side in "ab":
        least, greatest = exact.exponent_span(precision, operands, side)
        assert greatest - least >= 8, "the exponents move"
        exponents = exact.scale_exponents(precision, operands, side, 3, 4096)
        assert (exponents.min(), exponents.max()) == (least, greatest) or greatest - least > 500


# --- random operands ---


@pytest.mark.parametrize("storage", ["fp64", "fp32", "bf16", "fp16", "fp8_e4m3", "int8"])
def test_random_operands_are_finite_and_no_product_overflows(storage: str) -> None:
    bits = exact.random_bits(storage, 3, 0, 1 << 16)
    values = values_from_raw(bits, storage).astype(np.float64)
    assert np.isfinite(values).all()
    assert (values < 0).any() and (values > 0).any()
    largest = float(np.abs(values).max())
    assert largest**2 * MAX_K < float(np.finfo(np.float64 if storage == "fp64" else np.float32).max)
    every = np.bitwise_or.reduce(bits)
    assert int(every) == (1 << 8 * bits.itemsize) - 1, "every bit moves"
    positive = values_from_raw(exact.random_bits(storage, 3, 0, 1 << 16, positive=True), storage)
    assert (positive >= 0).all()
    assert np.array_equal(exact.random_bits(storage, 3, 1000, 50), bits[1000:1050])


def test_random_operands_are_defined_by_their_words() -> None:
    """The rule in random_bits' words, in plain Python; CUDA code follows the same."""
    formats = {"fp64": (11, 52, 7), "fp32": (8, 23, 6), "bf16": (8, 7, 6), "fp16": (5, 10, 5), "fp8_e4m3": (4, 3, 4)}
    for storage, (exponent, fraction, varying) in formats.items():
        for i, got in enumerate(exact.random_bits(storage, 77, 0, 3000).tolist()):
            word = _reference_word(77, i)
            field, low = word >> fraction & ((1 << exponent) - 1), word & ((1 << fraction) - 1)
            if varying < exponent:
                field = field % (1 << varying) + (1 << exponent - 1) - 1 - (1 << varying - 1)
            elif field == (1 << exponent) - 1 and (storage == "fp16" or low == (1 << fraction) - 1):
                field = (1 << exponent - 1) - 1
            sign = word & (1 << exponent + fraction)
            assert got == sign | field << fraction | low, (storage, i)


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_the_limits_are_those_of_the_types(precision: str) -> None:
    storage = STORAGE_OF[precision][0]
    limit = exact.OPERAND_LIMIT[precision]
    assert limit <= EXACT_LIMIT
    values = np.array([limit, limit - 1, -limit], dtype=np.int64)
    assert np.array_equal(values_from_raw(raw_from_integers(values, storage), storage), values)
    if precision not in ("tf32", "int8"):  # TF32 is stored as FP32; INT8 is kept symmetric
        beyond = np.array([limit + 1], dtype=np.int64)
        assert int(values_from_raw(raw_from_integers(beyond, storage), storage)[0]) != limit + 1


@pytest.mark.parametrize("block", [7, 300, 1 << 20])
@pytest.mark.parametrize("cols", [24, 40])
@pytest.mark.parametrize(("stride", "low"), [(1, 0), (8, 0), (128, 0), (exact.MAX_K, 5)])
def test_operands_are_their_words_and_zero_off_the_stride(
    monkeypatch: pytest.MonkeyPatch, stride: int, low: int, cols: int, block: int
) -> None:
    monkeypatch.setattr(exact, "_BLOCK", block)
    operand = exact.Operand(17, 9, True, stride, low)
    dense = exact.operand_values(17, 9, True, 0, 32 * cols, low).reshape(32, cols)
    place = np.add.outer(np.arange(32), np.arange(cols))
    expected = np.where(place % min(stride, cols) == 0, dense, 0)
    assert np.array_equal(exact.operand_integers(operand, 32, cols), expected)
