"""Products and their verification: right ones pass, every fault in real buffers is seen, errors are located."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks import CHECKS
from gpu_burnin.device.port import read_matrix, write_matrix
from gpu_burnin.device.storage import raw_from_integers, values_from_raw
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.expected import expected_digests
from gpu_burnin.exact.faults import FAULTS, SELFTEST_FAULTS, Fault, Target, flip_bit
from gpu_burnin.exact.fresh import make_set
from gpu_burnin.exact.golden import DIGEST_KEY, fresh_seeds, shipped_digest
from gpu_burnin.exact.integer import integer_product
from gpu_burnin.exact.locate import locate
from gpu_burnin.exact.operands import OperandRange
from gpu_burnin.exact.port import STORAGE_OF, Collected
from gpu_burnin.exact.product import ROUND, Batch, Case, Expected, Pair, ProductUnit, Shape, Stream
from tests.support.devices import ComputingDevice
from tests.support.engine_helpers import SHAPES

SHAPE = Shape(SHAPES["gemm_m"], SHAPES["gemm_n"], SHAPES["gemm_k"])
ALL = [(p, r) for p in exact.PRECISIONS for r in exact.ranges_for(p)]
LINEAR = [(p, r) for p, r in ALL if r.rounds_to is None]


def _unit(precision: str, shape: Shape = SHAPE) -> ProductUnit:
    return ProductUnit(Stream(ComputingDevice()), precision, shape)


def _golden(unit: ProductUnit) -> dict[Pair, Expected]:
    return expected_digests({pair: unit.case(pair) for pair in ROUND})


def _fresh(unit: ProductUnit, operands: OperandRange, seed: int = 3, scaled: bool = False) -> dict[Pair, Expected]:
    made = make_set(operands, unit.shape, fresh_seeds(seed))
    assert made is not None
    unit.load(operands, made.seeds_a, made.seeds_b, scaled)
    return made.expected


def _run(unit: ProductUnit, expected: dict[Pair, Expected], pairs: Any = ROUND, **more: Any) -> Batch:
    return unit.run(pairs, [expected[pair] for pair in pairs], **more)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize(("precision", "operands"), ALL, ids=lambda x: getattr(x, "name", x))
def test_right_products_are_right_in_every_range(precision: str, operands: OperandRange, scaled: bool) -> None:
    scaled = scaled and exact.can_scale(precision)
    unit = _unit(precision)
    unit.load(operands, scaled=scaled)
    assert all(o.right for o in _run(unit, _golden(unit), ROUND * 2).outcomes)
    unit.load(operands, scaled=scaled)  # the round starts with another product than it ends with
    assert all(o.right for o in _run(unit, _golden(unit)).outcomes)
    if operands.rounds_to is None:
        assert all(o.right for o in _run(unit, _fresh(unit, operands, scaled=scaled)).outcomes)


def test_golden_digests_are_used_where_they_are_shipped_and_made_on_the_host_elsewhere() -> None:
    case = Case("fp32", exact.RANGES["square"], SHAPE, 7, 8)
    made = expected_digests({(0, 0): case})[0, 0]
    assert shipped_digest(case.operands, 7, 8, 64, 64, 64) is None and made.digest is not None
    unit = _unit("fp32")
    unit.load(exact.RANGES["square"])
    assert _golden(unit)[1, 0].digest == shipped_digest(
        exact.RANGES["square"], unit.case((1, 0)).seed_a, unit.case((1, 0)).seed_b, 64, 64, 64
    )


# --- faults ---

_MEANT = {"stale": "stale", "skipped_launch": "not_launched", "nan": "nonfinite", "inf": "nonfinite"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "kind"),
    [
        (precision, kind + scaled)
        for precision in exact.PRECISIONS
        for kind in ("golden", "freivalds")
        for scaled in (("", " scaled") if exact.can_scale(precision) else ("",))
    ],
)
def test_every_fault_is_seen(precision: str, kind: str) -> None:
    scaled = "scaled" in kind
    for operands in exact.ranges_for(precision):
        if operands.rounds_to is not None and "freivalds" in kind:
            continue
        unit = _unit(precision)
        if "golden" in kind:
            unit.load(operands, scaled=scaled)
            expected = _golden(unit)
        else:
            expected = _fresh(unit, operands, scaled=scaled)
        for name, fault in FAULTS.items():
            batch = _run(unit, expected, ROUND[:2], fault=fault, fault_seed=5)
            clean, broken = batch.outcomes
            assert clean.right and not broken.right, (operands.name, name)
            assert fault.skips_launch == (batch.changed_bits is None) and batch.changed_bits != 0
            meant = _MEANT.get(name, "")
            if meant and not (meant == "nonfinite" and precision == "int8") and not (meant == "stale" and scaled):
                assert meant in broken.problems, (operands.name, name, broken.problems)
            assert broken.evidence is not None, "the wrong result is kept"
            assert ("not_launched" in broken.problems) == fault.skips_launch
            assert unit.repeat((0, 1), expected[0, 1]).right, "the fault does not stick"


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_every_single_bit_is_seen(precision: str) -> None:
    for operands in (exact.ranges_for(precision)[0], exact.ranges_for(precision)[-1]):
        unit = _unit(precision, Shape(16, 16, 16))
        unit.load(operands)
        expected = _golden(unit)
        for bit in range(8 * unit.c.storage.size_bytes):
            for seed in (1, 2, 3):
                batch = _run(unit, expected, ROUND[:2], fault=flip_bit(bit), fault_seed=seed)
                assert (batch.outcomes[0].right, batch.outcomes[1].right, batch.changed_bits) == (True, False, 1), bit


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_a_wrong_value_is_seen_by_freivalds_alone_in_any_element(precision: str) -> None:
    """300 seeds change 300 places; some hold 0, where bits flipped in a float make no other integer."""
    unit = _unit(precision, Shape(16, 16, 16))
    expected = _fresh(unit, exact.ranges_for(precision)[0])
    assert _run(unit, expected, ROUND[:1]).outcomes[0].right
    before = read_matrix(unit.device, unit.c)
    want = expected[0, 0]
    assert want.w is not None and want.v is not None
    changed_zeros = 0
    for seed in range(300):
        target = Target(unit.device, unit.a[0], unit.b[0], unit.c, seed)
        FAULTS["wrong_value"].on_result(target)
        (position,) = np.flatnonzero(target.read(unit.c) != before)
        changed_zeros += not before.reshape(-1)[position]
        assert unit.device.bilinear(unit.c, want.w, want.v, None) != want.bilinear, seed
        unit.device.enqueue_check(unit.c, DIGEST_KEY, None, None)
        assert unit.device.collect().observed[0].digest.clean, "no other detector has to help"
        write_matrix(unit.device, unit.c, before)
    assert changed_zeros > 0 or precision != "fp8_e4m3"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_every_fault_changes_the_data_whatever_the_seed(precision: str, name: str) -> None:
    fault = FAULTS[name]
    unit = _unit(precision, Shape(16, 32, 48))
    for seed in range(6):
        expected = _fresh(unit, exact.ranges_for(precision)[0], seed)
        assert _run(unit, expected, ((1, 0),)).outcomes[0].right
        right = unit.c.data.copy()
        unit.clear()
        batch = _run(unit, expected, ((0, 0), (1, 0)), fault=fault, fault_seed=seed)
        assert not batch.outcomes[1].right, seed
        assert not np.array_equal(unit.c.data, right), seed


def test_sign_pairs_keep_all_sums_where_they_can() -> None:
    unit = _unit("fp32")
    unit.load(exact.RANGES["unit_a"])
    _run(unit, _golden(unit), ROUND[:1])
    before = values_from_raw(read_matrix(unit.device, unit.c), "fp32")
    FAULTS["sign_pair"].on_result(Target(unit.device, unit.a[0], unit.b[0], unit.c, 1))
    after = values_from_raw(read_matrix(unit.device, unit.c), "fp32")
    assert (before != after).sum() == 2 and before.sum() == after.sum()


def test_a_launch_that_never_ran_is_seen_even_when_the_result_is_right() -> None:
    unit = _unit("fp32")
    unit.load(exact.RANGES["square"])
    lucky = Fault("lucky", on_operands=lambda t: t.device.gemm("fp32", t.a, t.b, t.c))  # two launches instead of one
    outcome = _run(unit, _golden(unit), ROUND[:2], fault=lucky).outcomes[1]
    assert outcome.problems == ("not_launched",)
    assert _run(unit, _golden(unit), ROUND[2:]).outcomes[0].right, "the count goes on from what was seen"


def test_launches_of_other_products_do_not_confuse_the_count() -> None:
    unit = _unit("fp32")
    unit.load(exact.RANGES["square"])
    unit.stream.gemm("fp32", unit.a[0], unit.b[0], unit.c)
    unit.stream.gemm("fp32", unit.a[0], unit.b[0], unit.c)
    assert _run(unit, _golden(unit)).outcomes[0].right
    again = ProductUnit(Stream(unit.device), "fp32", SHAPE)
    again.load(exact.RANGES["square"])
    assert _run(again, _golden(again)).outcomes[0].right, "a new stream starts from the device's count"


def test_a_unit_refuses_what_would_hide_a_stale_result() -> None:
    unit = _unit("fp32")
    unit.load(exact.RANGES["square"])
    expected = _golden(unit)
    with pytest.raises(ValueError, match="twice"):
        _run(unit, expected, ((0, 0), (0, 0)))
    assert all(ROUND[i] != ROUND[i - 1] for i in range(4))


def test_the_fault_lists_agree() -> None:
    assert set(SELFTEST_FAULTS) <= set(FAULTS)
    assert set(CHECKS["gemm"].faults) == set(FAULTS)


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_storage_holds_every_operand_exactly(precision: str) -> None:
    storage = STORAGE_OF[precision][0]
    for operands in exact.ranges_for(precision):
        for values in (exact.operand_a(operands, 1, 32, 32), exact.operand_b(operands, 1, 32, 32)):
            assert np.array_equal(values_from_raw(raw_from_integers(values, storage), storage), values)


def test_transposed_buffers_hold_the_same_matrix() -> None:
    device = ComputingDevice()
    operand = Case("fp32", exact.RANGES["ieee_fp32"], Shape(8, 24, 16), 1, 2, scaled=True).operand("b")
    plain, transposed = device.allocate("fp32", 16, 24), device.allocate("fp32", 16, 24, transposed=True)
    for fill in (lambda x: device.fill(x, operand), lambda x: device.fill_random(x, 9)):
        fill(plain)
        fill(transposed)
        assert np.array_equal(read_matrix(device, plain), read_matrix(device, transposed))
        flat = device.read_raw(transposed, 0, 16)
        assert np.array_equal(flat, read_matrix(device, plain)[:, 0]), "one column after the other"
        write_matrix(device, transposed, read_matrix(device, plain)[::-1])
        assert np.array_equal(read_matrix(device, transposed), read_matrix(device, plain)[::-1])


def test_evidence_is_that_of_the_first_wrong_product_of_a_batch() -> None:
    class Breaks(ComputingDevice):
        made = 0

        def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
            super().gemm(precision, a, b, c)
            self.made += 1
            if self.made in (3, 4):
                c.data[self.made, 7] ^= 1 << 20

    unit = ProductUnit(Stream(Breaks()), "fp32", SHAPE)
    unit.load(exact.RANGES["square"])
    outcomes = _run(unit, _golden(unit), ROUND * 2).outcomes
    assert [o.right for o in outcomes] == [True, True, False, False, True, True, True, True]
    assert outcomes[2].evidence is not None and outcomes[3].evidence is None
    (entry,) = locate(unit, ROUND[2], outcomes[2])
    assert (entry["row"], entry["col"], entry["flipped_bits"]) == (3, 7, [20])


# --- location ---


def _broken(unit: ProductUnit, expected: dict[Pair, Expected], step: Any) -> Any:
    return _run(unit, expected, ROUND[:2], fault=Fault("test", on_result=step)).outcomes[1]


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize(("precision", "operands"), ALL, ids=lambda x: getattr(x, "name", x))
def test_location_names_element_and_bit(precision: str, operands: OperandRange, scaled: bool) -> None:
    unit = _unit(precision)
    unit.load(operands, scaled=scaled and exact.can_scale(precision))
    bit = 8 * unit.c.storage.size_bytes - 3
    outcome = _broken(unit, _golden(unit), lambda t: t.poke_result(13 * SHAPE.n + 29, lambda bits: bits ^ 1 << bit))
    (entry,) = locate(unit, ROUND[1], outcome)
    assert (entry["matrix"], entry["row"], entry["col"], entry["flipped_bits"]) == ("c", 13, 29, [bit])
    assert (entry["tile"], entry["wrong_elements_seen"]) == ([0, 0], 1)
    exact_value = float(integer_product(*outcome.case.host_operands(), operands)[13, 29])
    scale = outcome.case.scale()
    exponent = 0 if scale is None else int(scale.rows[13]) + int(scale.cols[29])
    assert np.float64(str(entry["expected"])) == pytest.approx(np.ldexp(exact_value, exponent), rel=1e-6)


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("precision", ["bf16", "int8", "fp64"])
def test_location_names_the_corrupted_operand(precision: str, side: str) -> None:
    unit = _unit(precision)
    unit.load(exact.RANGES["square"], scaled=precision != "int8")
    outcome = _run(unit, _golden(unit), ROUND[:2], fault=FAULTS[f"operand_{side}"]).outcomes[1]
    entries = locate(unit, ROUND[1], outcome)
    assert [e["matrix"] for e in entries][:2] == [side, "c"]
    assert entries[0]["flipped_bits"] == [8 * unit.a[0].storage.size_bytes - 1]
    line = "row" if side == "a" else "col"
    assert all(e[line] == entries[0][line] for e in entries), "one element of an operand spoils one line of C"


def test_location_finds_nan_and_ignores_negative_zero() -> None:
    unit = _unit("fp32")
    unit.load(exact.RANGES["sparse"])

    def step(t: Target) -> None:
        bits = t.read(t.c)
        bits[bits == 0] = 0x80000000
        bits[1, 13] = 0x7FC00000
        t.write(t.c, bits)

    outcome = _broken(unit, _golden(unit), step)
    (entry,) = locate(unit, ROUND[1], outcome)
    assert (entry["row"], entry["col"], entry["got"]) == (1, 13, "nan")


@pytest.mark.parametrize(
    ("rows", "cols", "seen"), [(1, 64, 64), (64, 1, 64), (40, 40, 32 * 40)], ids=["a row", "a column", "a block"]
)
def test_location_counts_wrong_lines_and_blocks(rows: int, cols: int, seen: int) -> None:
    unit = _unit("int8")
    unit.load(exact.RANGES["square"])

    def step(t: Target) -> None:
        bits = t.read(t.c)
        bits[:rows, :cols] += np.uint32(1)
        t.write(t.c, bits)

    entries = locate(unit, ROUND[1], _broken(unit, _golden(unit), step))
    assert len(entries) == 16 and entries[0]["wrong_elements_seen"] == seen
    assert (entries[0]["wrong_rows"], entries[0]["wrong_cols"]) == (rows, cols)


def test_location_does_not_trust_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums that point at the wrong lines, or at none, only cost time."""
    from gpu_burnin.exact import locate as module

    unit = _unit("fp32")
    unit.load(exact.RANGES["square"])
    expected = _golden(unit)
    for wrong in (np.array([5]), np.empty(0, dtype=np.intp)):
        monkeypatch.setattr(module, "_suspects", lambda *_, wrong=wrong: (wrong, wrong))
        outcome = _broken(unit, expected, lambda t: t.poke_result(700, lambda bits: bits ^ 1))
        (entry,) = locate(unit, ROUND[1], outcome)
        assert (entry["row"], entry["col"]) == divmod(700, SHAPE.n)


