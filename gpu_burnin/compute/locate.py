"""Where a wrong product is wrong: elements, bits, operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.compute import exact
from gpu_burnin.compute.backend import Backend, Buffer, raw_from_integers, read_matrix, values_from_raw
from gpu_burnin.compute.exact import I64
from gpu_burnin.compute.golden import integer_product
from gpu_burnin.compute.product import Case, ProductUnit
from gpu_burnin.types import JSON

MAX_ELEMENTS = 16
_MAX_ROWS = 32
_TILE = 128


def locate(unit: ProductUnit, case: Case) -> list[dict[str, JSON]]:
    """Report entries for what differs: corrupted operand elements first, then elements of C, MAX_ELEMENTS
    of each.

    Rows and columns whose checksums modulo exact.PRIME are wrong give the candidates, which are computed
    again in exact integers; when they show nothing, all of C is compared.
    """
    a, b = case.host_operands()
    entries = _operand_errors(unit.backend, case, unit.a, a, "a") + _operand_errors(unit.backend, case, unit.b, b, "b")
    bits = read_matrix(unit.backend, unit.c)
    values, whole = _integers(bits, unit.c.storage.name)
    rows = _suspect_rows(values, whole, a, b, case.seed)
    found = _compare_rows(unit.c, case, bits, a, b, rows[:_MAX_ROWS])
    if not found:
        expected = raw_from_integers(integer_product(a, b, case.operands), unit.c.storage.name)
        found = _elements(unit.c, case, bits, expected, np.arange(unit.c.rows))
    return entries + found


def _integers(bits: NDArray[Any], storage: str) -> tuple[I64, NDArray[np.bool_]]:
    """C in integers (0 where it holds none) and where it does hold integers."""
    values = values_from_raw(bits, storage)
    integers, _, _ = exact.to_integers(values)
    return integers, integers == values


def _suspect_rows(values: I64, whole: NDArray[np.bool_], a: I64, b: I64, seed: int) -> NDArray[np.intp]:
    _, v = exact.challenge(seed ^ 1, values.shape[0], values.shape[1])
    right = exact.times_vector(a, exact.times_vector(b, v))
    return np.flatnonzero((exact.times_vector(values, v) != right) | ~whole.all(axis=1))


def _compare_rows(
    c: Buffer, case: Case, bits: NDArray[Any], a: I64, b: I64, rows: NDArray[np.intp]
) -> list[dict[str, JSON]]:
    if rows.size == 0:
        return []
    expected = raw_from_integers(a[rows] @ b, c.storage.name)
    return _elements(c, case, bits[rows], expected, rows)


def _elements(
    c: Buffer, case: Case, got: NDArray[Any], expected: NDArray[Any], rows: NDArray[np.intp]
) -> list[dict[str, JSON]]:
    storage = c.storage.name
    sign = got.dtype.type(1 << (8 * c.storage.size_bytes - 1))
    wrong = got != expected
    if not c.storage.integer:
        wrong &= ~((expected == 0) & (got == sign))  # -0 reads as 0
    found: list[dict[str, JSON]] = []
    for i, j in np.argwhere(wrong)[:MAX_ELEMENTS]:
        row, col = int(rows[i]), int(j)
        entry = _entry("c", case, row, col, got[i, j], expected[i, j], storage)
        found.append({**entry, "tile": [row // _TILE, col // _TILE], "wrong_elements_seen": int(wrong.sum())})
    return found


def _operand_errors(backend: Backend, case: Case, buffer: Buffer, integers: I64, name: str) -> list[dict[str, JSON]]:
    got = read_matrix(backend, buffer)
    expected = raw_from_integers(integers, buffer.storage.name)
    return [
        _entry(name, case, int(i), int(j), got[i, j], expected[i, j], buffer.storage.name)
        for i, j in np.argwhere(got != expected)[:MAX_ELEMENTS]
    ]


def _entry(matrix: str, case: Case, row: int, col: int, got: Any, expected: Any, storage: str) -> dict[str, JSON]:
    flipped = int(got) ^ int(expected)
    width = 2 * np.dtype(type(got)).itemsize
    return {
        "matrix": matrix,
        "precision": case.precision,
        "range": case.operands.name,
        "seed": f"{case.seed:#x}",
        "row": row,
        "col": col,
        "expected": str(values_from_raw(np.array([expected]), storage)[0]),
        "got": str(values_from_raw(np.array([got]), storage)[0]),
        "expected_bits": f"0x{int(expected):0{width}x}",
        "got_bits": f"0x{int(got):0{width}x}",
        "flipped_bits": [bit for bit in range(4 * width) if flipped >> bit & 1],
    }
