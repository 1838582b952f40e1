"""Operands, bounds, digest and Freivalds' check: proved against plain Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_burnin.compute import exact
from gpu_burnin.compute.exact import MASK64, MAX_K, PRIME, RANGES, OperandRange

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


@pytest.mark.parametrize("operands", RANGES.values(), ids=lambda r: r.name)
@pytest.mark.parametrize("k", [16, 80, 256])
def test_operands_keep_to_their_bounds(operands: OperandRange, k: int) -> None:
    a, b = exact.operand_a(operands, 3, 64, k), exact.operand_b(operands, 3, k, 64)
    assert np.abs(a).max() <= operands.ra
    assert np.abs(b).max() <= operands.rb
    assert operands.signed or (a.min() >= 0 and b.min() >= 0)
    largest = (np.abs(a).astype(object) @ np.abs(b).astype(object)).max()
    assert largest <= operands.bound(k)


@pytest.mark.parametrize("operands", RANGES.values(), ids=lambda r: r.name)
def test_operands_reach_their_bounds(operands: OperandRange) -> None:
    values = np.concatenate(
        [exact.operand_values(exact.stream_key(s, "a"), operands.ra, operands.signed, 0, 1 << 16) for s in range(4)]
    )
    assert values.max() >= operands.ra * 0.99
    assert not operands.signed or values.min() <= -operands.ra * 0.99
    bits = np.bitwise_or.reduce(np.abs(values).view(np.uint64))
    assert int(bits) == (1 << operands.ra.bit_length()) - 1, "every operand bit moves"


def _reference_digest(values: list[int], key: int) -> int:
    total = 0
    for i, v in enumerate(values):
        low = (v + (1 << 31)) % (1 << 32) - (1 << 31)
        for j, digit in enumerate((low, (v - low) >> 32)):
            x = (2 * i + j + key) & 0xFFFFFFFF
            x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
            x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
            total += digit * (x ^ (x >> 16))
    return total & MASK64


def test_digest_is_what_plain_integers_say() -> None:
    values = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**53, -(2**53), 123456789012345]
    assert exact.digest_integers(np.array(values, dtype=np.int64), 77) == _reference_digest(values, 77)


def test_digest_is_common_to_all_types_and_deterministic() -> None:
    values = np.arange(-5000, 5000, dtype=np.int64).reshape(100, 100)
    digests = {exact.digest(values.astype(t), 5).value for t in (np.int64, np.int32, np.float32, np.float64)}
    assert len(digests) == 1
    assert exact.digest(values, 5) == exact.digest(values.copy(), 5)
    assert exact.digest(values, 6).value not in digests


def test_digest_is_the_same_in_parts() -> None:
    values = exact.operand_values(1, 1 << 40, True, 0, (1 << 20) + 17)
    parts = exact.digest_integers(values[:1000], 3) + exact.digest_integers(values[1000:], 3, start=1000)
    assert exact.digest_integers(values, 3) == parts & MASK64


def test_negative_zero_reads_as_zero() -> None:
    assert exact.digest(np.array([0.0, -0.0]), 1) == exact.digest(np.array([0.0, 0.0]), 1)


def test_values_that_are_no_integers_are_counted_apart() -> None:
    values = np.array([1.0, np.nan, np.inf, -np.inf, 0.5, 1e30, 2.0**53], dtype=np.float64)
    seen = exact.digest(values, 1)
    assert (seen.nonfinite, seen.noninteger, seen.clean) == (3, 2, False)


def test_digest_sees_every_single_bit() -> None:
    product = exact.operand_a(RANGES["wide"], 1, 16, 16)
    right = exact.digest_integers(product, 9)
    for position in range(0, product.size, 7):
        for bit in range(53):
            wrong = product.copy()
            wrong.reshape(-1)[position] ^= 1 << bit
            assert exact.digest_integers(wrong, 9) != right


@pytest.mark.parametrize("swap", ["transposed", "rows", "columns", "square of four"])
def test_digest_sees_values_in_the_wrong_place(swap: str) -> None:
    c = exact.operand_a(RANGES["square"], 1, 32, 32)
    wrong = c.copy()
    if swap == "transposed":
        wrong = c.T
    elif swap == "rows":
        wrong[[3, 4]] = c[[4, 3]]
    elif swap == "columns":
        wrong[:, [3, 4]] = c[:, [4, 3]]
    else:  # +d and -d at the corners of a rectangle: row and column sums stay the same
        wrong[np.ix_([2, 9], [5, 6])] += np.array([[1, -1], [-1, 1]])
    assert exact.digest_integers(np.ascontiguousarray(wrong), 9) != exact.digest_integers(c, 9)


@pytest.mark.parametrize("operands", RANGES.values(), ids=lambda r: r.name)
def test_freivalds_agrees_with_plain_integers(operands: OperandRange) -> None:
    a, b = exact.operand_a(operands, 4, 12, 32), exact.operand_b(operands, 4, 32, 10)
    w, v = exact.challenge(8, 12, 10)
    c = a.astype(object) @ b.astype(object)
    plain = int(np.array([int(x) for x in w], dtype=object) @ c @ np.array([int(x) for x in v], dtype=object)) % PRIME
    assert exact.bilinear(c.astype(np.int64), w, v) == plain
    assert exact.expected_bilinear(a, b, w, v) == plain


def test_modular_products_do_not_overflow_at_the_extremes() -> None:
    big = np.full((3, 4096), PRIME - 1, dtype=np.int64)
    vector = np.full(4096, PRIME - 1, dtype=np.uint64)
    assert [int(x) for x in exact.times_vector(big, vector)] == [(PRIME - 1) ** 2 * 4096 % PRIME] * 3
    assert int(exact.vector_times(vector[:3], big)[0]) == (PRIME - 1) ** 2 * 3 % PRIME
    assert [int(x) for x in exact.times_vector(-big, vector)] == [-((PRIME - 1) ** 2) * 4096 % PRIME] * 3


def test_no_element_is_left_out_of_a_challenge() -> None:
    w, v = exact.challenge(3, 100_000, 100_000)
    for vector in (w, v):
        assert int(vector.min()) >= 1 and int(vector.max()) < PRIME
        assert int(vector.max()) > PRIME * 0.999 and int(vector.min()) < PRIME * 0.001


def test_freivalds_sees_every_single_bit() -> None:
    a, b = exact.operand_a(RANGES["square"], 4, 16, 16), exact.operand_b(RANGES["square"], 4, 16, 16)
    w, v = exact.challenge(8, 16, 16)
    right = exact.expected_bilinear(a, b, w, v)
    for position in range(256):
        for bit in (0, 7, 23):
            wrong = a @ b
            wrong.reshape(-1)[position] ^= 1 << bit
            assert exact.bilinear(wrong, w, v) != right


def test_the_prime_is_one() -> None:
    assert PRIME > 1 << 31
    assert all(PRIME % d for d in range(2, 65537))
