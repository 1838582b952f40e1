"""The shipped golden digests are what integer arithmetic gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_burnin.exact import golden
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.digest import digest_integers
from gpu_burnin.exact.integer import single_product
from gpu_burnin.exact.operands import RANGES, OperandRange

SHIPPED = Path(golden.__file__).with_name("golden") / golden.FILE_NAME


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("operands", RANGES.values(), ids=lambda r: r.name)
def test_small_shapes_are_made_again(operands: OperandRange, size: int) -> None:
    for seed_a in golden.GOLDEN_SEEDS:
        for seed_b in golden.GOLDEN_SEEDS:
            a, b = exact.operand_a(operands, seed_a, size, size), exact.operand_b(operands, seed_b, size, size)
            product = a @ b if operands.rounds_to is None else single_product(a, b, operands)  # no FP64 anywhere
            again = digest_integers(product, golden.DIGEST_KEY)
            assert golden.shipped_digest(operands, seed_a, seed_b, size, size, size) == again


@pytest.mark.parametrize("name", ["square", "ieee_fp64"])
def test_large_products_are_made_again(name: str) -> None:
    operands = RANGES[name]
    again = golden.golden_digests(operands, 512, 512, 512)
    for (seed_a, seed_b), digest in again.items():
        assert golden.shipped_digest(operands, seed_a, seed_b, 512, 512, 512) == digest


def test_the_shapes_in_use_are_shipped() -> None:
    wanted = {(64, 64, 64), (128, 128, 128), (256, 256, 256), (4096, 4096, 4096)}
    assert wanted | {(2048, 2048, 4096), (8192, 8192, 4096)} <= set(golden.shipped_shapes())


def test_no_two_digests_of_a_shape_are_equal() -> None:
    entries = json.loads(SHIPPED.read_text())["entries"]
    digests = [digest for entry in entries for digest in entry["digests"]]
    assert len(set(digests)) == len(digests) == 4 * len(entries)
    assert len(entries) == len(golden.shipped_shapes()) * len(RANGES)
    assert SHIPPED.stat().st_size < 64 << 10


def test_the_generator_writes_the_shipped_format(tmp_path: Path) -> None:
    golden.main([str(tmp_path / "g.json"), "64,64,64"])
    made = json.loads((tmp_path / "g.json").read_text())
    shipped = json.loads(SHIPPED.read_text())
    assert made["entries"] == [e for e in shipped["entries"] if e["shape"] == [64, 64, 64]]
    assert {k: v for k, v in made.items() if k != "entries"} == {k: v for k, v in shipped.items() if k != "entries"}


def test_a_file_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "SCHEMA", "gpu-burnin-golden/v9")
    with pytest.raises(ValueError, match="reinstall"):
        golden._shipped.__wrapped__()
