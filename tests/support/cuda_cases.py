"""What the kernels of products must do, for any CudaProducts: those whose kernels are compiled for the host (unit
tests) and those on a real GPU (tests/gpu). The judge is the CPU device, or the host's own functions, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_burnin.device.cpu import CpuDevice
from gpu_burnin.device.port import Device, DeviceError, read_matrix, write_matrix
from gpu_burnin.device.storage import STORAGE, Buffer, values_from_raw
from gpu_burnin.exact import cuda, freivalds
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.cpu import CpuProducts
from gpu_burnin.exact.cuda import CudaProducts
from gpu_burnin.exact.digest import digest, digest_integers, digest_raw
from gpu_burnin.exact.operands import Scale
from gpu_burnin.exact.port import STORAGE_OF


def both(device: Device, cpu: Device, *arguments: Any, **more: Any) -> tuple[Buffer, Buffer]:
    """The same matrix on both devices."""
    return device.allocate(*arguments, **more), cpu.allocate(*arguments, **more)


def put(device: Device, values: np.ndarray[Any, Any], storage: str) -> Buffer:
    """A matrix with these values on a device."""
    buffer = device.allocate(storage, *values.shape)
    write_matrix(device, buffer, values.view(f"u{STORAGE[storage].size_bytes}"))
    return buffer


_BAD = {
    "fp32": [
        0.0, -0.0, 5.0, -7.0, 2.0**24, -(2.0**24), np.nan, 0.5, np.inf, -np.inf, 1e30, 3.0, 2.0**31, -(2.0**31),
        2.0**31 - 128, 2.0**53, 2.0**54, 1e-45, -1e-45, 8388607.5, 2.0**23 + 1, -0.75, 2.0**32, 2.0**48,
    ],
    "fp64": [
        2.0**53, -(2.0**53), 2.0**54, 1e300, 0.25, np.nan, -np.inf, -(2.0**31), 2.0**51, -(2.0**51), 2.0**51 + 1,
        -(2.0**51) - 1, 2.0**31, 2.0**31 - 1, -0.0, 5e-324, 1.0, -1.0, 2.0**52, 2.0**32, -(2.0**32), 0.5, 3e9, -3e9,
    ],
}  # fmt: skip


def _fp32(device: Device, fill: float) -> tuple[Buffer, int]:
    values = np.full((16, 16), fill, dtype=np.float32)
    return put(device, values, "fp32"), digest(values, 1).value


# FP32 bits of subnormals: the least, the greatest, single bits, with either sign.
_SUBNORMAL = (0x00000001, 0x007FFFFF, 0x00400000, 0x00000200, 0x80000001, 0x807FFFFF, 0x80400000)


class SubnormalCases:
    """An FP32 element that is subnormal where 0 is right must show, also where arithmetic takes it for 0, as
    FP32 does on a GPU in kernels compiled with -ftz=true."""

    @pytest.mark.parametrize("exponents", [None, (0, 0), (50, 60), (-40, -20)])
    def test_a_subnormal_is_no_clean_zero(self, products: CudaProducts, exponents: tuple[int, int] | None) -> None:
        scale = None if exponents is None else Scale(*(np.full(16, e, dtype=np.int16) for e in exponents))
        w, v = freivalds.challenge(4, 16, 16)
        for bits in _SUBNORMAL:
            values = np.zeros((16, 16), dtype=np.float32)
            values.view(np.uint32)[3, 5] = bits
            c = put(products.device, values, "fp32")
            products.enqueue_check(c, 1, scale, 0)
            collected = products.collect()
            assert collected.observed[0].digest == digest(values, 1, scale) == exact.Digest(0, 0, 1), hex(bits)
            assert collected.kept == 0
            assert np.array_equal(products.kept_matrix(c), values.view(np.uint32))
            products.forget_kept()
            assert products.bilinear(c, w, v, scale) == 0, "as on the host, no integer counts as 0"

    def test_a_subnormal_in_the_last_elements_that_fill_no_load(self, products: CudaProducts) -> None:
        values = np.zeros((5, 7), dtype=np.float32)
        values.view(np.uint32)[4, 6] = 1
        products.enqueue_check(put(products.device, values, "fp32"), 3, None, 0)
        assert products.collect().observed[0].digest == exact.Digest(0, 0, 1)

    def test_a_subnormal_that_stands_for_an_integer_is_read_as_one(self, products: CudaProducts) -> None:
        """Row and column take away 2^-149: the general way, which reads FP32 by its bits."""
        values = np.full((16, 16), 3.0, dtype=np.float32)
        values.view(np.uint32)[...] = 3
        scale = Scale(np.full(16, -75, dtype=np.int16), np.full(16, -74, dtype=np.int16))
        products.enqueue_check(put(products.device, values, "fp32"), 1, scale, None)
        threes = digest(np.full((16, 16), 3.0, dtype=np.float32), 1)
        assert products.collect().observed[0].digest == digest(values, 1, scale) == threes

    def test_minus_zero_stays_a_clean_zero(self, products: CudaProducts) -> None:
        values = np.full((16, 16), -0.0, dtype=np.float32)
        products.enqueue_check(put(products.device, values, "fp32"), 1, None, 0)
        collected = products.collect()
        assert (collected.observed[0].digest, collected.kept) == (exact.Digest(0), None)


# Of rows and of columns: the ends of what products have and of what the fast way takes, and beyond both.
_EXPONENTS = (-65, -64, -63, -1, 0, 1, 52, 64, 65)
# FP32 with each exponent field and either sign: subnormals, powers of two, Inf and NaN, what rounds up and down.
_WORDS = np.array(
    [
        sign << 31 | field << 23 | fraction
        for sign in (0, 1)
        for field in range(256)
        for fraction in (0, 1, 0x400000, 0x600000, 0x7FFFFF)
    ],
    dtype=np.uint32,
)


class ScaledCases:
    """Scaled FP32: what passes as an integer is the true one, also where arithmetic takes subnormals for 0."""

    @pytest.mark.parametrize("row", _EXPONENTS)
    def test_every_exponent_field_is_read_as_on_the_host(self, products: CudaProducts, row: int) -> None:
        """An odd word sends the loads that its thread has in flight to the general way, which hides how others are
        read. So each load of one row holds one word and the rest is clean: no thread has two loads of one row in
        flight."""
        at = np.arange(_WORDS.size)
        for col in _EXPONENTS:
            three = np.ldexp(np.float32(3), row + col) if abs(row + col) <= 126 else np.float32(0)
            values = np.full((8, 4 * _WORDS.size), three, dtype=np.float32)
            values.view(np.uint32)[5, 4 * at + at % 4] = _WORDS
            scale = Scale(np.full(8, row, dtype=np.int16), np.full(4 * _WORDS.size, col, dtype=np.int16))
            products.enqueue_check(put(products.device, values, "fp32"), 7, scale, None)
            assert products.collect().observed[0].digest == digest(values, 7, scale), col

    @pytest.mark.parametrize("span", [(-63, -60), (49, 52), (-63, 52)])
    @pytest.mark.parametrize(
        ("rows", "cols"), [(90, 4), (935, 12), (64, 16), (7, 24), (300, 40), (9, 1028), (3, 3000), (33, 4096)]
    )
    def test_a_right_product_of_any_shape_is_read_whole_and_in_the_fast_way(
        self, products: CudaProducts, rows: int, cols: int, span: tuple[int, int]
    ) -> None:
        """Rows that divide the grid and rows that do not, and more loads in a row than there are threads. In the narrow
        spans an integer stays one with the factors of another element, which shows in the digest alone."""
        rng = np.random.default_rng(rows)
        exponents = [rng.integers(span[0], span[1] + 1, count).astype(np.int16) for count in (rows, cols)]
        for part in exponents:
            part[-2:] = span
        integers = 64 * rng.integers(1 - 2**18, 2**18, (rows, cols))
        integers[rng.random((rows, cols)) < 0.2] = 0
        values = np.ldexp(integers.astype(np.float32), (exponents[0][:, None] + exponents[1]).astype(np.int32))
        scale, spoiled = (Scale(*(part.copy() for part in exponents)) for _ in range(2))
        for part in products._powers(spoiled)[0]:  # of which only the general way makes use
            part.set(np.full(part.size, 7, dtype=np.int16))
        products.enqueue_check(put(products.device, values, "fp32"), 3, spoiled, None)
        values.view(np.uint32)[-1, -1] ^= 1
        products.enqueue_check(put(products.device, values, "fp32"), 3, scale, None)
        right, wrong = (one.digest for one in products.collect().observed)
        assert right == exact.Digest(digest_integers(integers, 3))
        assert wrong == digest(values, 3, scale) != right


class KernelCases(SubnormalCases, ScaledCases):
    """Tests; a subclass somewhere with a fixture `products` runs them."""

    @pytest.fixture
    def cpu(self) -> CpuProducts:
        """The products to agree with."""
        return CpuProducts(CpuDevice())

    # --- filling ---

    @pytest.mark.parametrize(
        ("precision", "scaled"),
        [(p, scaled) for p in exact.PRECISIONS for scaled in (False, True) if exact.can_scale(p) or not scaled],
    )
    def test_fill_is_the_generator(
        self, products: CudaProducts, cpu: CpuProducts, precision: str, scaled: bool
    ) -> None:
        storage = STORAGE_OF[precision][0]
        for operands in exact.ranges_for(precision):
            for side, shape in (("a", (24, 40)), ("b", (40, 24))):
                count = shape[0] if side == "a" else shape[1]
                exponents = exact.scale_exponents(precision, operands, side, 9, count) if scaled else None
                operand = exact.operand_for(operands, side, 5, exponents)
                made, host = both(products.device, cpu.device, storage, *shape, transposed=side == "b")
                products.fill(made, operand)
                cpu.fill(host, operand)
                assert np.array_equal(read_matrix(products.device, made), read_matrix(cpu.device, host)), (
                    operands.name,
                    side,
                )

    @pytest.mark.parametrize("signed", [False, True])
    def test_fill_keeps_to_the_least_magnitude(self, products: CudaProducts, cpu: CpuProducts, signed: bool) -> None:
        operand = exact.Operand(7, 9, signed, low=5)
        made, host = both(products.device, cpu.device, "int32", 24, 40)
        products.fill(made, operand)
        cpu.fill(host, operand)
        got = values_from_raw(read_matrix(products.device, made), "int32")
        assert np.array_equal(got, values_from_raw(read_matrix(cpu.device, host), "int32"))
        assert set(np.abs(got).reshape(-1).tolist()) == {5, 6, 7, 8, 9}

    @pytest.mark.parametrize("storage", ["fp64", "fp32", "bf16", "fp16", "fp8_e4m3", "int8", "int32"])
    @pytest.mark.parametrize("positive", [False, True])
    @pytest.mark.parametrize("transposed", [False, True])
    def test_random_bits_are_those_of_the_host(
        self, products: CudaProducts, cpu: CpuProducts, storage: str, positive: bool, transposed: bool
    ) -> None:
        made, host = both(products.device, cpu.device, storage, 48, 32, transposed=transposed)
        products.fill_random(made, 99, positive)
        cpu.fill_random(host, 99, positive)
        got = read_matrix(products.device, made)
        assert np.array_equal(got, read_matrix(cpu.device, host))
        assert np.isfinite(values_from_raw(np.ascontiguousarray(got), storage).astype(np.float64)).all()

    # --- products, digests, Freivalds ---

    @pytest.mark.parametrize("precision", exact.PRECISIONS)
    def test_verified_products_agree_with_the_cpu_device(
        self, products: CudaProducts, cpu: CpuProducts, precision: str
    ) -> None:
        operand, result = STORAGE_OF[precision]
        for operands in exact.ranges_for(precision):
            for scaled in (False, True) if exact.can_scale(precision) and operands.rounds_to is None else (False,):
                scale = None
                if scaled:
                    rows, cols = (
                        exact.scale_exponents(precision, operands, s, 3, n) for s, n in (("a", 32), ("b", 16))
                    )
                    scale = Scale(rows, cols)
                sides = {
                    "a": exact.operand_for(operands, "a", 3, scale.rows if scale else None),
                    "b": exact.operand_for(operands, "b", 3, scale.cols if scale else None),
                }
                seen = []
                for target in (products, cpu):
                    a, b = (
                        target.device.allocate(operand, 32, 48),
                        target.device.allocate(operand, 48, 16, transposed=True),
                    )
                    c = target.device.allocate(result, 32, 16)
                    target.fill(a, sides["a"])
                    target.fill(b, sides["b"])
                    target.gemm(precision, a, b, c)
                    target.enqueue_check(c, 77, scale, None)
                    w, v = freivalds.challenge(4, 32, 16)
                    bits = read_matrix(target.device, c)
                    assert target.digest_bits(c, 5) == digest_raw(bits, 5)
                    # As values: a zero may have either sign.
                    values = values_from_raw(bits, result).tolist()
                    seen.append((target.collect().observed[0].digest, target.bilinear(c, w, v, scale), values))
                assert seen[0] == seen[1], (operands.name, scaled)

    @pytest.mark.parametrize("storage", ["fp32", "fp64"])
    @pytest.mark.parametrize("scaled", [False, True])
    def test_values_that_no_right_product_holds_are_classed_as_on_the_host(
        self, products: CudaProducts, storage: str, scaled: bool
    ) -> None:
        kind = np.float32 if storage == "fp32" else np.float64
        rng = np.random.default_rng(1)
        values = rng.integers(-(2**22), 2**22, (40, 24)).astype(kind)
        scale = None
        if scaled:
            scale = Scale(rng.integers(-40, 40, 40).astype(np.int16), rng.integers(-40, 40, 24).astype(np.int16))
            values = np.ldexp(values, (scale.rows[:, None] + scale.cols).astype(np.int32)).astype(kind)
        values[7] = np.array(_BAD[storage], dtype=kind)
        values[31, ::3] = np.array(_BAD[storage], dtype=kind)[::3]
        c = put(products.device, values, storage)
        products.enqueue_check(c, 0x9E3779B97F4A7C15, scale, None)
        assert products.collect().observed[0].digest == digest(values, 0x9E3779B97F4A7C15, scale)

    @pytest.mark.parametrize("bad", _BAD["fp32"])
    def test_one_odd_value_alone_takes_the_general_way(self, products: CudaProducts, bad: float) -> None:
        values = np.zeros((16, 16), dtype=np.float32)
        values[3, 5] = bad
        c = put(products.device, values, "fp32")
        products.enqueue_check(c, 1, None, None)
        assert products.collect().observed[0].digest == digest(values, 1)

    @pytest.mark.parametrize(("row", "col", "power"), [(70, 57, 127), (70, 59, -120), (-70, -60, -120), (-70, -60, 4)])
    def test_exponents_beyond_fp32_take_the_general_way(
        self, products: CudaProducts, row: int, col: int, power: int
    ) -> None:
        scale = Scale(np.full(16, row, dtype=np.int16), np.full(16, col, dtype=np.int16))
        values = np.full((16, 16), np.float32(2.0**power))
        c = put(products.device, values, "fp32")
        products.enqueue_check(c, 1, scale, None)
        assert products.collect().observed[0].digest == digest(values, 1, scale)

    @pytest.mark.parametrize(
        ("storage", "rows", "cols"), [("fp32", 5, 7), ("fp64", 3, 5), ("int32", 1, 1), ("int32", 3, 6)]
    )
    def test_sizes_that_are_no_multiple_of_a_load(
        self, products: CudaProducts, storage: str, rows: int, cols: int
    ) -> None:
        kind = {"fp32": np.float32, "fp64": np.float64, "int32": np.int32}[storage]
        values = np.random.default_rng(2).integers(-1000, 1000, (rows, cols)).astype(kind)
        c = put(products.device, values, storage)
        products.enqueue_check(c, 3, None, 0)
        collected = products.collect()
        assert collected.observed[0].digest == digest(values, 3)
        assert collected.kept == 0
        assert np.array_equal(products.kept_matrix(c), values.view(f"u{STORAGE[storage].size_bytes}"))

    def test_a_scaled_result_of_odd_width_is_refused(self, products: CudaProducts) -> None:
        c = products.device.allocate("fp32", 4, 6)
        with pytest.raises(DeviceError, match="multiple of 4 columns, not 6"):
            products.enqueue_check(c, 1, Scale(np.zeros(4, np.int16), np.zeros(6, np.int16)), None)

    def test_the_raw_digest_tells_what_the_integer_digest_does_not(self, products: CudaProducts) -> None:
        for storage, kind in (("fp32", np.float32), ("fp64", np.float64)):
            values = np.random.default_rng(3).standard_normal((16, 16)).astype(kind)
            values[0, 0] = 0.0
            c = put(products.device, values, storage)
            first = products.digest_bits(c, 11)
            assert first == digest_raw(values.view(f"u{values.itemsize}"), 11)
            values[0, 0] = -0.0
            assert products.digest_bits(put(products.device, values, storage), 11) != first

    # --- results that are kept, launches ---

    def test_the_first_wrong_result_is_kept_and_survives_the_next_product(self, products: CudaProducts) -> None:
        c, right = _fp32(products.device, 3.0)
        wrong = np.full((16, 16), 3.0, dtype=np.float32)
        wrong[2, 9] = 4.0
        products.enqueue_check(c, 1, None, right)
        write_matrix(products.device, c, wrong.view(np.uint32))
        products.enqueue_check(c, 1, None, right)
        write_matrix(products.device, c, np.zeros((16, 16), np.uint32))
        products.enqueue_check(c, 1, None, right)
        collected = products.collect()
        assert collected.kept == 1
        assert [o.digest.value == right for o in collected.observed] == [True, False, False]
        assert np.array_equal(products.kept_matrix(c).view(np.float32), wrong)
        # It stays until it is forgotten, also while larger results are checked.
        large = put(products.device, np.zeros((64, 64), np.float32), "fp32")
        products.enqueue_check(large, 1, None, 5)
        assert products.collect().kept is None
        assert np.array_equal(products.kept_matrix(c).view(np.float32), wrong)
        products.forget_kept()
        with pytest.raises(DeviceError, match="no result is kept"):
            products.kept_matrix(c)
        products.enqueue_check(large, 1, None, 5)
        assert products.collect().kept == 0

    def test_nan_is_kept_even_when_the_digest_is_that_of_zero(self, products: CudaProducts) -> None:
        values = np.zeros((16, 16), dtype=np.float32)
        values[1, 1] = np.nan
        c = put(products.device, values, "fp32")
        products.enqueue_check(c, 1, None, 0)
        collected = products.collect()
        assert collected.observed[0].digest == exact.Digest(0, 1, 0)
        assert collected.kept == 0

    def test_nothing_is_kept_without_an_expectation(self, products: CudaProducts) -> None:
        c, _ = _fp32(products.device, 3.0)
        products.enqueue_check(c, 1, None, None)
        assert products.collect().kept is None

    def test_launches_travel_with_each_result_and_count_on(self, products: CudaProducts) -> None:
        a, b = products.device.allocate("fp32", 16, 16), products.device.allocate("fp32", 16, 16, transposed=True)
        c = products.device.allocate("fp32", 16, 16)
        products.fill(a, exact.operand_for(exact.RANGES["square"], "a", 1))
        products.fill(b, exact.operand_for(exact.RANGES["square"], "b", 1))
        for launches in (0, 1, 2, 0):
            for _ in range(launches):
                products.gemm("fp32", a, b, c)
            products.enqueue_check(c, 1, None, None)
        seen = [o.launches for o in products.collect().observed]
        assert [later - seen[0] for later in seen] == [0, 1, 3, 3]
        products.enqueue_check(c, 1, None, None)
        assert products.collect().observed[0].launches == seen[-1]

    def test_more_checks_than_slots(self, products: CudaProducts, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cuda, "RING_SLOTS", 4)
        c, right = _fp32(products.device, 2.0)
        for number in range(11):
            products.enqueue_check(c, 1, None, right if number != 9 else right + 1)
        collected = products.collect()
        assert [o.digest for o in collected.observed] == [exact.Digest(right)] * 11
        assert collected.kept == 9
