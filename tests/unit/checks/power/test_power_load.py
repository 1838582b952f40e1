"""The load of the power check: bursts of verified products, their edges, and the self-test that proves it all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.power import load as power_load
from gpu_burnin.checks.power.check import Check
from gpu_burnin.checks.power.load import FALLING, HIGH, RISING, Burst, Load
from gpu_burnin.exact.cpu import CpuProducts
from tests.support.together_helpers import contexts

# --- the load ---


def load_of(made: CheckContext, longest_s: float = 1.0) -> Load:
    assert made.device is not None
    return Load(made, CpuProducts(made.device), longest_s)


def test_the_largest_shape_that_fits_into_a_half_period_is_taken() -> None:
    (made,) = contexts(1)
    device = made.device
    assert device is not None
    big = {"gemm_m": 8192, "gemm_n": 8192, "gemm_k": 4096}
    assert [s.m for s in power_load.shapes_for(replace(made, shapes=big), device)] == [64]  # simulated
    real: Any = type("Real", (), {"simulated": False})()
    assert [s.m for s in power_load.shapes_for(replace(made, shapes=big), real)][:3] == [8192, 4096, 2048]
    assert [s.m for s in power_load.shapes_for(replace(made, shapes={**big, "gemm_k": 16}), real)] == [8192]


def test_a_burst_fills_the_time_it_is_given() -> None:
    load = load_of(contexts(1)[0])
    load.product_s = 0.001
    assert [load.count_for(seconds) for seconds in (0.0, 0.0101, 1.0)] == [2, 10, 1000]


@pytest.mark.parametrize("edge", [RISING, FALLING])
@pytest.mark.parametrize("fault", ["bitflip", "skipped_launch"])
def test_the_edge_of_a_wrong_product_is_right(fault: str, edge: str) -> None:
    load = load_of(contexts(1)[0])
    assert load.burst(5).wrong == ()
    assert [wrong.edge for wrong in load.burst(5, (fault,), edge).wrong] == [edge]
    assert load.burst(5).wrong == ()


def test_a_product_between_the_edges_is_seen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    load, calls = load_of(contexts(1)[0]), []
    gemm = CpuProducts.gemm

    def once(self: CpuProducts, precision: str, a: Any, b: Any, c: Any) -> None:
        gemm(self, precision, a, b, c)
        calls.append(1)
        if len(calls) == 3:
            c.data.reshape(-1)[0] ^= 1

    monkeypatch.setattr(CpuProducts, "gemm", once)
    assert [wrong.edge for wrong in load.burst(5).wrong] == [HIGH]


# --- self-test ---


def test_the_selftest_sees_each_fault() -> None:
    found = Check().selftest(contexts(1)[0])
    assert [test.fault for test in found] == [
        "bitflip rising", "bitflip falling", "skipped_launch falling", "corrupted transfer",
    ]  # fmt: skip
    assert all(test.injected and test.detected for test in found)


def test_a_blind_digest_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_burnin.exact import product

    monkeypatch.setattr(product.ProductUnit, "_problems", lambda *_: ())
    found = {test.fault: test.detected for test in Check().selftest(contexts(1)[0])}
    assert found == {
        "bitflip rising": False, "bitflip falling": False, "skipped_launch falling": False, "corrupted transfer": True,
    }  # fmt: skip


def test_a_digest_that_cries_always_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_burnin.exact import product

    monkeypatch.setattr(product.ProductUnit, "_problems", lambda *_: ("mismatch", "not_launched"))
    first, *others = Check().selftest(contexts(1)[0])
    # It is for the GPU to answer: products whose right result is known came out wrong with nothing injected.
    assert first.real is not None and first.real.code == "POWER_MISMATCH"
    assert not first.detected
    assert [test.fault for test in others] == ["corrupted transfer"]


def test_a_blind_verification_of_copies_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPcie, "inject", lambda *_: None)
    found = {test.fault: test.detected for test in Check().selftest(contexts(1)[0])}
    assert found["corrupted transfer"] is False


def test_without_a_device_there_is_nothing_to_prove() -> None:
    assert Check().selftest(replace(contexts(1)[0], device=None)) == ()


# --- long bursts, piece by piece ---


class _Slow:
    """A GPU that comes to its power limit: after the first products each takes twice as long. And its clock."""

    def __init__(self, load: Load, product_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.made = 0.0, 0
        load.product_s = product_s
        run = Load.burst

        def burst(own: Load, products: int, faults: tuple[str, ...] = (), edge: str = FALLING, **_: Any) -> Burst:
            done = run(own, min(products, 4), faults, edge)
            seconds = sum(product_s * (1 if self.made + n < 50 else 2) for n in range(products))
            self.made, self.now_s = self.made + products, self.now_s + seconds
            own.product_s = seconds / products
            return replace(done, products=products, seconds=seconds)

        monkeypatch.setattr(Load, "burst", burst)

    def now(self) -> float:
        return self.now_s


def test_a_gpu_that_slows_down_in_a_long_burst_still_ends_at_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_of(contexts(1)[0])
    slow = _Slow(load, 0.001, monkeypatch)
    burst = load.burst_for(0.9, now=slow.now)
    assert slow.now_s == pytest.approx(0.9, abs=0.05)
    assert (burst.products, burst.wrong) == (slow.made, ())
    assert burst.seconds == pytest.approx(slow.now_s)


def test_only_the_ends_of_a_long_burst_are_at_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    load = load_of(contexts(1)[0])
    slow = _Slow(load, 0.001, monkeypatch)
    assert [wrong.edge for wrong in load.burst_for(0.3, ("bitflip",), slow.now).wrong] == [FALLING]
    pieces, run = [], Load.burst

    def second(own: Load, products: int, faults: tuple[str, ...] = (), edge: str = FALLING) -> Burst:
        pieces.append(products)
        return run(own, products, ("bitflip",) if len(pieces) == 2 else (), edge)

    monkeypatch.setattr(Load, "burst", second)
    assert [wrong.edge for wrong in load.burst_for(0.3, now=slow.now).wrong] == [HIGH]
    assert len(pieces) == 2, "a wrong product ends the burst"