def test_location_asks_a_second_challenge_where_the_whole_product_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_burnin.exact import locate as module

    unit = _unit("fp32")
    unit.load(exact.RANGES["square"])
    outcome = _broken(unit, _golden(unit), lambda t: t.poke_result(700, lambda bits: bits ^ 1))
    seen, suspects, none = [], module._suspects, np.empty(0, dtype=np.intp)

    def first_blind(*arguments: Any) -> Any:
        seen.append(arguments[-1])
        return (none, none) if len(seen) == 1 else suspects(*arguments)

    monkeypatch.setattr(module, "_ALL_LIMIT", 0)
    monkeypatch.setattr(module, "_suspects", first_blind)
    (entry,) = locate(unit, ROUND[1], outcome)
    assert (entry["row"], entry["col"]) == divmod(700, SHAPE.n)
    assert len(set(seen)) == 2, "another challenge each time"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["bitflip", "zero", "transposed"])
def test_location_takes_little_memory_beside_operands_and_result(fault: str) -> None:
    shape = Shape(2048, 2048, 512)
    unit = ProductUnit(Stream(ComputingDevice()), "fp64", shape)
    unit.load(exact.RANGES["wide"], scaled=True)
    outcome = unit.run(ROUND[:1], [Expected(digest=1)], FAULTS[fault]).outcomes[0]
    assert outcome.evidence is not None
    tracemalloc.start()
    entries = locate(unit, ROUND[0], outcome)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    operands = 8 * (shape.m + shape.n) * shape.k
    blocks = 40 << 20  # of fixed size, whatever the shape
    assert entries and peak < operands + 8 * shape.n * shape.k + blocks


