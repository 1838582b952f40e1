"""The claim of a report, tried: faults as rare as it says a run could just have missed are missed as seldom as that.

Each unit of a check (a copy one way, a collective) is spoiled with the chance that the claimed rate gives for the time
that it takes. A claim with 95 % confidence then lets 5 % of the runs pass, exp(-3), and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks import together
from gpu_burnin.checks.nccl import check as nccl
from gpu_burnin.checks.nccl import session as nccl_session
from gpu_burnin.checks.nccl.cpu import CpuNccl
from gpu_burnin.checks.nccl.operations import Operation
from gpu_burnin.checks.nvlink import check as nvlink
from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from gpu_burnin.checks.pcie import check as pcie
from gpu_burnin.checks.pcie import phases as pcie_phases
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.pcie.port import Direction, Moved, Verified
from gpu_burnin.exact.operands import U64
from gpu_burnin.judge.coverage import RULE_OF_THREE, missed_fault_rate
from gpu_burnin.types import CheckResult, Verdict
from tests.support.clocks import HandClock, use
from tests.support.devices import DeviceWith
from tests.support.engine_helpers import SHAPES
from tests.support.together_helpers import contexts, results_together

RUNS = 200
# Of a copy between GPUs and of a collective, whatever else the host does: less than it takes.
_UNIT_S = 1e-6
# A test that is right fails by chance this seldom; the seeds are fixed, so it does so always or never.
_CHANCE = 1e-3


def most_missed(runs: int, chance: float) -> int:
    """The most misses of `runs` that are not too many when each run misses with `chance`."""
    left = 1.0
    for missed in range(runs + 1):
        left -= math.comb(runs, missed) * chance**missed * (1 - chance) ** (runs - missed)
        if left < _CHANCE:
            return missed
    raise AssertionError


@dataclass
class Spoiler:
    """Spoils units at random. `units` counts those that there were, `seconds` the time that they took."""

    chance: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    units: int = 0
    seconds: float = 0.0
    spoiled: int = 0
    only: int | None = None  # spoil this unit and no other

    def hits(self) -> bool:
        """Whether the next unit is spoiled."""
        hit = self.rng.random() < self.chance or self.units == self.only
        self.units += 1
        self.spoiled += hit
        return hit

    def flip(self, words: Any) -> None:
        """One bit of them."""
        bit = int(self.rng.integers(8 * words.itemsize))
        words[int(self.rng.integers(words.size))] ^= words.dtype.type(1 << bit if bit < 63 else 1)


Run = Callable[[Spoiler], dict[str, CheckResult]]


def _pcie(way: Direction) -> Run:
    """Copies of a millisecond, which take the host longer to compare than to make: most time is not copying."""

    def run(spoiler: Spoiler) -> dict[str, CheckResult]:
        clock = HandClock()  # seconds that pass by copies and by comparing, and by nothing else

        class Link(CpuPcie):
            def open(self, size_bytes: int) -> Any:
                self._large = size_bytes > pcie_phases.SMALL_BYTES
                return super().open(size_bytes)

            def begin(self, direction: Direction, copies: int, **load: Any) -> None:
                super().begin(direction, copies, **load)
                seconds = copies * 1e-3 if self._large else 1e-9
                self._batch = Moved(self._batch.bytes if self._batch else 0, seconds)
                spoiler.seconds += seconds if direction in (way, "duplex") and self._large else 0.0
                clock.now_s += seconds

            def verify(self) -> Verified:
                found = super().verify()
                clock.now_s += found.copies * 4e-3 if self._large else 0.0
                return found

            def _copy(self, name: str, copy: int, destination: U64, source: U64) -> None:
                super()._copy(name, copy, destination, source)
                if self._large and name == way and spoiler.hits():
                    spoiler.flip(destination)

        with pytest.MonkeyPatch.context() as patch:
            use(patch, clock, pcie, pcie_phases, together)
            patch.setattr(pcie_phases, "_SMALL_COPIES", 4)
            made = [replace(ctx, device=DeviceWith(pcie=Link)) for ctx in contexts(1, 0.3)]
            return results_together(pcie.Check().run, made)

    return run


def _nvlink(direction: str) -> Run:
    def run(spoiler: Spoiler) -> dict[str, CheckResult]:
        class Port(CpuNvlink):
            def _transfer(self, uuid: str, way: Any, source: U64, target: U64, times: int) -> None:
                super()._transfer(uuid, way, source, target, times)
                if way == direction and spoiler.hits():
                    spoiler.flip(target)

            def finish(self) -> Moved:
                moved = super().finish()
                return Moved(moved.bytes, moved.bytes / SHAPES["transfer_bytes"] * _UNIT_S)

        made = contexts(2)
        results = results_together(nvlink.Check().run, [replace(made[0], device=DeviceWith(nvlink=Port)), made[1]])
        spoiler.seconds = _UNIT_S * spoiler.units
        return results

    return run


def _nccl(spoiler: Spoiler) -> dict[str, CheckResult]:
    """Rows of as many operations as there can be."""

    class Port(CpuNccl):
        def finish(self, timeout_s: float) -> float:
            before = spoiler.units
            super().finish(timeout_s)
            seconds = _UNIT_S * (spoiler.units - before)
            spoiler.seconds += seconds
            return seconds

    def spoiling(name: str) -> Any:
        def operate(self: Port, op: Operation, deadline_s: float) -> None:
            getattr(CpuNccl, name)(self, op, deadline_s)
            if spoiler.hits():
                spoiler.flip(self._recv_array(op))

        return operate

    for name in ("_all_reduce", "_all_gather", "_reduce_scatter", "_all_to_all"):
        setattr(Port, name, spoiling(name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl_session, "_CURVES_SHARE", 1e12)
        options = {"options": {"collective_wait_s": 60.0}, "shapes": {**SHAPES, "collective_bytes": 4096}}
        made = contexts(2, 1e-9, **options)
        return results_together(nccl.Check().run, [replace(made[0], device=DeviceWith(nccl=Port)), made[1]])


CASES: dict[str, Run] = {
    "pcie h2d": _pcie("h2d"),
    "pcie d2h": _pcie("d2h"),
    "nvlink write": _nvlink("write"),
    "nvlink read": _nvlink("read"),
    "nccl": _nccl,
}


def _passed(results: dict[str, CheckResult]) -> bool:
    return all(result.verdict is Verdict.PASS for result in results.values())


def _clean(run: Run) -> tuple[Spoiler, float]:
    """What a healthy run has of units and their time, and the rate of faults that it says it could have missed."""
    counted = Spoiler()
    results = run(counted)
    assert _passed(results)
    claimed = missed_fault_rate(results["GPU-0"])
    assert claimed is not None
    return counted, claimed


@pytest.mark.parametrize("name", CASES)
def test_the_claim_speaks_of_the_time_of_the_copies_and_of_no_other(name: str) -> None:
    counted, claimed = _clean(CASES[name])
    assert counted.seconds > 0
    # It is that of the part with the least time, such as reads, which come in fewer phases than writes.
    assert 0.8 * counted.seconds <= RULE_OF_THREE / claimed <= 1.001 * counted.seconds


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_whichever_unit_is_spoiled_is_seen(name: str) -> None:
    run = CASES[name]
    units = _clean(run)[0].units
    for only in sorted({0, 1, units // 3, units // 2, units - 2, units - 1}):
        spoiler = Spoiler(only=only)
        results = run(spoiler)
        assert spoiler.spoiled == 1
        assert not _passed(results), f"unit {only} of {units} was spoiled"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # The other way of a check is counted by the same rule; that each of its units is looked at is shown above.
    [pytest.param(name, marks=pytest.mark.soak if name in ("pcie d2h", "nvlink write") else ()) for name in CASES],
)
def test_faults_as_rare_as_the_claim_are_missed_as_seldom_as_it_says(name: str) -> None:
    run = CASES[name]
    counted, claimed = _clean(run)
    chance = 1 - math.exp(-claimed * counted.seconds / counted.units)
    missed = spoiled = 0
    for number in range(RUNS):
        spoiler = Spoiler(chance, np.random.default_rng([number, 20]))
        missed += _passed(run(spoiler))
        spoiled += spoiler.spoiled
    most = most_missed(RUNS, math.exp(-RULE_OF_THREE))
    assert missed <= most, f"{missed} of {RUNS} runs passed over {spoiled} spoiled units; by chance at most {most}"


def test_misses_beyond_chance_are_few() -> None:
    assert most_missed(200, math.exp(-3.0)) == 21
