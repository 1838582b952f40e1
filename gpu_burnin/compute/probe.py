"""Which unit made a product: probes whose bits differ between data paths, and rates that only one can reach.

Exact products come out the same on every data path, so they cannot tell. These can:
- FP64 and FP32: one full-mantissa product in each dot product, rounded once: only the native path gives it;
- TF32: the same FP32 operands; TF32 cuts each to 11 significant bits, by truncation or to nearest;
- BF16, FP16, FP8: positive random operands. Tensor cores truncate their sums, so hardly any result lies
  above the exact value; units that round to nearest give about half (project design, section 6);
- all: a rate above the peak of every other path that could have made the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.compute import exact
from gpu_burnin.compute.backend import values_from_raw
from gpu_burnin.compute.exact import I64, RANGES
from gpu_burnin.compute.integer import factor_products
from gpu_burnin.compute.product import Case, ProductUnit
from gpu_burnin.types import JSON

_TRUNCATED = ("bf16", "fp16", "fp8_e4m3")
# Share of results above the exact value: truncating units stay below the first, rounding ones above the second.
_FEW, _MANY = 0.1, 0.35
_SAMPLE = 64
# Rows of a rounding probe that are compared.
_ROWS = 128
# The double sum of up to MAX_K products is good to this, so differences below it say nothing.
_DOUBLE_SLACK = exact.MAX_K * 2.0**-53
# Other data paths, by their names in skus.yaml, that could make the same bits.
_OTHER_PATHS: dict[str, tuple[str, ...]] = {
    "fp64": ("fp64_vector",),
    "fp32": ("fp64_vector",),
    "tf32": ("fp32",),
    "bf16": ("tf32", "fp32", "bf16_vector"),
    "fp16": ("tf32", "fp32", "fp16_vector"),
    "int8": ("fp16", "bf16", "int8_vector"),
    "fp8_e4m3": ("fp16", "bf16"),
}
_OWN_PATHS: dict[str, tuple[str, ...]] = {"fp8_e4m3": ("fp8",), "fp64": ("fp64_vector", "fp64_tensor")}
# Bits that no other path of a GPU gives, unless it emulates them.
_TOLD_BY_BITS = ("fp64", "fp32", "tf32")
# A path is told by its rate only when the others are clearly slower.
_SLOWER = 0.9
# Room above a peak for clocks over the nominal boost and for short timings.
_ABOVE_PEAK = 1.1


@dataclass(frozen=True)
class BitProbe:
    """What the bits of the probe say: `path` in words; `seen` is False when they speak against the precision.

    `acts_as` is the precision whose operand ranges the path can hold.
    """

    precision: str
    path: str
    seen: bool
    why: str
    acts_as: str


@dataclass(frozen=True)
class DataPath:
    """The data path of one precision: proven by bits and rate together. Rates in TFLOP/s or TOP/s."""

    path: str
    proven: bool
    why: str
    rate: float | None
    rate_floor: float | None

    def to_json(self) -> dict[str, JSON]:
        """For the report's coverage."""
        return {
            "path": self.path,
            "proven": self.proven,
            "why": self.why,
            "rate": self.rate,
            "rate_floor": self.rate_floor,
        }


def probe_bits(unit: ProductUnit, seed: int) -> BitProbe:
    """Run the probe of one precision. It makes one product, and leaves the unit without operands."""
    precision = unit.precision
    if precision in ("fp64", "fp32", "tf32"):
        return _rounding(unit, seed)
    if precision in _TRUNCATED:
        share = share_above(unit, seed)
        if share is None:
            return BitProbe(precision, "unknown", False, "too many results are exact to tell how they round", precision)
        if share < _FEW:
            return BitProbe(precision, "tensor core", True, f"{share:.0%} of results above the exact sum", precision)
        what = "rounding to nearest" if share > _MANY else "unknown"
        return BitProbe(precision, what, False, f"{share:.0%} of results lie above the exact sum", precision)
    return BitProbe(precision, "by rate alone", True, "integer results are the same on every path", precision)


