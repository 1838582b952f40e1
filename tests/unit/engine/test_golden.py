"""The shipped golden digests are what integer arithmetic gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpu_burnin.compute import exact, golden
from gpu_burnin.compute.exact import RANGES, OperandRange

SHIPPED = Path(golden.__file__).with_name("golden") / golden.FILE_NAME


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("operands", RANGES.values(), ids=lambda r: r.name)
def test_small_shapes_are_made_again(operands: OperandRange, size: int) -> None:
    for seed in golden.GOLDEN_SEEDS:
        a, b = exact.operand_a(operands, seed, size, size), exact.operand_b(operands, seed, size, size)
        again = exact.digest_integers(a @ b, golden.DIGEST_KEY)  # int64 only, no FP64 anywhere
        assert golden.shipped_digest(operands, seed, size, size, size) == again


def test_one_large_product_is_made_again() -> None:
    operands = RANGES["square"]
    again = golden.golden_digest(operands, golden.GOLDEN_SEEDS[0], 1024, 1024, 1024)
    assert golden.shipped_digest(operands, golden.GOLDEN_SEEDS[0], 1024, 1024, 1024) == again


def test_the_default_shapes_are_shipped() -> None:
    assert {(256, 256, 256), (4096, 4096, 4096)} <= set(golden.shipped_shapes())


def test_no_two_digests_of_a_shape_are_equal() -> None:
    entries = json.loads(SHIPPED.read_text())["entries"]
    assert len({e["digest"] for e in entries}) == len(entries)
    assert len(entries) == len(golden.shipped_shapes()) * len(RANGES) * len(golden.GOLDEN_SEEDS)


def test_large_products_carry_an_integer_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = RANGES["wide"]
    a, b = exact.operand_a(operands, 1, 32, 32), exact.operand_b(operands, 1, 32, 32)
    monkeypatch.setattr(golden, "_DIRECT_LIMIT", 0)
    assert np.array_equal(golden.integer_product(a, b, operands), a @ b)
    monkeypatch.setattr(golden.exact, "expected_bilinear", lambda *_: -1)
    with pytest.raises(ArithmeticError, match="certificate"):
        golden.integer_product(a, b, operands)


def test_the_generator_writes_the_shipped_format(tmp_path: Path) -> None:
    golden.main([str(tmp_path / "g.json"), "64,64,64"])
    made = json.loads((tmp_path / "g.json").read_text())
    shipped = json.loads(SHIPPED.read_text())
    assert made["entries"] == [e for e in shipped["entries"] if (e["m"], e["n"], e["k"]) == (64, 64, 64)]
    assert {k: made[k] for k in ("schema", "digest_key")} == {k: shipped[k] for k in ("schema", "digest_key")}
