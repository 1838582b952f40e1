"""The digest of results: proved against plain Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_burnin.exact import digest as digests
from gpu_burnin.exact import operands
from gpu_burnin.exact.digest import digest, digest_integers, digest_raw, integers_of, low_keys
from gpu_burnin.exact.operands import MASK64, RANGES, Digest, Scale


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
    assert digest_integers(np.array(values, dtype=np.int64), 77) == _reference_digest(values, 77)


def test_digest_is_common_to_all_types_and_deterministic() -> None:
    values = np.arange(-5000, 5000, dtype=np.int64).reshape(100, 100)
    digests = {digest(values.astype(t), 5).value for t in (np.int64, np.int32, np.float32, np.float64)}
    assert len(digests) == 1
    assert digest(values, 5) == digest(values.copy(), 5)
    assert digest(values, 6).value not in digests


def test_digest_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = operands.operand_values(1, 1 << 40, True, 0, 5000)
    whole = digest_integers(values, 3)
    monkeypatch.setattr(digests, "_BLOCK", 999)
    assert digest_integers(values, 3) == whole


def test_negative_zero_reads_as_zero() -> None:
    assert digest(np.array([0.0, -0.0]), 1) == digest(np.array([0.0, 0.0]), 1)


def test_values_that_are_no_integers_are_counted_apart() -> None:
    values = np.array([1.0, np.nan, np.inf, -np.inf, 0.5, 1e30, 2.0**53], dtype=np.float64)
    seen = digest(values, 1)
    assert (seen.nonfinite, seen.noninteger, seen.clean) == (3, 2, False)


def test_digest_sees_every_single_bit() -> None:
    product = operands.operand_a(RANGES["wide"], 1, 16, 16)
    right = digest_integers(product, 9)
    for position in range(0, product.size, 7):
        for bit in range(53):
            wrong = product.copy()
            wrong.reshape(-1)[position] ^= 1 << bit
            assert digest_integers(wrong, 9) != right


@pytest.mark.parametrize("swap", ["transposed", "rows", "columns", "square of four"])
def test_digest_sees_values_in_the_wrong_place(swap: str) -> None:
    c = operands.operand_a(RANGES["square"], 1, 32, 32)
    wrong = c.copy()
    if swap == "transposed":
        wrong = c.T
    elif swap == "rows":
        wrong[[3, 4]] = c[[4, 3]]
    elif swap == "columns":
        wrong[:, [3, 4]] = c[:, [4, 3]]
    else:  # +d and -d at the corners of a rectangle: row and column sums stay the same
        wrong[np.ix_([2, 9], [5, 6])] += np.array([[1, -1], [-1, 1]])
    assert digest_integers(np.ascontiguousarray(wrong), 9) != digest_integers(c, 9)


def _scaled(dtype: type) -> tuple[np.ndarray, np.ndarray, Scale]:
    integers = operands.operand_a(RANGES["square"], 3, 40, 48)
    limit = 12 if dtype is np.float32 else 400
    scale = Scale(
        np.random.default_rng(1).integers(-limit, limit, 40).astype(np.int16),
        np.random.default_rng(2).integers(-limit, limit, 48).astype(np.int16),
    )
    exponents = scale.rows[:, None].astype(np.int32) + scale.cols[None, :]
    return integers, np.ldexp(integers.astype(np.float64), exponents).astype(dtype), scale


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_two_do_not_change_the_digest(dtype: type) -> None:
    integers, values, scale = _scaled(dtype)
    assert digest(values, 5, scale) == Digest(digest_integers(integers, 5))
    assert digest(values, 5).value != digest_integers(integers, 5)
    assert np.array_equal(integers_of(values, scale), integers)


def test_a_wrong_power_of_two_is_seen() -> None:
    integers, values, scale = _scaled(np.float32)
    values[7, 9] *= 2
    assert digest(values, 5, scale).value != digest_integers(integers, 5)


def test_values_lost_without_their_power_of_two_are_no_integers() -> None:
    """Over- and underflow come from faults only; they are counted, and are not taken for Inf or for 0."""
    scale = Scale(np.full(4, -511, dtype=np.int16), np.full(4, -500, dtype=np.int16))
    values = np.zeros((4, 4))
    values[1, 1], values[2, 2], values[3, 3] = 1e300, np.nan, -np.inf
    assert digest(values, 5, scale) == Digest(0, nonfinite=2, noninteger=1)
    scale = Scale(np.full(4, 480, dtype=np.int16), np.full(4, 480, dtype=np.int16))
    values = np.zeros((4, 4))
    values[1, 1] = 5e-324
    assert digest(values, 5, scale) == Digest(0, noninteger=1)


@pytest.mark.parametrize("value", [2.0**31, -(2.0**31), 2.0**40, 2.0**53, -(2.0**52) - 1, 2.0**31 - 1])
def test_values_beyond_32_bits_are_read_right(value: float) -> None:
    for dtype in (np.float32, np.float64):
        values = np.array([1, dtype(value), 3], dtype=dtype)
        integers = [1, int(values[1]), 3]
        assert digest(values, 9) == Digest(_reference_digest(integers, 9))


def test_remembered_keys_give_the_same_digest() -> None:
    values = np.arange(100_000, dtype=np.float32)
    keys = low_keys(77, 0, 200_000).astype(np.uint64)[: values.size]
    assert digest(values, 77, keys=keys) == digest(values, 77)


def test_the_digest_of_raw_bits_sees_every_bit_and_tells_zeros_and_nans_apart() -> None:
    for dtype, wide in ((np.float32, np.uint32), (np.float64, np.uint64)):
        bits = np.array([0.0, 1.5, -3.25, np.nan], dtype=dtype).view(wide)
        right = digest_raw(bits, 3)
        for position in range(bits.size):
            for bit in range(8 * bits.itemsize):
                wrong = bits.copy()
                wrong[position] ^= wide(1 << bit)
                assert digest_raw(wrong, 3) != right, (position, bit)
    integers = np.array([5, -7, 2**31 - 1, -(2**31)], dtype=np.int32)
    assert digest_raw(integers.view(np.uint32), 3) == digest_integers(integers.astype(np.int64), 3)


def test_the_digest_of_raw_64_bit_words_is_defined_by_their_halves() -> None:
    words = np.array([0x8000000000000001, 0x7FFFFFFF80000000, 2**64 - 1], dtype=np.uint64)
    total = 0
    for i, word in enumerate(words.tolist()):
        for half in (0, 1):
            digit = word >> (32 * half) & 0xFFFFFFFF
            x = (2 * i + half + 11) & 0xFFFFFFFF
            x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
            x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
            total += (digit - (digit >> 31 << 32)) * (x ^ (x >> 16))
    assert digest_raw(words, 11) == total & MASK64
