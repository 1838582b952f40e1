"""The pcie check on simulated GPUs: phases and turns, every fault, memory refused, what report and rules read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from gpu_burnin.checks import CHECKS, REGISTRY, together
from gpu_burnin.checks.pcie import check as pcie
from gpu_burnin.checks.pcie import phases as pcie_phases
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.pcie.phases import ALONE, AT_ONCE, ROUND_S
from gpu_burnin.checks.pcie.port import FAULTS, MOST_LOCATED, Direction, Geometry, Kind, Moved, Verified
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.operands import U64
from gpu_burnin.report.formatting import covered
from gpu_burnin.types import JSON, CheckResult, Verdict
from tests.support import coverages
from tests.support.clocks import HandClock, use
from tests.support.devices import DeviceWith
from tests.support.engine_helpers import SHAPES, context
from tests.support.pcie_helpers import one, run
from tests.support.together_helpers import contexts, run_together

CHECK = pcie.Check()
SLOTS = 16  # of SHAPES' transfer_bytes
AT_ONCE_BATCHES = 4  # the fewest of all at once, each way
RATES = ("h2d", "d2h", "duplex", "h2d_all", "d2h_all")


# --- a healthy link ---


def test_the_check_is_one_of_gpus_together_with_a_self_test() -> None:
    assert isinstance(REGISTRY["pcie"], pcie.Check)
    assert CHECKS["pcie"].selftested
    assert set(CHECKS["pcie"].faults) == {str(fault) for fault in FAULTS}


def test_all_copies_of_a_run_without_a_budget_are_verified() -> None:
    results = run(3)
    assert set(results) == {"GPU-0", "GPU-1", "GPU-2"}
    for result in results.values():
        assert isinstance(result, CheckResult)
        assert (result.verdict, result.errors, result.reasons) == (Verdict.PASS, (), ())
        coverage = coverages.pcie(result)
        # Small ones twice each way, a warm-up each way, then h2d, d2h, duplex and both of all at once.
        large = 2 + SLOTS * (1 + 1 + 2 + 2 * AT_ONCE_BATCHES)
        copies, size = 4 * 256 + large, 4 * 256 * 4096 + large * SHAPES["transfer_bytes"]
        assert (coverage.copies_moved, coverage.copies_verified) == (copies, copies)
        assert (coverage.pcie_bytes_moved, coverage.bytes_verified) == (size, size)
        assert (coverage.rounds, coverage.gpus_at_once, coverage.wrong_copies) == (1, 3, 0)
        assert (coverage.simulated, coverage.link) == (True, None)
        assert [(m.name, m.unit) for m in result.measurements] == [
            *((name, "B/s") for name in RATES), ("h2d_4k_copy", "s"), ("d2h_4k_copy", "s"),
        ]  # fmt: skip
        assert all(m.value > 0 for m in result.measurements)
        assert [series.name for series in result.series] == [f"pcie {name}" for name in RATES]


def test_copies_are_no_longer_than_is_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host compares every byte that came back while all other GPUs wait: long copies would cost time."""
    monkeypatch.setattr(pcie, "MOST_COPY_BYTES", 8192)
    long, short = (one(shapes={**SHAPES, "transfer_bytes": size}) for size in (1 << 16, 4096))
    assert (coverages.pcie(long).transfer_bytes, coverages.pcie(short).transfer_bytes) == (8192, 4096)
    moved, copies = coverages.pcie(long).pcie_bytes_moved, coverages.pcie(long).copies_moved
    assert moved == 4 * 256 * 4096 + (copies - 4 * 256) * 8192


def test_the_report_says_what_was_copied() -> None:
    result = one()
    assert "copied between host and GPU, 1,218 copies verified word by word" in covered(result)
    more = replace(result, coverage=replace(coverages.pcie(result), copies_moved=2000))
    assert "1,218 copies of 2,000 moved verified word by word" in covered(more)


def test_a_check_without_a_device_is_a_fault_of_the_caller() -> None:
    with pytest.raises(DeviceError, match="needs a device"):
        CHECK.run(replace(context(), device=None))
    assert CHECK.selftest(replace(context(), device=None)) == ()


