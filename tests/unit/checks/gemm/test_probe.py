"""Probes that tell data paths apart: each path simulated, each wrong one refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks.gemm.probe import BitProbe, probe_bits
from gpu_burnin.device.port import read_matrix
from gpu_burnin.device.storage import Buffer, values_from_raw
from gpu_burnin.exact import operands
from gpu_burnin.exact.product import ProductUnit, Shape, Stream
from tests.support.devices import ComputingDevice

SHAPE = Shape(128, 256, 256)


def _truncate(values: np.ndarray, bits: int) -> np.ndarray:
    """Numbers cut to `bits` significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.trunc(mantissa * 2.0**bits), exponent - bits)


class _Device(ComputingDevice):
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


def _probe(precision: str, device: ComputingDevice) -> BitProbe:
    return probe_bits(ProductUnit(Stream(device), precision, SHAPE), 3)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_native_products_are_recognised(precision: str) -> None:
    probe = _probe(precision, ComputingDevice())
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
    probe = _probe("tf32", ComputingDevice())
    assert (probe.seen, probe.path, probe.acts_as) == (False, "native fp32", "fp32")


@pytest.mark.parametrize(
    ("precision", "device"), [("fp32", _Device(16)), ("tf32", _Device(8)), ("fp64", _Device(fp64=True))]
)
def test_an_unknown_path_is_not_proven(precision: str, device: ComputingDevice) -> None:
    probe = _probe(precision, device)
    assert (probe.seen, probe.path, probe.errors) == (False, "unknown", None)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8_e4m3"])
def test_truncating_and_rounding_units_are_told_apart(precision: str) -> None:
    tensor, rounding = _probe(precision, _Device(truncating=True)), _probe(precision, _Device())
    assert (tensor.seen, tensor.path) == (True, "tensor core")
    assert (rounding.seen, rounding.path) == (False, "rounding to nearest")
    assert not _probe(precision, ComputingDevice()).seen, "NumPy rounds, too"


def test_results_that_are_exact_tell_nothing() -> None:
    class Exact(ComputingDevice):
        def fill_random(self, buffer: Buffer, key: int, positive: bool = False) -> None:
            self.fill(buffer, operands.operand_for(operands.RANGES["filled"], "b", key))

    probe = _probe("bf16", Exact())
    assert (probe.seen, probe.why) == (False, "too many results are exact to tell how they round")


# --- tensor cores that align the terms of a step to the largest ---


class _Tensor(ComputingDevice):
    """A tensor core that adds `step` products and the sum so far in one go: each is cut to `bits` fraction bits of the
    largest (Fasi et al., PeerJ CS 2021, of V100 to A100). `operand` are the significant bits it keeps of an operand,
    `largest` is what it can hold."""

    def __init__(self, bits: int, step: int, operand: int = 24, largest: float = np.inf) -> None:
        super().__init__()
        self.bits, self.step, self.operand, self.largest = bits, step, operand, largest

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        left, right = (
            _truncate(values_from_raw(read_matrix(self, x), x.storage.name).astype(np.float64), self.operand)
            for x in (a, b)
        )
        with np.errstate(invalid="ignore", over="ignore"):
            left, right = (np.where(np.abs(x) > self.largest, np.inf, x) for x in (left, right))
            total = np.zeros((c.rows, c.cols))
            for k in range(0, a.cols, self.step):
                terms = left[:, k : k + self.step, None] * right[None, k : k + self.step, :]
                largest = np.maximum(np.abs(terms).max(axis=1), np.abs(total))
                unit = 2.0 ** (np.floor(np.log2(np.maximum(largest, 1e-300))) - self.bits)
                total = np.trunc(terms / unit[:, None, :]).sum(axis=1) * unit + np.trunc(total / unit) * unit
                total = _truncate(total, 24)
            c.data[...] = total.astype(np.float32).view(np.uint32)
        self._launches += 1


_CORNER = Shape(64, 64, 1024)


def _corner(precision: str, device: ComputingDevice) -> BitProbe:
    return probe_bits(ProductUnit(Stream(device), precision, _CORNER), 3)


@pytest.mark.parametrize(("bits", "rivals", "why"), [(13, (), "short"), (25, ("fp16", "bf16"), "full")])
def test_an_fp8_unit_that_keeps_13_bits_is_told_by_its_bits_and_one_that_keeps_more_is_not(
    bits: int, rivals: tuple[str, ...], why: str
) -> None:
    probe = _corner("fp8_e4m3", _Tensor(bits, 32))
    assert (probe.seen, probe.rivals, probe.errors) == (True, rivals, None)
    assert f"{why} accumulator" in probe.why


def test_fp8_products_by_fp16_units_are_left_to_the_rate() -> None:
    assert _corner("fp8_e4m3", _Tensor(23, 8)).rivals == ("fp16", "bf16"), "the coarsest unit but FP8's"


