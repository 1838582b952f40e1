"""Where a wrong product is wrong: elements, bits, tiles, operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.compute import freivalds
from gpu_burnin.compute.backend import Backend, Buffer, raw_from_integers, read_matrix, values_from_raw
from gpu_burnin.compute.digest import integers_of
from gpu_burnin.compute.exact import I64
from gpu_burnin.compute.integer import integer_product
from gpu_burnin.compute.product import Case, Outcome, Pair, ProductUnit
from gpu_burnin.types import JSON

MAX_ELEMENTS = 16
_MAX_LINES = 32
_TILE = 128


def locate(unit: ProductUnit, pair: Pair, outcome: Outcome) -> list[dict[str, JSON]]:
    """Report entries for what differs: corrupted elements of the operands on the device first, then of C,
    MAX_ELEMENTS of each. C is the evidence of the outcome; without it only operands are looked at.

    Rows and columns whose checksums modulo exact.PRIME are wrong give the candidates, and these lines are
    computed again in exact integers. When they are too many, or show nothing, all of C is compared; so it is
    for an ieee range, whose rounded results have no checksums.
    """
    case = outcome.case
    a, b = case.host_operands()
    entries = _operand_errors(unit.backend, case, unit.a[pair[0]], a, "a")
    entries += _operand_errors(unit.backend, case, unit.b[pair[1]], b, "b")
    if outcome.evidence is None:
        return entries
    bits, storage = outcome.evidence, unit.c.storage.name
    rows, cols = _suspects(bits, case, a, b, storage)
    found: list[dict[str, JSON]] = []
    if 0 < rows.size <= _MAX_LINES:
        found = _compare(bits, case, a[rows] @ b, rows, None, storage)
    elif 0 < cols.size <= _MAX_LINES:
        found = _compare(bits, case, a @ b[:, cols], None, cols, storage)
    return entries + (found or _compare(bits, case, integer_product(a, b, case.operands), None, None, storage))


def _suspects(
    bits: NDArray[Any], case: Case, a: I64, b: I64, storage: str
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of C whose checksums are wrong or that hold something else than integers."""
    if case.operands.rounds_to is not None:
        return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
    values, scale = values_from_raw(bits, storage), case.scale()
    integers = integers_of(values, scale)
    again = values_from_raw(_result_bits(integers, case, None, None, storage), storage)
    odd = again != values
    w, v = freivalds.challenge(case.seed_a ^ 1, *values.shape)
    right = freivalds.times_vector(a, freivalds.times_vector(b, v))
    below = freivalds.vector_times(freivalds.vector_times(w, a), b)
    rows = (freivalds.times_vector(integers, v) != right) | odd.any(axis=1)
    cols = (freivalds.vector_times(w, integers) != below) | odd.any(axis=0)
    return np.flatnonzero(rows), np.flatnonzero(cols)


def _result_bits(
    integers: I64, case: Case, rows: NDArray[np.intp] | None, cols: NDArray[np.intp] | None, storage: str
) -> NDArray[Any]:
    """Bits of right results for some rows and columns (None: all), with the powers of two of the case."""
    scale = case.scale()
    if scale is None:
        return raw_from_integers(integers, storage)
    down = scale.rows if rows is None else scale.rows[rows]
    across = scale.cols if cols is None else scale.cols[cols]
    return raw_from_integers(integers, storage, down[:, None] + across[None, :])


def _compare(
    bits: NDArray[Any],
    case: Case,
    integers: I64,
    rows: NDArray[np.intp] | None,
    cols: NDArray[np.intp] | None,
    storage: str,
) -> list[dict[str, JSON]]:
    """Entries for the elements that differ from the right integers of these rows and columns."""
    got = bits if rows is None else bits[rows]
    got = got if cols is None else got[:, cols]
    expected = _result_bits(integers, case, rows, cols, storage)
    wrong = got != expected
    if not storage.startswith("int"):
        sign = got.dtype.type(1 << (8 * got.itemsize - 1))
        wrong &= ~((expected == 0) & (got == sign))  # -0 reads as 0
    found: list[dict[str, JSON]] = []
    for i, j in np.argwhere(wrong)[:MAX_ELEMENTS]:
        row, col = int(i if rows is None else rows[i]), int(j if cols is None else cols[j])
        entry = _entry("c", case, row, col, got[i, j], expected[i, j], storage)
        found.append({**entry, "tile": [row // _TILE, col // _TILE], "wrong_elements_seen": int(wrong.sum())})
    return found


def _operand_errors(backend: Backend, case: Case, buffer: Buffer, integers: I64, name: str) -> list[dict[str, JSON]]:
    got = read_matrix(backend, buffer)
    exponents = case.operand(name).exponents
    if exponents is not None:
        exponents = exponents[:, None] if name == "a" else exponents[None, :]
    expected = raw_from_integers(integers, buffer.storage.name, exponents)
    return [
        _entry(name, case, int(i), int(j), got[i, j], expected[i, j], buffer.storage.name)
        for i, j in np.argwhere(got != expected)[:MAX_ELEMENTS]
    ]


def case_entry(case: Case) -> dict[str, JSON]:
    """What names a case in the report."""
    return {
        "precision": case.precision,
        "range": case.operands.name,
        "scaled": case.scaled,
        "seed": f"{case.seed_a:#x}",
        "seed_b": f"{case.seed_b:#x}",
    }


def bit_entry(matrix: str, row: int, col: int, got: Any, expected: Any, storage: str) -> dict[str, JSON]:
    """Place, values and bits of one wrong element."""
    flipped = int(got) ^ int(expected)
    width = 2 * np.dtype(type(got)).itemsize
    return {
        "matrix": matrix,
        "row": row,
        "col": col,
        "expected": str(values_from_raw(np.array([expected]), storage)[0]),
        "got": str(values_from_raw(np.array([got]), storage)[0]),
        "expected_bits": f"0x{int(expected):0{width}x}",
        "got_bits": f"0x{int(got):0{width}x}",
        "flipped_bits": [bit for bit in range(4 * width) if flipped >> bit & 1],
    }


def _entry(matrix: str, case: Case, row: int, col: int, got: Any, expected: Any, storage: str) -> dict[str, JSON]:
    return {**case_entry(case), **bit_entry(matrix, row, col, got, expected, storage)}
