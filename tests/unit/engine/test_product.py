"""Each fault in real buffers is seen, in every precision, by golden digest and by Freivalds' check."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engine_helpers import SHAPES

from gpu_burnin.compute import exact
from gpu_burnin.compute.backend import raw_from_integers, values_from_raw
from gpu_burnin.compute.cpu import CpuBackend
from gpu_burnin.compute.faults import FAULTS, SELFTEST_FAULTS, Target
from gpu_burnin.compute.golden import DIGEST_KEY, GOLDEN_SEEDS, fresh_seeds
from gpu_burnin.compute.locate import locate
from gpu_burnin.compute.product import Case, ProductUnit, Shape, expect
from gpu_burnin.plan import CHECK_FAULTS

SHAPE = Shape(SHAPES["gemm_m"], SHAPES["gemm_n"], SHAPES["gemm_k"])


def _unit(precision: str) -> ProductUnit:
    return ProductUnit(CpuBackend(), precision, SHAPE)


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_right_products_are_right_in_every_range(precision: str) -> None:
    unit = _unit(precision)
    for seed in GOLDEN_SEEDS:
        for operands in exact.ranges_for(precision):
            case = Case(precision, operands, SHAPE, seed)
            golden, fresh = expect(case, fresh=False), expect(case, fresh=True)
            assert golden.digest is not None and fresh.digest is None
            assert unit.run(case, golden).right
            assert unit.repeat(case, fresh).right


@pytest.mark.parametrize("fresh", [False, True], ids=["golden", "freivalds"])
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_every_fault_is_seen(precision: str, name: str, fresh: bool) -> None:
    unit = _unit(precision)
    for operands in exact.ranges_for(precision):
        first, second = (Case(precision, operands, SHAPE, s) for s in GOLDEN_SEEDS)
        assert unit.run(first, expect(first, fresh)).right
        outcome = unit.run(second, expect(second, fresh), FAULTS[name])
        assert not outcome.right, (operands.name, name)
        if name in ("nan", "inf") and precision != "int8":
            assert "nonfinite" in outcome.problems
        if name == "stale":
            assert "stale" in outcome.problems and "not_launched" not in outcome.problems
        if name == "skipped_launch":
            assert {"not_launched", "stale"} <= set(outcome.problems)
        assert unit.repeat(first, expect(first, fresh)).right, "the fault does not stick"


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_a_wrong_value_is_seen_by_freivalds_alone_in_any_element(precision: str) -> None:
    """300 seeds strike 300 places; some hold 0, where bits flipped in a float make no other integer."""
    shape = Shape(16, 16, 16)
    unit = ProductUnit(CpuBackend(), precision, shape)
    struck_zeros = 0
    for seed in itertools.islice(fresh_seeds(7), 300):
        case = Case(precision, exact.ranges_for(precision)[0], shape, seed)
        expected = expect(case, True)
        assert unit.run(case, expected).right
        target = Target(unit.backend, unit.a, unit.b, unit.c, seed)
        before = target.read(unit.c)
        FAULTS["wrong_value"].on_result(target)
        (position,) = np.flatnonzero(target.read(unit.c) != before)
        struck_zeros += not before.reshape(-1)[position]
        assert expected.w is not None and expected.v is not None
        assert unit.backend.bilinear(unit.c, expected.w, expected.v) != expected.bilinear, seed
        assert unit.backend.digest(unit.c, DIGEST_KEY).clean, "no other detector has to help"
    assert struck_zeros > 0 or precision != "fp8_e4m3"


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_every_fault_changes_the_data_whatever_the_seed(precision: str, name: str) -> None:
    shape, fault = Shape(16, 32, 48), FAULTS[name]
    operands = exact.ranges_for(precision)[0]
    unit = ProductUnit(CpuBackend(), precision, shape)
    seeds = fresh_seeds(11)
    for first, second in itertools.islice(zip(seeds, seeds, strict=True), 12):
        clean, broken = (Case(precision, operands, shape, seed) for seed in (first, second))
        expected = expect(broken, True)
        assert unit.run(broken, expected).right
        right = unit.c.data.copy()
        assert unit.run(clean, expect(clean, True)).right
        assert not unit.run(broken, expected, fault).right, second
        assert not np.array_equal(unit.c.data, right), second


def test_fresh_seeds_are_never_golden_and_never_come_twice() -> None:
    for seed in (0, 1, 0x5E1F, (1 << 64) - 1, GOLDEN_SEEDS[0]):
        seeds = list(itertools.islice(fresh_seeds(seed), 1000))
        assert len({*seeds, *GOLDEN_SEEDS}) == 1002
        assert all(0 <= fresh < 1 << 64 for fresh in seeds)


def test_a_unit_refuses_what_would_hide_a_stale_result() -> None:
    unit, case = _unit("fp32"), Case("fp32", exact.RANGES["square"], SHAPE, 1)
    unit.run(case, expect(case, True))
    with pytest.raises(ValueError, match="twice"):
        unit.run(case, expect(case, True))
    with pytest.raises(ValueError, match="unit is for"):
        unit.run(Case("bf16", exact.RANGES["square"], SHAPE, 2), expect(case, True))


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_storage_holds_every_operand_exactly(precision: str) -> None:
    from gpu_burnin.compute.backend import STORAGE_OF

    storage = STORAGE_OF[precision][0]
    for operands in exact.ranges_for(precision):
        for values in (exact.operand_a(operands, 1, 32, 32), exact.operand_b(operands, 1, 32, 32)):
            assert np.array_equal(values_from_raw(raw_from_integers(values, storage), storage), values)


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_location_names_element_and_bit(precision: str) -> None:
    unit = _unit(precision)
    case = Case(precision, exact.ranges_for(precision)[0], SHAPE, 5)
    unit.run(case, expect(case, True))
    position = 13 * SHAPE.n + 29
    bits = unit.backend.read_raw(unit.c, position, 1)
    unit.backend.write_raw(unit.c, position, bits ^ bits.dtype.type(1 << 9))
    (entry,) = locate(unit, case)
    assert (entry["matrix"], entry["row"], entry["col"], entry["flipped_bits"]) == ("c", 13, 29, [9])
    assert entry["tile"] == [0, 0]
    exact_value = (case.host_operands()[0] @ case.host_operands()[1])[13, 29]
    assert float(str(entry["expected"])) == exact_value


def test_location_names_the_corrupted_operand() -> None:
    unit, case = _unit("bf16"), Case("bf16", exact.RANGES["square"], SHAPE, 5)
    unit.run(case, expect(case, True), FAULTS["operand"])
    entries = locate(unit, case)
    assert [e["matrix"] for e in entries][:2] == ["a", "c"]
    assert entries[0]["flipped_bits"] == [15]
    assert all(e["row"] == entries[0]["row"] for e in entries), "one element of A spoils one row of C"


def test_location_finds_nan_and_ignores_negative_zero() -> None:
    unit, case = _unit("fp32"), Case("fp32", exact.RANGES["single_a"], SHAPE, 5)
    unit.run(case, expect(case, True))
    values = unit.backend.read_raw(unit.c, 0, SHAPE.m * SHAPE.n)
    values[values == 0] = 0x80000000
    values[77] = 0x7FC00000
    unit.backend.write_raw(unit.c, 0, values)
    (entry,) = locate(unit, case)
    assert (entry["row"], entry["col"], entry["got"]) == (1, 13, "nan")


def test_the_fault_lists_agree() -> None:
    assert set(SELFTEST_FAULTS) <= set(FAULTS)
    assert set(CHECK_FAULTS["gemm"]) == set(FAULTS)