def _rounding(unit: ProductUnit, seed: int) -> BitProbe:
    """Compare one full-mantissa product in each dot product with what native and TF32 units make of it."""
    precision, shape = unit.precision, unit.shape
    operands = RANGES["ieee_fp64" if precision == "fp64" else "ieee_fp32"]
    case = Case(precision, operands, shape, seed, seed)
    unit.backend.fill(unit.a[0], case.operand("a"))
    unit.backend.fill(unit.b[0], case.operand("b"))
    unit.stream.gemm(precision, unit.a[0], unit.b[0], unit.c)
    rows = min(_ROWS, shape.m)
    bits = unit.backend.read_raw(unit.c, 0, rows * shape.n).reshape(rows, shape.n)
    got = values_from_raw(bits, unit.c.storage.name)
    left, right = _factors(case, rows)
    if np.array_equal(got, factor_products(left, right, operands.rounds_to)):
        seen = precision != "tf32"
        acts_as = precision if seen else "fp32"
        return BitProbe(precision, f"native {operands.rounds_to}", seen, "full mantissas rounded once", acts_as)
    for how, cut in _CUTS:
        if precision != "fp64" and np.array_equal(got, factor_products(cut(left), cut(right), None)):
            return BitProbe(precision, "tf32", precision == "tf32", f"operands {how} to 11 bits", "tf32")
    return BitProbe(precision, "unknown", False, "full-mantissa products are those of no known path", precision)


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


def share_above(unit: ProductUnit, seed: int) -> float | None:
    """Share of a corner of C, positive random operands, that lies above the exact value, among those off it.

    None when less than a quarter of the results is off the exact value.
    """
    backend, shape = unit.backend, unit.shape
    rows, cols = min(_SAMPLE, shape.m), min(_SAMPLE, shape.n)
    for buffer, stream in ((unit.a[0], "probe a"), (unit.b[0], "probe b")):
        backend.fill_random(buffer, exact.stream_key(seed, stream), positive=True)
    unit.stream.gemm(unit.precision, unit.a[0], unit.b[0], unit.c)
    storage = unit.a[0].storage.name
    left = _numbers(backend.read_raw(unit.a[0], 0, rows * shape.k), storage).reshape(rows, shape.k)
    right = _numbers(backend.read_raw(unit.b[0], 0, cols * shape.k), storage).reshape(cols, shape.k)
    corner = backend.read_raw(unit.c, 0, rows * shape.n).reshape(rows, shape.n)[:, :cols]
    got = _numbers(corner, unit.c.storage.name)
    right_sums = left @ right.T
    above = got > right_sums * (1 + _DOUBLE_SLACK)
    below = got < right_sums * (1 - _DOUBLE_SLACK)
    off = int(above.sum() + below.sum())
    return float(above.sum()) / off if 4 * off >= got.size else None


def _numbers(bits: NDArray[Any], storage: str) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # a signalling NaN, made by a fault
        numbers: NDArray[np.float64] = values_from_raw(np.ascontiguousarray(bits), storage).astype(np.float64)
    return numbers


def rate_floor(precision: str, peaks: Mapping[str, float]) -> float | None:
    """The rate above which no other path could have made the products; None where none is clearly slower."""
    own = _own_peak(precision, peaks)
    others = [peaks[name] for name in _OTHER_PATHS[precision] if name in peaks]
    if own is None or not others or max(others) >= _SLOWER * own:
        return None
    return max(others)


def _own_peak(precision: str, peaks: Mapping[str, float]) -> float | None:
    names = _OWN_PATHS.get(precision, (precision,))
    return max((peaks[name] for name in names if name in peaks), default=None)


def judge_path(probe: BitProbe, rate: float | None, peaks: Mapping[str, float] | None) -> DataPath:
    """Put bits and rate (TFLOP/s or TOP/s) together. Without known peaks of the model nothing is proven.

    A rate above the path's own peak means another path too: libraries can emulate FP32 and FP64 on faster units.
    """
    if not probe.seen:
        return DataPath(probe.path, False, probe.why, rate, None)
    own = _own_peak(probe.precision, peaks or {})
    if peaks is None or own is None:
        return DataPath(probe.path, False, f"{probe.why}; this model's peak rate is not known", rate, None)
    floor = rate_floor(probe.precision, peaks)
    if rate is None:
        return DataPath(probe.path, False, f"{probe.why}; no rate was measured", rate, floor)
    if rate > _ABOVE_PEAK * own:
        return DataPath(probe.path, False, f"{rate:.4g} T/s is above the path's own peak of {own:.4g} T/s", rate, floor)
    if floor is None:
        proven = probe.precision in _TOLD_BY_BITS
        also = "bits alone tell" if proven else "no other path with the same bits is clearly slower"
        return DataPath(probe.path, proven, f"{probe.why}; {also}", rate, None)
    if rate <= floor:
        why = f"{probe.why}; {rate:.4g} T/s is not above the {floor:.4g} T/s that another path can reach"
        return DataPath(probe.path, False, why, rate, floor)
    return DataPath(probe.path, True, f"{probe.why}; faster than any other path", rate, floor)


def simulated_path(precision: str, rate: float | None) -> DataPath:
    """On the CPU backend there is no data path of a GPU to prove."""
    return DataPath("numpy", False, f"no GPU made these {precision} products", rate, None)
