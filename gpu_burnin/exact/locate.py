"""Where a wrong product is wrong: elements, bits, tiles, operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.port import Device
from gpu_burnin.device.storage import Buffer, raw_from_integers, values_from_raw
from gpu_burnin.exact import freivalds, operands
from gpu_burnin.exact.digest import integers_of
from gpu_burnin.exact.integer import integer_product
from gpu_burnin.exact.operands import I64, Scale
from gpu_burnin.exact.product import Case, Outcome, Pair, ProductUnit
from gpu_burnin.types import JSON

MAX_ELEMENTS = 16
_MAX_LINES = 32
_TILE = 128
# Elements, and rows of C, that are looked at together: what is in memory beside the operands and C stays small.
_BLOCK = 1 << 18
_BLOCK_ROWS = 1024
_CHALLENGES = 2
# Above this many multiplications the whole product takes the host too long: a check has a deadline.
_ALL_LIMIT = 1 << 34

Places = NDArray[np.intp]


def locate(unit: ProductUnit, pair: Pair, outcome: Outcome) -> list[dict[str, JSON]]:
    """Report entries for what differs: corrupted elements of the operands on the device first, then of C,
    MAX_ELEMENTS of each. C is the evidence of the outcome; without it only operands are looked at.

    Rows and columns whose checksums modulo exact.PRIME are wrong give the candidates, and these lines, at most
    _MAX_LINES of them, are computed again in exact integers. When they show nothing, checksums of another challenge
    are asked: a wrong line passes both with a probability below 2^-63. When those show nothing either, and for an
    ieee range, whose rounded results have no checksums, all of C is compared, unless its product is too large.

    In memory at most: A and B in 64-bit integers, one of them once more, and C (1.3 GiB at 8192 x 8192 x 4096).
    """
    case = outcome.case
    a, b = case.host_operands()
    entries = _operand_errors(unit.device, case, unit.a[pair[0]], a, "a")
    entries += _operand_errors(unit.device, case, unit.b[pair[1]], b, "b")
    if outcome.evidence is None:
        return entries
    return entries + _result_errors(outcome.evidence, case, a, b, unit.c.storage.name)


def _result_errors(bits: NDArray[Any], case: Case, a: I64, b: I64, storage: str) -> list[dict[str, JSON]]:
    everything, cheap = np.arange(case.shape.m), case.shape.operations <= 2 * _ALL_LIMIT
    if case.operands.rounds_to is not None:
        return _compare(bits, case, a, b, everything, None, storage)
    for number in range(_CHALLENGES):
        rows, cols = _suspects(bits, case, a, b, storage, operands.mix(case.seed_a + number))
        if 0 < cols.size <= _MAX_LINES < rows.size:
            found = _compare(bits, case, a, b, everything, cols, storage)
        else:
            found = _compare(bits, case, a, b, rows[:_MAX_LINES], None, storage)
        if found:
            return [{**entry, "wrong_rows": rows.size, "wrong_cols": cols.size} for entry in found]
    return _compare(bits, case, a, b, everything, None, storage) if cheap else []


def first_places(wrong: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Row and column of the first MAX_ELEMENTS places that are set, row by row."""
    rows = np.flatnonzero(wrong.any(axis=1))[:MAX_ELEMENTS]
    places: NDArray[np.intp] = np.argwhere(wrong[rows])[:MAX_ELEMENTS]
    places[:, 0] = rows[places[:, 0]]
    return places


def _suspects(bits: NDArray[Any], case: Case, a: I64, b: I64, storage: str, seed: int) -> tuple[Places, Places]:
    """Rows and columns of C whose checksums are wrong or that hold something else than integers."""
    scale, (count, width) = case.scale(), bits.shape
    w, v = freivalds.challenge(seed, count, width)
    right = freivalds.times_vector(a, freivalds.times_vector(b, v))
    below = freivalds.vector_times(freivalds.vector_times(w, a), b)
    bad_rows, odd_cols = np.empty(count, dtype=np.bool_), np.zeros(width, dtype=np.bool_)
    sums = np.zeros(width, dtype=np.uint64)
    step = max(1, _BLOCK // width)
    for row in range(0, count, step):
        part = slice(row, min(row + step, count))
        values = values_from_raw(bits[part], storage)
        integers = integers_of(values, None if scale is None else Scale(scale.rows[part], scale.cols))
        odd = values_from_raw(_result_bits(integers, scale, part, None, storage), storage) != values
        bad_rows[part] = (freivalds.times_vector(integers, v) != right[part]) | odd.any(axis=1)
        odd_cols |= odd.any(axis=0)
        sums = (sums + freivalds.vector_times(w[part], integers)) % np.uint64(operands.PRIME)
    return np.flatnonzero(bad_rows), np.flatnonzero((sums != below) | odd_cols)


def _result_bits(
    integers: I64, scale: Scale | None, rows: Places | slice, cols: Places | None, storage: str
) -> NDArray[Any]:
    """Bits of right results for some rows and columns (None: all), with their powers of two."""
    if scale is None:
        return raw_from_integers(integers, storage)
    across = scale.cols if cols is None else scale.cols[cols]
    return raw_from_integers(integers, storage, scale.rows[rows][:, None] + across[None, :])


def _compare(
    bits: NDArray[Any], case: Case, a: I64, b: I64, rows: Places, cols: Places | None, storage: str
) -> list[dict[str, JSON]]:
    """Entries for the elements of these rows and columns (None: all) that differ from the right ones."""
    right, scale = b if cols is None else b[:, cols], case.scale()
    found: list[dict[str, JSON]] = []
    count = 0
    for begin in range(0, rows.size, _BLOCK_ROWS):
        part = rows[begin : begin + _BLOCK_ROWS]
        got = bits[part] if cols is None else bits[part][:, cols]
        expected = _result_bits(integer_product(a[part], right, case.operands), scale, part, cols, storage)
        wrong = got != expected
        if not storage.startswith("int"):
            sign = got.dtype.type(1 << (8 * got.itemsize - 1))
            wrong &= ~((expected == 0) & (got == sign))  # -0 reads as 0
        count += int(wrong.sum())
        for i, j in first_places(wrong)[: MAX_ELEMENTS - len(found)]:
            row, col = int(part[i]), int(j if cols is None else cols[j])
            entry = _entry("c", case, row, col, got[i, j], expected[i, j], storage)
            found.append({**entry, "tile": [row // _TILE, col // _TILE]})
    return [{**entry, "wrong_elements_seen": count} for entry in found]


def _operand_errors(device: Device, case: Case, buffer: Buffer, integers: I64, name: str) -> list[dict[str, JSON]]:
    """Entries for elements of an operand that are not what was filled in; a line is a row of A or a column of B."""
    lines = integers.T if buffer.transposed else integers
    exponents = case.operand(name).exponents
    found: list[dict[str, JSON]] = []
    count, width = lines.shape
    step = max(1, _BLOCK // width)
    for line in range(0, count, step):
        part = slice(line, min(line + step, count))
        got = device.read_raw(buffer, line * width, (part.stop - line) * width).reshape(-1, width)
        powers = None if exponents is None else exponents[part, None]
        expected = raw_from_integers(lines[part], buffer.storage.name, powers)
        for i, j in first_places(got != expected)[: MAX_ELEMENTS - len(found)]:
            place = (int(j), line + int(i)) if buffer.transposed else (line + int(i), int(j))
            found.append(_entry(name, case, *place, got[i, j], expected[i, j], buffer.storage.name))
    return found


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