# --- phases ---


class Recording(CpuPcie):
    """Notes who copies what, in the order of the copies."""

    log: list[tuple[int, Direction, int]] = []  # noqa: RUF012 shared by the links of a test on purpose

    def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
        self.log.append((threading.get_ident(), direction, copies))
        super().begin(direction, copies)


def test_in_a_turn_only_one_gpu_copies() -> None:
    Recording.log.clear()
    assert all(isinstance(result, CheckResult) for result in run(3, Recording).values())
    # The last two batches of each are those of all at once.
    turns = [entry for entry in Recording.log if entry[2] != 256][: 3 * 5]
    who = [thread for thread, _, _ in turns]
    assert len(set(who)) == 3
    assert who == sorted(who, key=who.index), "one after the other"
    assert [direction for thread, direction, _ in turns if thread == who[0]] == [*AT_ONCE, *ALONE]


def test_a_gpu_that_dies_in_its_turn_leaves_the_others() -> None:
    class Dying(CpuPcie):
        deaths: list[bool] = [True]  # noqa: RUF012 the first one only

        def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
            if direction == "duplex" and self.deaths:
                self.deaths.clear()
                raise DeviceError("gone")
            super().begin(direction, copies)

    results = run(3, Dying)
    assert sum(isinstance(result, DeviceError) for result in results.values()) == 1
    left = [result for result in results.values() if isinstance(result, CheckResult)]
    assert [coverages.pcie(result).gpus_at_once for result in left] == [2, 2]


