"""Wrong elements of a probe: a fault of the GPU, or another way to compute?

A library that takes another path than was asked for, or emulates one, rounds all products its own way: each is near the
right one, and no part of the result is free of it. What a fault does is not like that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.storage import values_from_raw
from gpu_burnin.exact.locate import bit_entry, first_places
from gpu_burnin.exact.product import ProductUnit
from gpu_burnin.types import JSON

# Operands cut to 8 bits, the fewest that a library computes FP32 or FP64 with, put a product this far off, relative.
_NEAR = 2.0**-5
# A path that rounds its own way does so in more of the products than this.
_FEW = 0.01
# Sides of the blocks of a result that are looked at by themselves: 4096 elements, of which another path has many wrong.
_BLOCK = 64


@dataclass(frozen=True)
class ProbeErrors:
    """Elements that no data path gives: report entries, and how a repeat came out ("right", "same" or "other")."""

    entries: tuple[dict[str, JSON], ...]
    nonfinite: int
    repeat: str


def first_product(unit: ProductUnit, rows: int, cols: int) -> NDArray[Any]:
    """Multiply the first operands into an empty C; bits of its first rows and columns."""
    unit.clear()
    unit.stream.gemm(unit.precision, unit.a[0], unit.b[0], unit.c)
    bits = unit.device.read_raw(unit.c, 0, rows * unit.shape.n).reshape(rows, unit.shape.n)
    return np.ascontiguousarray(bits[:, :cols])


def is_near(got: NDArray[Any], right: NDArray[Any], within: float) -> NDArray[np.bool_]:
    """Which values are at most `within` from the right ones, relative; NaN and Inf are not."""
    with np.errstate(invalid="ignore", over="ignore"):
        near: NDArray[np.bool_] = np.abs(got.astype(np.float64) - right) <= within * np.abs(right)
    return near


def is_fault(got: NDArray[Any], right: NDArray[Any], wrong: NDArray[np.bool_]) -> bool:
    """Whether the elements that are `wrong` (one at least) are the work of a fault.

    They are when any is far from the right value, when they are few, or when whole blocks are free of them.
    """
    if (wrong & ~is_near(got, right, _NEAR)).any() or wrong.mean() < _FEW:
        return True
    rows, cols = (range(0, size, _BLOCK) for size in wrong.shape)
    return not all(wrong[i : i + _BLOCK, j : j + _BLOCK].any() for i in rows for j in cols)


def probe_errors(
    unit: ProductUnit,
    operands: str,
    bits: NDArray[Any],
    expected: NDArray[Any],
    wrong: NDArray[np.bool_],
    within: float = 0.0,
) -> ProbeErrors:
    """Describe the wrong elements of a corner of C, and make the product once more.

    `within` is how far from `expected` a right value may be, relative; 0 where the bits are known.
    """
    storage, again = unit.c.storage.name, first_product(unit, *bits.shape)
    repeat = "other"
    if np.array_equal(again[wrong], bits[wrong]):
        repeat = "same"
    elif is_near(values_from_raw(again, storage), values_from_raw(expected, storage), within)[wrong].all():
        repeat = "right"
    common: dict[str, JSON] = {
        "precision": unit.precision,
        "range": operands,
        "problems": ["mismatch"],
        "repeat": repeat,
        "wrong_elements_seen": int(wrong.sum()),
        "elements_seen": int(wrong.size),
    }
    entries = tuple(
        {**common, **_element(int(i), int(j), bits[i, j], expected[i, j], storage, within == 0)}
        for i, j in first_places(wrong)
    )
    with np.errstate(invalid="ignore"):
        values = values_from_raw(bits, storage)
    return ProbeErrors(entries, int((~np.isfinite(values)).sum()), repeat)


def _element(row: int, col: int, got: Any, expected: Any, storage: str, known: bool) -> dict[str, JSON]:
    entry = bit_entry("c", row, col, got, expected, storage)
    if not known:
        del entry["expected_bits"], entry["flipped_bits"]
    return entry
