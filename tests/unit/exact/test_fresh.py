"""Freivalds expectations made ahead of time by a thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpu_burnin.exact import freivalds, fresh
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.fresh import FreshSupply, make_set
from gpu_burnin.exact.golden import fresh_seeds
from gpu_burnin.exact.product import ROUND, Shape
from tests.support.clocks import PATIENCE_S

SHAPE = Shape(48, 40, 64)


@pytest.mark.parametrize("name", [r.name for r in exact.RANGES.values() if r.rounds_to is None])
def test_a_set_expects_what_the_exact_products_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_BLOCK", 300)  # several blocks, the last one short
    operands = exact.RANGES[name]
    made = make_set(operands, SHAPE, fresh_seeds(1))
    assert made is not None and len({*made.seeds_a, *made.seeds_b}) == 4
    for i, j in ROUND:
        a = exact.operand_a(operands, made.seeds_a[i], SHAPE.m, SHAPE.k)
        b = exact.operand_b(operands, made.seeds_b[j], SHAPE.k, SHAPE.n)
        want = made.expected[i, j]
        assert want.w is not None and want.v is not None
        assert freivalds.bilinear(a @ b, want.w, want.v) == want.bilinear


def test_rounded_ranges_have_no_linear_check() -> None:
    with pytest.raises(ValueError, match="rounded"):
        make_set(exact.RANGES["ieee_fp32"], SHAPE, fresh_seeds(1))


def test_the_supply_goes_through_the_ranges_and_depends_on_the_seed_only() -> None:
    ranges = [exact.RANGES["square"], exact.RANGES["sparse"]]
    taken: list[list[Any]] = []
    for seed in (5, 5, 6):
        with FreshSupply(ranges, SHAPE, seed) as supply:
            taken.append([supply.take(wait=True) for _ in range(5)])
    names = [made.operands.name for made in taken[0]]
    assert names == ["square", "sparse", "square", "sparse", "square"]
    assert [m.seeds_a for m in taken[0]] == [m.seeds_a for m in taken[1]] != [m.seeds_a for m in taken[2]]


def test_taking_never_waits_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    make = fresh.make_set

    def slow(*args: Any) -> Any:
        assert gate.wait(PATIENCE_S)
        return make(*args)

    monkeypatch.setattr(fresh, "make_set", slow)
    with FreshSupply([exact.RANGES["square"]], SHAPE, 1) as supply:
        assert supply.take() is None
        gate.set()
        assert supply.take(wait=True) is not None


def test_leaving_ends_the_thread_even_within_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    blocks = exact.operand_blocks

    def endless(*args: Any) -> Any:
        while True:
            begun.set()
            yield from blocks(*args)

    monkeypatch.setattr(exact, "operand_blocks", endless)
    before = threading.active_count()
    with FreshSupply([exact.RANGES["square"]], SHAPE, 1):
        assert begun.wait(PATIENCE_S)
    assert threading.active_count() == before


def test_what_goes_wrong_in_the_thread_is_raised_where_the_set_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(fresh, "make_set", broken)
    with FreshSupply([exact.RANGES["square"]], SHAPE, 1) as supply, pytest.raises(MemoryError, match="no room"):
        supply.take(wait=True)