@pytest.mark.parametrize(("budget_s", "rounds"), [(0.0, 1), (10.0, 1), (65.0, 2)])
def test_the_budget_goes_into_rounds_turns_and_all_at_once(
    monkeypatch: pytest.MonkeyPatch, budget_s: float, rounds: int
) -> None:
    clock = HandClock()  # seconds that pass by copies and by nothing else
    spent: dict[str, float] = {}

    class Slow(CpuPcie):
        """A copy of transfer_bytes takes 0.1 s, whatever the host does."""

        copy_s = 0.0

        def open(self, size_bytes: int) -> Geometry:
            self.copy_s = 0.1 if size_bytes == SHAPES["transfer_bytes"] else 0.0
            return super().open(size_bytes)

        def finish(self) -> Moved:
            moved = super().finish()
            seconds = moved.bytes / SHAPES["transfer_bytes"] * self.copy_s
            clock.now_s += seconds
            return Moved(moved.bytes, max(seconds, 1e-9))

    use(monkeypatch, clock, pcie_phases, together)
    result = one(Slow, budget_s=budget_s)
    spent = {series.name.removeprefix("pcie "): len(series.values) for series in result.series}
    assert coverages.pcie(result).rounds == rounds == max(1, int(budget_s / ROUND_S))
    if budget_s == 0:
        assert spent == {**dict.fromkeys(RATES, 1), "h2d_all": AT_ONCE_BATCHES, "d2h_all": AT_ONCE_BATCHES}
        return
    # 40 % for the turns, a third of it each way; a batch of 16 copies takes 1.6 s, a duplex one 3.2 s.
    share_s = budget_s / rounds * 0.4 / 3
    assert spent["h2d"] == spent["d2h"] == rounds * -int(-share_s // 1.6)
    assert spent["duplex"] == rounds * -int(-share_s // 3.2)
    # As long for all at once, half of it each way, and never fewer than a few batches.
    batches = max(AT_ONCE_BATCHES, -int(-budget_s / rounds * 0.2 // 1.6))
    assert rounds * batches - rounds <= spent["h2d_all"] <= rounds * batches
    assert abs(spent["d2h_all"] - spent["h2d_all"]) <= 1
    copies = 1024 + 2 + SLOTS * (sum(spent.values()) + spent["duplex"])
    assert (coverages.pcie(result).copies_moved, coverages.pcie(result).copies_verified) == (copies, copies)
    assert clock.now_s < budget_s + rounds * 2 * AT_ONCE_BATCHES * 1.6


def test_a_series_keeps_its_ends_and_joins_what_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcie_phases, "_MOST_POINTS", 8)
    rate = pcie_phases.Rate()
    for at in range(1, 101):
        rate.add(Moved(100, 1.0 if at % 2 else 3.0), float(at))
    assert len(rate.points) <= 8
    assert rate.points[-1][0] == 100.0
    assert sum(moved.bytes for _, moved in rate.points) == 100 * 100
    assert rate.bytes_per_s == pytest.approx(50.0)


def test_progress_has_a_rate_and_ends_at_one() -> None:
    shown: list[Mapping[str, JSON]] = []
    one(progress=shown.append)
    times = {"h2d_all": AT_ONCE_BATCHES, "d2h_all": AT_ONCE_BATCHES}
    names = [name for name in RATES for _ in range(times.get(name, 1))]
    assert [s["phase"] for s in shown] == [f"PCIe {name.replace('_', ' ')}" for name in names]
    assert {(s["rate_unit"], s["errors"], s["done"]) for s in shown} == {("GB/s", 0, 1.0)}


# --- wrong copies ---


@pytest.mark.parametrize("fault", [str(fault) for fault in FAULTS])
def test_each_injected_fault_fails_its_gpu_and_is_named(fault: str) -> None:
    made = contexts(2)
    made[1] = replace(made[1], inject=(fault,))
    results = run_together(CHECK.run, made)
    healthy, broken = results["GPU-0"], results["GPU-1"]
    assert isinstance(healthy, CheckResult) and isinstance(broken, CheckResult)
    assert (healthy.verdict, broken.verdict) == (Verdict.PASS, Verdict.FAIL)
    (reason,) = broken.reasons
    assert (reason.code, reason.gpu) == ("PCIE_DATA", "GPU-1")
    count = 4 if fault == "reordered" else 2
    assert f"{count} {fault}; d2h and h2d" in reason.message
    assert reason.details["kinds"] == {fault: count}
    assert {error["kind"] for error in broken.errors} == {fault}
    assert {error["direction"] for error in broken.errors} == {"h2d", "d2h"}
    assert coverages.pcie(broken).wrong_copies == count


def _spoiling(ways: set[str], large: bool) -> type[CpuPcie]:
    """Links that flip a bit in every copy of these ways, of large or of small copies."""

    class Spoiling(CpuPcie):
        def _copy(self, way: str, copy: int, destination: U64, source: U64) -> None:
            super()._copy(way, copy, destination, source)
            if way in ways and (source.size > 512) == large:
                destination[-1] ^= np.uint64(1)

    return Spoiling


@pytest.mark.parametrize("way", ["h2d", "d2h"])
@pytest.mark.parametrize("large", [True, False])
def test_a_link_that_is_always_wrong_is_seen_wherever_it_is_used(way: str, large: bool) -> None:
    result = one(_spoiling({way}, large))
    assert result.verdict is Verdict.FAIL
    expected = 1 + SLOTS * (2 + AT_ONCE_BATCHES) if large else 2 * 256
    assert coverages.pcie(result).wrong_copies == expected
    assert result.reasons[0].details["directions"] == {way: expected}
    assert len(result.errors) == MOST_LOCATED
    assert f"(3 corrupted, {expected - 3} counted; {way})" in result.reasons[0].message


@pytest.mark.slow
def test_a_check_that_has_found_enough_ends_early() -> None:
    """Alone in a run its budget is most of a minute: three wrong copies tell all that there is to tell."""
    result = one(_spoiling({"d2h"}, True), budget_s=10.0)
    assert (result.verdict, len(result.errors)) == (Verdict.FAIL, MOST_LOCATED)
    assert result.seconds < 5


def test_a_fault_only_when_all_copy_at_once_is_seen() -> None:
    class Crowded(CpuPcie):
        batches = 0

        def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
            self.batches += 1
            super().begin(direction, copies)

        def _copy(self, way: str, copy: int, destination: U64, source: U64) -> None:
            if self.batches <= 5:  # those of the turn
                super()._copy(way, copy, destination, source)

    result = one(Crowded)
    # After four batches that bring nothing, what a slot still holds is by its turn what belongs there.
    assert coverages.pcie(result).wrong_copies == 2 * (AT_ONCE_BATCHES - 1) * SLOTS
    assert {error["kind"] for error in result.errors} == {"dropped"}


def test_refused_memory_ends_the_check_with_the_fix_and_nothing_left_open() -> None:
    class Refusing(CpuPcie):
        closed: list[bool] = []  # noqa: RUF012

        def _pin(self, size_bytes: int) -> U64:
            raise OSError(12, "Cannot allocate memory")

        def close(self) -> None:
            self.closed.append(True)
            super().close()

    results = run(2, Refusing)
    for error in results.values():
        assert isinstance(error, DeviceError)
        assert "LimitMEMLOCK=infinity" in str(error)
    assert Refusing.closed


# --- self-test ---


def test_the_self_test_of_a_run_is_short_and_the_full_one_has_every_kind() -> None:
    short = CHECK.selftest(context())
    assert [test.fault for test in short] == ["corrupted h2d", "corrupted d2h", "dropped h2d", "dropped d2h"]
    full = CHECK.selftest(replace(context(), selftest_full=True))
    assert [test.fault for test in full] == [f"{fault} {way}" for fault in FAULTS for way in ("h2d", "d2h")]
    for test in (*short, *full):
        assert (test.injected, test.detected, test.gpu, test.check) == (True, True, "GPU-0", "pcie")
        assert test.scope == "detector logic only"
        assert test.changed_bits == (1 if test.fault.startswith("corrupted") else None)


class Blind(CpuPcie):
    """Never sees anything wrong."""

    def verify(self) -> Verified:
        return replace(super().verify(), wrong=())


class Crying(CpuPcie):
    """Sees a corrupted copy in every batch."""

    def _copy(self, way: str, copy: int, destination: U64, source: U64) -> None:
        super()._copy(way, copy, destination, source)
        if copy % 16 == 3:
            destination[0] ^= np.uint64(1)


class Mixing(CpuPcie):
    """Takes every fault for a dropped copy."""

    def verify(self) -> Verified:
        found = super().verify()
        return replace(found, wrong=tuple(replace(wrong, kind=Kind.DROPPED) for wrong in found.wrong))


class Both(CpuPcie):
    """Flips a bit of one copy, in the first batch that has an injected fault."""

    struck = False

    def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
        super().begin(direction, copies)
        if self.planted() and not self.struck:
            self.struck = True
            (hit,) = self.planted()[0].copies
            self._ways[direction].ring[self.place(hit) * self._words + 7] ^= np.uint64(1 << 9)

    def place(self, hit: int) -> int:
        return (hit + 1) % SLOTS


class Twice(Both):
    """The bit is in the copy that the injected fault hits."""

    def place(self, hit: int) -> int:
        return hit % SLOTS


@pytest.mark.parametrize("kind", [Both, Twice])
def test_a_real_fault_beside_an_injected_one_is_no_injected_one(kind: type[CpuPcie]) -> None:
    """Of another copy, or another word of the same: the batch knows what it has spoiled."""
    (test,) = CHECK.selftest(replace(context(), device=DeviceWith(pcie=kind)))
    assert test.real is not None
    assert (test.fault, test.detected, test.real.code) == ("corrupted h2d", False, "PCIE_DATA")
    assert "beside the injected fault: 1 of 16" in test.real.message
    assert test.real.details["phase"] == "self-test"


@pytest.mark.parametrize(
    ("kind", "detected"), [(Blind, [False] * 4), (Crying, [False]), (Mixing, [False, False, True, True])]
)
def test_a_detector_that_is_blind_cries_always_or_mixes_kinds_is_not_taken_for_good(
    kind: type[CpuPcie], detected: list[bool]
) -> None:
    tests = CHECK.selftest(replace(context(), device=DeviceWith(pcie=kind)))
    assert [test.detected for test in tests] == detected
