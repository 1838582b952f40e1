"""Which unit made a product: probes whose bits differ between data paths, and which other paths they leave open.

Exact products come out the same on every data path, so they cannot tell. These can:
- FP64 and FP32: one full-mantissa product in each dot product, rounded once: only the native path gives it;
- TF32: the same FP32 operands; TF32 cuts each to 11 significant bits, by truncation or to nearest;
- BF16, FP16, FP8: positive random operands. Tensor cores truncate their sums, so hardly any result lies above the exact
  value; units that round to nearest give about half. Their size tells more: FP16 units overflow on BF16 operands, BF16
  units cut FP16 operands to 8 bits, and FP8 units of Ada and Hopper keep about 13 bits of a sum, where any other unit
  keeps 23 and more;
- INT8: sums beyond 2^24, which only an integer accumulator holds to the last bit.
What bits leave open is told by rates (data_path.py). Where the right bits of a probe are known, wrong ones are a fault
of the GPU, unless they are what another path would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.gemm.probe_errors import ProbeErrors, first_product, is_fault, is_near, probe_errors
from gpu_burnin.device.storage import raw_from_integers, values_from_raw
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.integer import factor_products
from gpu_burnin.exact.operands import I64, RANGES, Operand
from gpu_burnin.exact.product import Case, ProductUnit

# Share of results above the exact value: truncating units stay below the first, rounding ones above the second.
_FEW, _MANY = 0.1, 0.35
# Median distance of a result from the exact sum of positive terms, relative. An accumulator of 13 bits is 2^-10 off and
# more, one of 23 to 25 bits 2^-15 at most for 4096 terms (both computed for tensor cores that align the terms of a step
# to the largest and truncate them); FP16 operands cut to 8 bits are 2^-8 off.
_SHORT = 2.0**-12
# A positive sum this far off is none of any arithmetic.
_GROSS = 2.0**-3
_SAMPLE = 64
# Rows of a rounding probe that are compared.
_ROWS = 128
# The double sum of up to MAX_K products is good to this, so differences below it say nothing.
_DOUBLE_SLACK = exact.MAX_K * 2.0**-53
# INT8 operands of the probe: 0 <= v <= 127 with v >= 64, so that 4096 terms add up to 2^24 and more.
_INT8_LEAST = 64
# Least share of sums that FP32 cannot hold; of random ones beyond 2^24 it is half or more.
_BEYOND = 0.1

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class BitProbe:
    """What the bits of the probe say: `path` in words; `seen` is False when they speak against the precision.

    `acts_as` is the precision whose operand ranges the path can hold. `rivals` are the other data paths, by their names
    in skus.yaml, that could have made the same bits. `errors` are elements that no path gives.
    """

    precision: str
    path: str
    seen: bool
    why: str
    acts_as: str
    rivals: tuple[str, ...] = ()
    errors: ProbeErrors | None = None


def probe_bits(unit: ProductUnit, seed: int) -> BitProbe:
    """Run the probe of one precision. It makes one product, two where it is wrong, and leaves the unit without
    operands and results."""
    probes: dict[str, Callable[[ProductUnit, int], BitProbe]] = {
        "fp64": _rounding, "fp32": _rounding, "tf32": _rounding, "int8": _integers,
    }  # fmt: skip
    probe = probes.get(unit.precision, _sums)(unit, seed)
    unit.clear()
    return probe


# --- FP64, FP32, TF32 ---


@dataclass(frozen=True)
class _Path:
    """A path that is known, and what it makes of the probe (integers)."""

    name: str
    why: str
    acts_as: str
    products: I64


def _rounding(unit: ProductUnit, seed: int) -> BitProbe:
    """Compare one full-mantissa product in each dot product with what native and TF32 units make of it."""
    precision, shape = unit.precision, unit.shape
    operands = RANGES["ieee_fp64" if precision == "fp64" else "ieee_fp32"]
    case = Case(precision, operands, shape, seed, seed)
    unit.products.fill(unit.a[0], case.operand("a"))
    unit.products.fill(unit.b[0], case.operand("b"))
    left, right = _factors(case, min(_ROWS, shape.m))
    native = "fp64" if precision == "fp64" else "fp32"
    rounded = factor_products(left, right, operands.rounds_to)
    paths = [_Path(f"native {native}", "full mantissas rounded once", native, rounded)]
    if precision != "fp64":
        paths += [
            _Path("tf32", f"operands {how} to 11 bits", "tf32", factor_products(cut(left), cut(right), None))
            for how, cut in _CUTS
        ]
    bits = first_product(unit, left.size, shape.n)
    got = values_from_raw(bits, unit.c.storage.name)
    matches = [got == path.products for path in paths]
    best = max(range(len(paths)), key=lambda i: int(matches[i].sum()))
    path, wrong = paths[best], ~np.logical_or.reduce(matches)
    if matches[best].all():
        return BitProbe(precision, path.name, path.acts_as == precision, path.why, path.acts_as)
    if wrong.any() and is_fault(got, rounded, wrong):
        expected = raw_from_integers(path.products, unit.c.storage.name)
        errors = probe_errors(unit, operands.name, bits, expected, wrong)
        if matches[best].any():
            return BitProbe(precision, path.name, path.acts_as == precision, path.why, path.acts_as, errors=errors)
        return BitProbe(precision, "unknown", False, "no full-mantissa product is right", precision, errors=errors)
    why = f"{matches[best].mean():.0%} of full-mantissa products are those of {path.name}, the others near it"
    return BitProbe(precision, "unknown", False, why, precision)


def _factors(case: Case, rows: int) -> tuple[I64, I64]:
    """The nonzero of each of the first rows of A, and the row of B that it meets, made again on the host."""
    shape, a, b = case.shape, case.operand("a"), case.operand("b")
    block = exact.operand_rows(a.key, a.bound, a.signed, a.stride, 0, rows, shape.k, a.low)
    places = np.abs(block).argmax(axis=1)
    met = [exact.operand_rows(b.key, b.bound, b.signed, b.stride, int(p), 1, shape.n, b.low) for p in places]
    return block[np.arange(rows), places], np.concatenate(met)


def _truncated(values: I64) -> I64:
    """24-bit integers cut to their first 11 bits."""
    kept: I64 = np.sign(values) * (np.abs(values) >> np.int64(13) << np.int64(13))
    return kept


def _nearest(values: I64) -> I64:
    """24-bit integers rounded to 11 bits, halves away from zero (PTX cvt.rna.tf32)."""
    kept: I64 = np.sign(values) * ((np.abs(values) + np.int64(1 << 12)) >> np.int64(13) << np.int64(13))
    return kept


def _nearest_even(values: I64) -> I64:
    """24-bit integers rounded to 11 bits, halves to even (PTX cvt.rn.tf32)."""
    kept: I64 = np.rint(values / (1 << 13)).astype(np.int64) << np.int64(13)
    return kept


# What TF32 units, or the library before them, make of FP32 operands.
_CUTS = (("truncated", _truncated), ("rounded", _nearest), ("rounded to even", _nearest_even))


# --- BF16, FP16, FP8 ---


def _sums(unit: ProductUnit, seed: int) -> BitProbe:
    """How a corner of C, made of positive random operands, lies beside its exact values."""
    precision, shape = unit.precision, unit.shape
    rows, cols = min(_SAMPLE, shape.m), min(_SAMPLE, shape.n)
    for buffer, stream in ((unit.a[0], "probe a"), (unit.b[0], "probe b")):
        unit.products.fill_random(buffer, exact.stream_key(seed, stream), positive=True)
    storage = unit.a[0].storage.name
    left = _numbers(unit.device.read_raw(unit.a[0], 0, rows * shape.k), storage).reshape(rows, shape.k)
    right = _numbers(unit.device.read_raw(unit.b[0], 0, cols * shape.k), storage).reshape(cols, shape.k)
    bits = first_product(unit, rows, cols)
    got, sums = _numbers(bits, unit.c.storage.name), left @ right.T
    gross = ~is_near(got, sums, _GROSS)
    errors = None
    if 0 < 2 * int(gross.sum()) < gross.size:  # of more than that it is the path that is another
        errors = probe_errors(unit, "random", bits, sums.astype(np.float32).view(np.uint32), gross, _GROSS)
    above, below = got > sums * (1 + _DOUBLE_SLACK), got < sums * (1 - _DOUBLE_SLACK)
    share = float(above.sum()) / max(1, int(above.sum() + below.sum()))
    if gross.any() and errors is None:
        return BitProbe(
            precision, "unknown", False, f"{gross.mean():.0%} of results are far from their sums", precision
        )
    median = float(np.median((np.abs(got - sums) / sums)[~gross]))
    tells = 4 * int(above.sum() + below.sum()) >= got.size
    path, seen, why, rivals = _unit_of_sums(precision, tells, share, median)
    return BitProbe(precision, path, seen, why, precision, rivals, errors)


def _unit_of_sums(precision: str, tells: bool, share: float, median: float) -> tuple[str, bool, str, tuple[str, ...]]:
    """Path, whether it is the precision's own, why, and rivals: by the share of results above the exact sum (which
    `tells` when enough lie off it) and by their median distance from it."""
    if not tells:
        return "unknown", False, "too many results are exact to tell how they round", ()
    why = f"{share:.0%} of results above the exact sum"
    if share >= _FEW:
        what = "rounding to nearest" if share > _MANY else "unknown"
        return what, False, why, ()
    short = median >= _SHORT
    if precision == "fp8_e4m3":
        # Converted to FP16 or BF16, FP8 operands give full sums on the units of those.
        rivals = () if short else ("fp16", "bf16")
        return "tensor core", True, f"{why}; {'short' if short else 'full'} accumulator", rivals
    if short:
        return "unknown", False, f"{why}, typically by {median:.2g} of it: operands or sums were cut", ()
    return "tensor core", True, why, ("tf32",)  # which holds both types of operands


def _numbers(bits: NDArray[Any], storage: str) -> F64:
    with np.errstate(invalid="ignore"):  # a signalling NaN, made by a fault
        numbers: F64 = values_from_raw(np.ascontiguousarray(bits), storage).astype(np.float64)
    return numbers


# --- INT8 ---


def _integers(unit: ProductUnit, seed: int) -> BitProbe:
    """Compare a corner of C, whose sums go beyond 2^24, with the right integers: no FP32 accumulator holds them."""
    shape = unit.shape
    rows, cols = min(_SAMPLE, shape.m), min(_SAMPLE, shape.n)
    a, b = (Operand(exact.stream_key(seed, f"probe {side}"), 127, False, low=_INT8_LEAST) for side in ("a", "b"))
    unit.products.fill(unit.a[0], a)
    unit.products.fill(unit.b[0], b)
    left = exact.operand_rows(a.key, a.bound, a.signed, a.stride, 0, rows, shape.k, a.low)
    columns = [exact.operand_values(b.key, b.bound, b.signed, j, shape.k, b.low, shape.n) for j in range(cols)]
    sums: I64 = left @ np.stack(columns, axis=1)
    bits = first_product(unit, rows, cols)
    got = bits.view(np.int32).astype(np.int64)
    wrong = got != sums
    if wrong.any() and not is_fault(got, sums, wrong):
        return BitProbe("int8", "floating-point accumulator", False, "sums beyond 2^24 are rounded", "bf16")
    errors = probe_errors(unit, "byte", bits, raw_from_integers(sums, "int32"), wrong) if wrong.any() else None
    if np.mean(sums.astype(np.float32).astype(np.int64) != sums) >= _BEYOND:
        why = "sums beyond 2^24 to the last bit"
        return BitProbe("int8", "integer accumulator", True, why, "int8", ("int8_vector",), errors)
    why = "sums are short enough for any accumulator"
    return BitProbe("int8", "by rate alone", True, why, "int8", ("int8_vector", "fp16", "bf16"), errors)