def test_bf16_and_fp16_units_are_told_apart_by_the_range_and_the_bits_of_operands() -> None:
    for precision in ("bf16", "fp16"):
        right = _corner(precision, _Tensor(24, 16))
        assert (right.seen, right.rivals, right.errors) == (True, ("tf32",), None)
    by_fp16 = _corner("bf16", _Tensor(24, 16, operand=11, largest=65504.0))
    by_bf16 = _corner("fp16", _Tensor(24, 16, operand=8))
    assert (by_fp16.seen, by_fp16.errors) == (by_bf16.seen, by_bf16.errors) == (False, None)
    assert "were cut" in by_bf16.why


# --- INT8 ---


class _Int8ByFp32(ComputingDevice):
    """INT8 products by a unit that adds in FP32."""

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        left, right = (read_matrix(self, x).view(np.int8).astype(np.float32) for x in (a, b))
        c.data[...] = (left @ right).astype(np.int32).view(np.uint32)
        self._launches += 1


def test_int8_sums_beyond_2_to_the_24_need_an_integer_accumulator() -> None:
    shape = Shape(64, 96, 4096)
    integer = probe_bits(ProductUnit(Stream(ComputingDevice()), "int8", shape), 3)
    assert (integer.seen, integer.path, integer.rivals) == (True, "integer accumulator", ("int8_vector",))
    rounded = probe_bits(ProductUnit(Stream(_Int8ByFp32()), "int8", shape), 3)
    assert (rounded.seen, rounded.path, rounded.acts_as) == (False, "floating-point accumulator", "bf16")
    assert rounded.errors is None, "another path is no fault"


def test_short_int8_sums_leave_the_path_to_the_rate() -> None:
    for device in (ComputingDevice(), _Int8ByFp32()):
        probe = _probe("int8", device)
        assert (probe.seen, probe.path, probe.rivals) == (True, "by rate alone", ("int8_vector", "fp16", "bf16"))


# --- faults ---


class _Faulty(_Device):
    """Changes elements of every product, or of the first `times` ones."""

    def __init__(self, change: Any, times: int = 99, **path: Any) -> None:
        super().__init__(**path)
        self.change, self.times = change, times

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        super().gemm(precision, a, b, c)
        if self.times > 0:
            self.times -= 1
            self.change(c.data)


def _low_bit(data: np.ndarray) -> None:
    data[5, 6] ^= data.dtype.type(1)


def _block(data: np.ndarray) -> None:
    data[64:, 128:192] ^= data.dtype.type(4)


def _nan(data: np.ndarray) -> None:
    data[9, 9] = ~data.dtype.type(0)


def _zero(data: np.ndarray) -> None:
    data[3] = 0


@pytest.mark.parametrize("precision", ["fp64", "fp32", "int8"])
@pytest.mark.parametrize(("change", "first"), [(_low_bit, (5, 6)), (_zero, (3, 0))])
def test_wrong_elements_among_known_bits_are_a_fault_and_the_path_is_still_seen(
    precision: str, change: Any, first: tuple[int, int]
) -> None:
    probe = _probe(precision, _Faulty(change, fp64=False))
    assert probe.seen and probe.errors is not None
    entry = probe.errors.entries[0]
    assert (entry["row"], entry["col"], entry["repeat"]) == (*first, "same")
    assert _probe(precision, _Faulty(change, times=1)).errors.entries[0]["repeat"] == "right"  # type: ignore[union-attr]
    if change is _low_bit:
        assert entry["flipped_bits"] == [0] and entry["wrong_elements_seen"] == 1


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_low_bits_of_one_block_are_a_fault_and_no_other_path(precision: str) -> None:
    probe = _probe(precision, _Faulty(_block))
    assert probe.path == f"native {precision}" and probe.errors is not None
    assert probe.errors.entries[0]["wrong_elements_seen"] == 64 * 64


def test_a_wrong_element_of_tf32_products_is_a_fault() -> None:
    probe = _probe("tf32", _Faulty(_low_bit, operand_bits=11))
    assert (probe.path, probe.seen) == ("tf32", True) and probe.errors is not None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp8_e4m3"])
def test_nan_in_a_probe_is_a_fault(precision: str) -> None:
    probe = _probe(precision, _Faulty(_nan, truncating=precision != "fp32"))
    assert probe.seen and probe.errors is not None and probe.errors.nonfinite == 1
    assert (probe.errors.entries[0]["row"], probe.errors.entries[0]["col"]) == (9, 9)


def test_products_that_were_never_made_are_a_fault() -> None:
    class Nothing(ComputingDevice):
        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            self._launches += 1

    probe = _probe("fp32", Nothing())
    assert (probe.seen, probe.path) == (False, "unknown") and probe.errors is not None


def test_rounding_of_another_kind_is_a_path_and_no_fault() -> None:
    """FP32 emulated on other units: nearly all products right, some off in the last bit, all over the result."""

    class Emulated(ComputingDevice):
        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            super().gemm(precision, a, b, c)
            c.data[...] += (np.arange(c.data.size, dtype=np.uint32).reshape(c.data.shape) * 2654435761 >> 20) % 16 == 0

    probe = _probe("fp32", Emulated())
    assert (probe.seen, probe.path, probe.errors) == (False, "unknown", None)
    assert "94% of full-mantissa products are those of native fp32" in probe.why
