"""Probes that tell data paths apart: each path simulated, each wrong one refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_burnin.compute import exact
from gpu_burnin.compute.backend import Buffer, read_matrix, values_from_raw
from gpu_burnin.compute.cpu import CpuBackend
from gpu_burnin.compute.probe import BitProbe, judge_path, probe_bits, rate_floor, share_above, simulated_path
from gpu_burnin.compute.product import ProductUnit, Shape, Stream
from gpu_burnin.hardware.skus import load_skus

SHAPE = Shape(128, 256, 256)


def _truncate(values: np.ndarray, bits: int) -> np.ndarray:
    """Numbers cut to `bits` significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.trunc(mantissa * 2.0**bits), exponent - bits)


class _Device(CpuBackend):
    """Multiplies as another data path would: `operand_bits` kept of FP32 operands, sums cut or rounded."""

    def __init__(self, operand_bits: int = 24, rounding: Any = None, truncating: bool = False, fp64: bool = False):
        super().__init__()
        self.operand_bits, self.rounding, self.truncating, self.fp64 = operand_bits, rounding, truncating, fp64

    def _numbers(self, buffer: Buffer) -> np.ndarray:
        values = values_from_raw(read_matrix(self, buffer), buffer.storage.name).astype(np.float64)
        if buffer.storage.name != "fp32":
            return values
        mantissa, exponent = np.frexp(values)
        if self.rounding is not None:
            return np.ldexp(self.rounding(mantissa * 2.0**self.operand_bits), exponent - self.operand_bits)
        return _truncate(values, self.operand_bits)

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        super().gemm(precision, a, b, c)
        if precision == "int8" or (precision == "fp64" and not self.fp64):
            return
        left, right = self._numbers(a), self._numbers(b)
        if self.truncating:
            total = np.zeros((c.rows, c.cols))
            for k in range(0, a.cols, 16):
                total = _truncate(total + left[:, k : k + 16] @ right[k : k + 16], 24)
        elif self.fp64:  # FP64 by FP32 units
            total = (left.astype(np.float32) @ right.astype(np.float32)).astype(np.float64)
        else:
            total = left @ right
        c.data[...] = total.astype(np.float64 if precision == "fp64" else np.float32).view(c.data.dtype)


def _probe(precision: str, backend: CpuBackend) -> BitProbe:
    return probe_bits(ProductUnit(Stream(backend), precision, SHAPE), 3)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_native_products_are_recognised(precision: str) -> None:
    probe = _probe(precision, CpuBackend())
    assert (probe.seen, probe.path, probe.acts_as) == (True, f"native {precision}", precision)


def _half_away(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.floor(np.abs(values) + 0.5)


@pytest.mark.parametrize("rounding", [None, np.rint, _half_away])
def test_tf32_is_recognised_however_it_rounds_and_not_taken_for_fp32(rounding: Any) -> None:
    probe = _probe("tf32", _Device(11, rounding))
    assert (probe.seen, probe.path, probe.acts_as) == (True, "tf32", "tf32")
    as_fp32 = _probe("fp32", _Device(11, rounding))
    assert (as_fp32.seen, as_fp32.path, as_fp32.acts_as) == (False, "tf32", "tf32")


def test_fp32_units_are_not_taken_for_tf32() -> None:
    probe = _probe("tf32", CpuBackend())
    assert (probe.seen, probe.path, probe.acts_as) == (False, "native fp32", "fp32")


@pytest.mark.parametrize(
    ("precision", "backend"), [("fp32", _Device(16)), ("tf32", _Device(8)), ("fp64", _Device(fp64=True))]
)
def test_an_unknown_path_is_not_proven(precision: str, backend: CpuBackend) -> None:
    probe = _probe(precision, backend)
    assert (probe.seen, probe.path) == (False, "unknown")


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8_e4m3"])
def test_truncating_and_rounding_units_are_told_apart(precision: str) -> None:
    tensor, rounding = _probe(precision, _Device(truncating=True)), _probe(precision, _Device())
    assert (tensor.seen, tensor.path) == (True, "tensor core")
    assert (rounding.seen, rounding.path) == (False, "rounding to nearest")
    assert not _probe(precision, CpuBackend()).seen, "NumPy rounds, too"


def test_results_that_are_exact_tell_nothing() -> None:
    class Exact(CpuBackend):
        def fill_random(self, buffer: Buffer, key: int, positive: bool = False) -> None:
            self.fill(buffer, exact.operand_for(exact.RANGES["filled"], "b", key))

    unit = ProductUnit(Stream(Exact()), "bf16", SHAPE)
    assert share_above(unit, 3) is None
    assert not _probe("bf16", Exact()).seen


# --- rates ---

H200 = load_skus().skus["h200-sxm"].peaks


def _seen(precision: str) -> BitProbe:
    return BitProbe(precision, "path", True, "bits", precision)


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_a_rate_above_every_other_path_and_under_the_own_peak_proves(precision: str) -> None:
    floor = rate_floor(precision, H200)
    assert floor is not None
    own = max(H200[n] for n in {"fp8_e4m3": ("fp8",), "fp64": ("fp64_tensor",)}.get(precision, (precision,)))
    assert floor < 0.9 * own
    proven = judge_path(_seen(precision), (floor + own) / 2, H200)
    assert (proven.proven, proven.rate_floor) == (True, floor)
    for rate in (None, floor, floor / 2, 1.2 * own):
        judged = judge_path(_seen(precision), rate, H200)
        assert not judged.proven and judged.why, rate


def test_bits_that_speak_against_a_path_beat_any_rate() -> None:
    against = BitProbe("fp32", "tf32", False, "operands truncated to 11 bits", "tf32")
    assert not judge_path(against, 60.0, H200).proven


def test_nothing_is_proven_without_peaks() -> None:
    assert not judge_path(_seen("bf16"), 500.0, None).proven
    assert not judge_path(_seen("fp8_e4m3"), 500.0, {k: v for k, v in H200.items() if k != "fp8"}).proven


def test_where_no_other_path_is_slower_bits_decide_or_nothing() -> None:
    level = dict.fromkeys(H200, 100.0)
    for precision in ("fp64", "fp32", "tf32"):
        assert judge_path(_seen(precision), 90.0, level).proven
    for precision in ("bf16", "fp16", "int8", "fp8_e4m3"):
        assert not judge_path(_seen(precision), 90.0, level).proven


def test_a_simulation_proves_no_data_path() -> None:
    assert not simulated_path("bf16", 1.0).proven
    assert set(simulated_path("bf16", 1.0).to_json()) == {"path", "proven", "why", "rate", "rate_floor"}
