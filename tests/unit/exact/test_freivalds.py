"""Freivalds' check: proved against plain Python integers."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_burnin.exact import freivalds
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.operands import PRIME, RANGES, OperandRange

LINEAR = [r for r in RANGES.values() if r.rounds_to is None]


@pytest.mark.parametrize("operands", LINEAR, ids=lambda r: r.name)
def test_freivalds_agrees_with_plain_integers(operands: OperandRange) -> None:
    a, b = exact.operand_a(operands, 4, 12, 32), exact.operand_b(operands, 4, 32, 10)
    w, v = freivalds.challenge(8, 12, 10)
    c = a.astype(object) @ b.astype(object)
    plain = int(np.array([int(x) for x in w], dtype=object) @ c @ np.array([int(x) for x in v], dtype=object)) % PRIME
    assert freivalds.bilinear(c.astype(np.int64), w, v) == plain
    assert freivalds.expected_bilinear(a, b, w, v) == plain


def test_modular_products_do_not_overflow_at_the_extremes() -> None:
    big = np.full((3, 4096), PRIME - 1, dtype=np.int64)
    vector = np.full(4096, PRIME - 1, dtype=np.uint64)
    assert [int(x) for x in freivalds.times_vector(big, vector)] == [(PRIME - 1) ** 2 * 4096 % PRIME] * 3
    assert int(freivalds.vector_times(vector[:3], big)[0]) == (PRIME - 1) ** 2 * 3 % PRIME
    assert [int(x) for x in freivalds.times_vector(-big, vector)] == [-((PRIME - 1) ** 2) * 4096 % PRIME] * 3


def test_no_element_is_left_out_of_a_challenge() -> None:
    w, v = freivalds.challenge(3, 100_000, 100_000)
    for vector in (w, v):
        assert int(vector.min()) >= 1 and int(vector.max()) < PRIME
        assert int(vector.max()) > PRIME * 0.999 and int(vector.min()) < PRIME * 0.001


def test_freivalds_sees_every_single_bit() -> None:
    a, b = exact.operand_a(RANGES["square"], 4, 16, 16), exact.operand_b(RANGES["square"], 4, 16, 16)
    w, v = freivalds.challenge(8, 16, 16)
    right = freivalds.expected_bilinear(a, b, w, v)
    for position in range(256):
        for bit in (0, 7, 23):
            wrong = a @ b
            wrong.reshape(-1)[position] ^= 1 << bit
            assert freivalds.bilinear(wrong, w, v) != right


def test_the_prime_is_one() -> None:
    assert PRIME > 1 << 31
    assert all(PRIME % d for d in range(2, 65537))


@pytest.mark.parametrize("largest", [(1 << 24) - 1, 1 << 25, (1 << 53) - 1])
def test_the_fast_path_ends_where_double_sums_could_round(largest: int) -> None:
    """Elements at the limit and beyond it, in vectors whose halves are as large as they get."""
    vector = np.full(8192, PRIME - 1, dtype=np.uint64)
    matrix = np.full((2, 8192), largest, dtype=np.int64)
    matrix[1] *= -1
    plain = [sign * largest * (PRIME - 1) * 8192 % PRIME for sign in (1, -1)]
    assert [int(x) for x in freivalds.times_vector(matrix, vector)] == plain
    assert [int(x) for x in freivalds.vector_times(vector, np.ascontiguousarray(matrix.T))] == plain
