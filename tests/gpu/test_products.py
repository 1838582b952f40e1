"""Exactness of every precision, data paths, and faults planted in device memory: found, named and located."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_burnin.checks.gemm.probe import probe_bits
from gpu_burnin.device.storage import STORAGE
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.expected import expected_digests
from gpu_burnin.exact.faults import FAULTS, Target, flip_bit
from gpu_burnin.exact.fresh import make_set
from gpu_burnin.exact.golden import fresh_seeds, shipped_digest, shipped_shapes
from gpu_burnin.exact.locate import locate
from gpu_burnin.exact.port import STORAGE_OF, Products
from gpu_burnin.exact.product import ROUND, ProductUnit, Shape, Stream

SMALL = Shape(256, 256, 256)
_SEED = 11


def _supported(products: Products, precision: str) -> None:
    if precision not in products.precisions:
        pytest.skip(f"{products.device.facts()['device']} does not compute {precision}")


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_every_product_has_its_golden_digest(products: Products, precision: str, scaled: bool) -> None:
    _supported(products, precision)
    stream, checked = Stream(products), 0
    for m, n, k in shipped_shapes():
        unit = ProductUnit(stream, precision, Shape(m, n, k))
        for operands in exact.ranges_for(precision):
            if not exact.is_exact(precision, operands, k) or (scaled and not exact.can_scale(precision)):
                continue
            unit.load(operands, scaled=scaled)
            cases = {pair: unit.case(pair) for pair in ROUND}
            for case in cases.values():
                assert shipped_digest(operands, case.seed_a, case.seed_b, m, n, k) is not None
            expected = expected_digests(cases)
            batch = unit.run(ROUND, [expected[pair] for pair in ROUND])
            wrong = [outcome for outcome in batch.outcomes if not outcome.right]
            assert not wrong, (precision, operands.name, (m, n, k), [outcome.problems for outcome in wrong])
            checked += len(batch.outcomes)
    assert checked > 0 or (scaled and not exact.can_scale(precision))


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_fresh_seeds_pass_freivalds(products: Products, precision: str) -> None:
    _supported(products, precision)
    unit = ProductUnit(Stream(products), precision, SMALL)
    operands = exact.ranges_for(precision)[0]
    made = make_set(operands, SMALL, fresh_seeds(_SEED))
    assert made is not None
    unit.load(operands, made.seeds_a, made.seeds_b)
    batch = unit.run(ROUND, [made.expected[pair] for pair in ROUND])
    assert all(outcome.right for outcome in batch.outcomes)


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_the_probe_sees_the_precision_s_own_data_path(products: Products, precision: str) -> None:
    _supported(products, precision)
    probe = probe_bits(ProductUnit(Stream(products), precision, Shape(512, 512, 4096)), _SEED)
    assert (probe.seen, probe.acts_as, probe.errors) == (True, precision, None), (probe.path, probe.why)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_planted_faults_are_detected(products: Products, precision: str, name: str) -> None:
    _supported(products, precision)
    unit = ProductUnit(Stream(products), precision, SMALL)
    unit.load(exact.ranges_for(precision)[0])
    expected = expected_digests({pair: unit.case(pair) for pair in ROUND})
    pairs = ROUND[:2]
    clean, broken = unit.run(pairs, [expected[pair] for pair in pairs], FAULTS[name], _SEED).outcomes
    assert clean.right
    assert not broken.right


@pytest.mark.parametrize("precision", exact.PRECISIONS)
def test_a_flipped_bit_is_located(products: Products, precision: str) -> None:
    _supported(products, precision)
    unit = ProductUnit(Stream(products), precision, SMALL)
    unit.load(exact.ranges_for(precision)[0])
    expected = expected_digests({pair: unit.case(pair) for pair in ROUND})
    for bit in range(0, 8 * STORAGE[STORAGE_OF[precision][1]].size_bytes, 5):
        unit.clear()
        outcome = unit.run(ROUND[:1], [expected[ROUND[0]]], flip_bit(bit), _SEED + bit).outcomes[0]
        entries = locate(unit, ROUND[0], outcome)
        place = Target(products.device, unit.a[0], unit.b[0], unit.c, _SEED + bit).place(unit.c.elements)
        assert [(e["matrix"], e["row"], e["col"], e["flipped_bits"]) for e in entries] == [
            ("c", *divmod(place, unit.c.cols), [bit])
        ]


def test_random_products_repeat_bit_for_bit(products: Products) -> None:
    for precision in products.precisions:
        unit = ProductUnit(Stream(products), precision, Shape(512, 512, 1024))
        digests = set()
        for _ in range(8):
            products.fill_random(unit.a[0], 1)
            products.fill_random(unit.b[0], 2)
            products.device.write_raw(unit.c, 0, np.zeros(unit.c.elements, dtype=f"u{unit.c.storage.size_bytes}"))
            products.gemm(precision, unit.a[0], unit.b[0], unit.c)
            digests.add(products.digest_bits(unit.c, 3))
        assert len(digests) == 1, precision


def test_the_algorithm_is_reported_for_every_precision(products: Products) -> None:
    for precision in products.precisions:
        unit = ProductUnit(Stream(products), precision, SMALL)
        algorithm = products.algorithm(precision, unit.a[0], unit.b[0], unit.c)
        assert len(bytes.fromhex(algorithm)) == 64
        assert int(algorithm, 16) != 0