def test_fresh_seeds_are_never_golden_and_never_come_twice() -> None:
    from gpu_burnin.exact.golden import GOLDEN_SEEDS

    for seed in (0, 1, 0x5E1F, (1 << 64) - 1, GOLDEN_SEEDS[0]):
        seeds = list(itertools.islice(fresh_seeds(seed), 1000))
        assert len({*seeds, *GOLDEN_SEEDS}) == 1002
        assert all(0 <= fresh < 1 << 64 for fresh in seeds)


class _Seconds(ComputingDevice):
    """A product takes a second of device time."""

    work_s = 0.0

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        super().gemm(precision, a, b, c)
        self.work_s += 1.0

    def collect(self) -> Collected:
        seconds, self.work_s = self.work_s, 0.0
        return replace(super().collect(), seconds=seconds)


def test_the_time_of_a_batch_is_its_own_and_plain_products_are_counted_as_launched() -> None:
    unit = ProductUnit(Stream(_Seconds()), "bf16", SHAPE)
    unit.load(exact.RANGES["square"])
    for _ in range(3):
        unit.stream.gemm("bf16", unit.a[0], unit.b[0], unit.c)
    assert unit.stream.timed("bf16", unit.a[0], unit.b[0], unit.c, 5) == 5.0
    unit.stream.gemm("bf16", unit.a[0], unit.b[0], unit.c)
    unit.clear()
    batch = _run(unit, _golden(unit))
    assert (batch.seconds, [o.problems for o in batch.outcomes]) == (4.0, [()] * 4)


def test_a_plain_product_that_never_starts_shows_in_the_next_check() -> None:
    unit = ProductUnit(Stream(ComputingDevice()), "bf16", SHAPE)
    unit.load(exact.RANGES["square"])
    unit.stream.gemm("bf16", unit.a[0], unit.b[0], unit.c, skip=True)
    assert "not_launched" in _run(unit, _golden(unit)).outcomes[0].problems
