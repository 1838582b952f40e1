"""The self-test of the gemm check: it sees every fault, and says so of each detector that is blind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks.gemm import check as gemm
from gpu_burnin.exact import freivalds, operands
from gpu_burnin.exact.cpu import CpuProducts
from gpu_burnin.exact.faults import FAULTS, SELFTEST_FAULTS
from gpu_burnin.exact.operands import Digest
from gpu_burnin.exact.port import Collected, Observed
from gpu_burnin.types import Verdict
from tests.support.devices import ComputingDevice
from tests.support.engine_helpers import context


def _undetected(results: Iterable[Any]) -> set[str]:
    return {r.fault for r in results if not r.detected}


def test_the_selftest_detects_every_fault_in_every_precision() -> None:
    results = gemm.Check().selftest(context())
    assert len(results) == len(operands.PRECISIONS) * (len(SELFTEST_FAULTS) + 1)
    assert all(r.injected and r.detected and r.latency_s > 0 for r in results)
    assert {r.scope for r in results} == {"detector logic only"}
    assert {r.fault.split(" ")[1] for r in results} == set(operands.PRECISIONS)
    sizes = {r.fault: r.changed_bits for r in results}
    assert sizes["bitflip bf16"] == 1 and sizes["multibit bf16"] == 3 and sizes["warp_run bf16"] == 96
    assert sizes["skipped_launch bf16"] is None


def test_the_full_selftest_runs_the_whole_table() -> None:
    results = gemm.Check().selftest(replace(context(), selftest_full=True))
    names = {r.fault for r in results}
    assert not _undetected(results)
    for precision in operands.PRECISIONS:
        for fault in FAULTS:
            assert {f"{fault} {precision}", f"{fault} {precision} (fresh seed)"} <= names
            assert (f"{fault} {precision} scaled" in names) == operands.can_scale(precision)
        bits = 64 if precision == "fp64" else 32
        assert all(f"bitflip {precision} bit {bit}" in names for bit in range(bits))


@pytest.mark.parametrize("size", [16, 48])
def test_the_selftest_detects_every_fault_with_any_seed(size: int) -> None:
    """A fault that changed nothing would make a healthy GPU look blind: no seed may give one."""
    base = context(gemm_m=size, gemm_n=size, gemm_k=size)
    for seed in (0, 0x5E1F, 5750266228001073982, *map(operands.mix, range(1, 6))):
        assert not _undetected(gemm.Check().selftest(replace(base, seed=seed))), seed


@pytest.mark.parametrize(("seed", "sizes"), [(0, (16, 16, 16)), (operands.mix(1), (32, 48, 80))])
def test_healthy_hardware_passes_with_any_seed_and_shape(seed: int, sizes: tuple[int, ...]) -> None:
    shapes = dict(zip(("gemm_m", "gemm_n", "gemm_k"), sizes, strict=True))
    assert gemm.Check().run(replace(context(**shapes), seed=seed)).verdict is Verdict.PASS


class _Observing(ComputingDevice):
    """A detector that sees what `see` makes of the truth."""

    def see(self, observed: Observed) -> Observed:
        return observed

    def collect(self) -> Collected:
        collected = super().collect()
        return replace(collected, observed=tuple(self.see(o) for o in collected.observed))


def test_the_selftest_sees_a_blind_nan_counter() -> None:
    class Blind(_Observing):
        def see(self, observed: Observed) -> Observed:
            return replace(observed, digest=replace(observed.digest, nonfinite=0))

    missed = _undetected(gemm.Check().selftest(replace(context(), device=Blind())))
    assert missed == {f"nan {p}" for p in operands.PRECISIONS if p != "int8"}


def test_the_selftest_sees_a_dead_launch_counter() -> None:
    class Dead(_Observing):
        launches_seen = 0

        def see(self, observed: Observed) -> Observed:
            Dead.launches_seen += 1  # counts checks, not launches
            return replace(observed, launches=Dead.launches_seen)

    missed = _undetected(gemm.Check().selftest(replace(context(), device=Dead())))
    assert missed == {f"skipped_launch {p}" for p in operands.PRECISIONS}


def test_the_selftest_sees_a_detector_that_always_cries() -> None:
    class Cries(_Observing):
        def see(self, observed: Observed) -> Observed:
            return replace(observed, launches=0)

    results = gemm.Check().selftest(replace(context(), device=Cries()))
    assert len(_undetected(results)) == len(results)


def test_the_selftest_sees_a_blind_digest() -> None:
    class Blind(_Observing):
        def see(self, observed: Observed) -> Observed:
            return replace(observed, digest=Digest(0))

    results = gemm.Check().selftest(replace(context(), device=Blind()))
    assert len(_undetected(results)) == len(results), "it says so of what nothing was injected into"


def test_the_selftest_sees_a_freivalds_check_that_always_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuProducts, "bilinear", lambda *_: 1)
    monkeypatch.setattr(freivalds, "dot", lambda *_: 1)
    missed = _undetected(gemm.Check().selftest(context()))
    assert missed == {f"wrong_value {p} (fresh seed)" for p in operands.PRECISIONS}
