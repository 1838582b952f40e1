"""The hbm check with its self-test, right and wrong, on the CPU device; patterns against faulty memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_burnin.checks import CHECKS, CheckContext
from gpu_burnin.checks.gemm import check as gemm
from gpu_burnin.checks.hbm import check as hbm
from gpu_burnin.checks.hbm import rounds as hbm_patterns
from gpu_burnin.checks.hbm.cpu import CpuHbm
from gpu_burnin.checks.hbm.faults import FAULTS
from gpu_burnin.checks.hbm.patterns import MemoryFaults, Pattern
from gpu_burnin.checks.hbm.port import HbmPort, hbm_port
from gpu_burnin.checks.hbm.rounds import CORE, Scan, Step
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact import operands
from gpu_burnin.types import JSON, Verdict
from tests.support import clocks
from tests.support.devices import ComputingDevice, DeviceWith
from tests.support.engine_helpers import context
from tests.support.faulty_hbm import FaultyHbm


def _extended(**more: Any) -> CheckContext:
    return replace(context(**more), level="extended")


@pytest.mark.parametrize("seed", [0, *map(operands.mix, range(1, 6))])
def test_healthy_memory_passes_with_any_seed(seed: int) -> None:
    assert hbm.Check().run(replace(context(hbm_bytes=4096), seed=seed)).verdict is Verdict.PASS


@pytest.mark.parametrize("level", ["quick", "standard"])
def test_hbm_passes_and_says_what_it_covered(level: str) -> None:
    result = hbm.Check().run(replace(context(), level=level))
    assert (result.verdict, result.errors) == (Verdict.PASS, ())
    coverage = result.coverage
    assert coverage.covered_bytes == 1 << 16
    assert (coverage.gpu_memory_bytes, coverage.unreachable_bytes) == (1 << 30, None)
    assert coverage.memory == "host memory, no GPU memory"
    assert coverage.patterns == CORE
    assert (coverage.rounds, coverage.wrong_words, coverage.shape_words) == (1, 0, "")
    assert (coverage.retention_s, coverage.simulated) == (0.0, True)
    (rate,) = result.measurements
    assert (rate.name, rate.unit) == ("hbm_rate", "B/s") and rate.value > 0


def test_bytes_are_counted_one_by_one() -> None:
    """address and walking: 2 written, 2 read; inversions: 3 and 3; modulo: 3 and 2, times the memory."""
    coverage = hbm.Check().run(context()).coverage
    walking, modulo = 4, 2
    assert coverage.passes == {**dict.fromkeys(CORE, 1), "walking": walking, "modulo": modulo}
    assert coverage.bytes_written == (2 * (1 + walking) + 3 * 3 + 3 * modulo) << 16
    assert coverage.bytes_read_back == (2 * (1 + walking) + 3 * 3 + 2 * modulo) << 16
    assert coverage.bytes_moved == coverage.bytes_written + coverage.bytes_read_back


def test_more_rounds_follow_while_there_is_time_and_move_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.use(monkeypatch, clocks.LookClock(0.001), hbm, hbm_patterns)
    seen: list[Pattern] = []

    class Watched(CpuHbm):
        def write(self, pattern: Pattern) -> None:
            seen.append(pattern)
            super().write(pattern)

    result = hbm.Check().run(replace(context(budget_s=0.3, hbm_bytes=4096), device=DeviceWith(hbm=Watched)))
    assert result.coverage.rounds > 1
    assert len({p.parameter for p in seen if p.kind == "random"}) > 1
    assert len({p.parameter for p in seen if p.kind == "walking"}) > 4
    assert result.seconds >= 0.3


def test_an_extended_round_visits_every_bit_and_every_rare_place_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    clock = clocks.HandClock()
    clocks.use(monkeypatch, clock, hbm, hbm_patterns)

    class Watched(CpuHbm):
        def hold(self, seconds: float) -> None:
            waits.append(seconds)
            clock.sleep(seconds)

    told: list[Mapping[str, JSON]] = []
    ctx = replace(_extended(hbm_bytes=4096), device=DeviceWith(hbm=Watched), progress=told.append)
    check = hbm.Check()
    check.retention_s = 0.05
    result = check.run(ctx)
    assert result.coverage.passes == {**dict.fromkeys(CORE, 1), "walking": 64, "modulo": 20, "retention": 1}
    assert result.coverage.patterns == (*CORE, "retention")
    assert result.coverage.retention_s == 0.05 and clock.now_s == pytest.approx(0.1)
    assert waits == pytest.approx([0.05, 0.05])
    assert any(message["phase"] == "memory retention" for message in told)


def test_only_each_eighth_round_waits() -> None:
    rounds = range(17)
    made = [{step.test for step in hbm_patterns.steps(1, "extended", i, 0.0, lambda: None)} for i in rounds]
    assert [i for i in rounds if "retention" in made[i]] == [0, 8, 16]
    assert not any(
        "retention" in {s.test for s in hbm_patterns.steps(1, "standard", i, 0.0, lambda: None)} for i in rounds
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("level", ["quick", "extended"])
@pytest.mark.parametrize("seed", [0, 7, operands.mix(3)])
def test_hbm_fails_on_every_injected_fault(fault: str, level: str, seed: int) -> None:
    check = hbm.Check()
    check.retention_s = 0.01
    result = check.run(replace(context(inject=(fault,), hbm_bytes=1 << 15), level=level, seed=seed))
    assert result.verdict is Verdict.FAIL
    (reason,) = result.reasons
    assert reason.code == "HBM_BIT_ERROR"
    if fault == "fade" and level == "extended":
        assert list(result.coverage.wrong_words_by_pattern) == ["retention"]
    if fault == "stuck":
        assert len(result.coverage.wrong_words_by_pattern) >= 5


def test_the_faults_of_the_row_are_those_that_can_be_injected() -> None:
    assert CHECKS["hbm"].faults == tuple(FAULTS)


_SHAPES = {
    "bitflip": (1, "single bit 17 in one word"),
    "stuck": (2, "burst of 16 bytes, bits 8-15 in 2 words"),
    "flipping": (1, "single bit 17 in one word"),
    "coupling": (1, "single bit 17 in one word"),
    "alias": (1, "all bits in one word"),
    "lane": (64, "bit lane 17 in 64 words, stride of 512 bytes"),
    "row_burst": (128, "row-like run of 1024 bytes, all bits in 128 words"),
    "fade": (8, "burst of 64 bytes, all bits in 8 words"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_once_with_its_shape(fault: str) -> None:
    result = hbm.Check().run(context(inject=(fault,)))
    words, shape = _SHAPES[fault]
    assert (result.coverage.wrong_words, result.coverage.shape_words) == (words, shape)
    (reason,) = result.reasons
    assert reason.message.count(shape) == 1 and "seen by" in reason.message
    offsets = [error["offset_bytes"] for error in result.errors]
    assert offsets == sorted(set(offsets), key=lambda x: int(str(x)))
    assert len(offsets) == min(words, 64)


def test_an_error_names_place_bits_and_pattern() -> None:
    result = hbm.Check().run(context(inject=("bitflip",)))
    (error,) = result.errors
    assert (error["bit_lanes"], error["pattern"]) == ([17], "address")
    assert int(str(error["expected"]), 16) == error["offset_bytes"]
    assert int(str(error["expected"]), 16) ^ int(str(error["got"]), 16) == 1 << 17
    assert result.coverage.wrong_reads_by_lane == {"17": 1}


def test_wrong_words_end_the_check_with_its_round() -> None:
    result = hbm.Check().run(context(inject=("stuck",), budget_s=30.0))
    assert (result.coverage.rounds, result.coverage.patterns) == (1, CORE)


def test_a_first_round_that_takes_too_long_is_ended_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(hbm, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    class Slow(CpuHbm):
        def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
            clock[0] += 20.0 if pattern.kind == "solid" else 0.0
            return super().verify(pattern, invert, downwards)

    result = hbm.Check().run(replace(context(hbm_bytes=4096), device=DeviceWith(hbm=Slow)))
    (reason,) = result.reasons
    assert (reason.code, result.verdict) == ("COVERAGE_LOW", Verdict.INCONCLUSIVE)
    assert "before inversions checker, walking, modulo had gone over all 4096 bytes" in reason.message
    assert result.coverage.patterns == ("address", "inversions random", "inversions solid")


@pytest.mark.parametrize("act", ["run", "selftest"])
def test_memory_is_given_back_also_after_an_exception(act: str) -> None:
    class Breaks(CpuHbm):
        def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
            assert self._words.size
            raise DeviceError("the device fell off the bus")

    memory = Breaks()
    with pytest.raises(DeviceError, match="fell off"):
        getattr(hbm.Check(), act)(replace(context(), device=DeviceWith(hbm=lambda: memory)))
    assert memory._words.size == 0


def test_memory_is_given_back_after_a_run() -> None:
    memory = CpuHbm()
    ctx = replace(context(), device=DeviceWith(hbm=lambda: memory))
    hbm.Check().run(ctx)
    assert memory._words.size == 0
    hbm.Check().selftest(ctx)
    assert memory._words.size == 0


def test_gemm_leaves_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device memory goes back when the last reference does: nothing of gemm may wait for the cycle collector."""
    left: list[weakref.ref[Any]] = []

    class Watched(ComputingDevice):
        def allocate(self, storage: str, rows: int, cols: int, transposed: bool = False) -> Any:
            buffer = super().allocate(storage, rows, cols, transposed)
            left.append(weakref.ref(buffer))
            return buffer

    ctx = replace(context(), device=Watched())
    gc.collect()
    gc.disable()
    try:
        gemm.Check().run(ctx)
        gemm.Check().selftest(ctx)
        assert len(left) > 20
        assert [ref for ref in left if ref() is not None] == []
    finally:
        gc.enable()


# --- patterns against models of hardware faults ---

_KINDS = FaultyHbm.KINDS
# The place of a fault: its word in the low half, its bit in the upper one.
_PLACES = {"joined data lines": 4 << 32, "neighbour disturb": 40}
_PLACE = 3 << 32 | 5
_FINDS: Mapping[str, tuple[str, ...]] = {
    "address": _KINDS,
    "inversions random": _KINDS,
    "inversions solid": ("stuck at 0", "stuck at 1"),  # all words are alike
    "inversions checker": ("stuck at 0", "stuck at 1", "joined data lines", "neighbour disturb"),
    # It repeats every 64 words, so words at aliased addresses are equal.
    "walking": ("stuck at 0", "stuck at 1", "joined data lines", "neighbour disturb"),
    "modulo": _KINDS,
}


def _run(test: str, memory: HbmPort, size_bytes: int) -> Scan:
    scan = Scan(memory, size_bytes)
    for step in hbm_patterns.steps(1, "extended", 0, 0.01, lambda: None):
        if step.test == test:
            scan.do(step)
    return scan


@pytest.mark.slow
@pytest.mark.parametrize(("test", "kind"), [(t, k) for t, kinds in _FINDS.items() for k in kinds])
def test_patterns_find_hardware_faults(test: str, kind: str) -> None:
    memory = hbm_port(FaultyHbm(kind, _PLACES.get(kind, _PLACE)))
    memory.take(1 << 16)
    assert _run(test, memory, 1 << 16).damage.words > 0


@pytest.mark.parametrize("test", hbm_patterns.tests_of("extended"))
def test_each_pattern_is_silent_on_healthy_memory(test: str) -> None:
    memory = CpuHbm()
    memory.take(1 << 16)
    scan = _run(test, memory, 1 << 16)
    assert (scan.damage.words, scan.damage.reads) == (0, {}) and scan.reached[test] > 0


def test_only_retention_finds_what_fades_slowly() -> None:
    class Fades(CpuHbm):
        """Word 9 loses its ones when it was held."""

        def hold(self, seconds: float) -> None:
            super().hold(seconds)
            self._words[9] = 0

    found = {}
    for test in hbm_patterns.tests_of("extended"):
        memory = Fades()
        memory.take(1 << 15)
        found[test] = _run(test, memory, 1 << 15).damage.words
    assert found == {**dict.fromkeys(CORE, 0), "retention": 1}


def test_passes_downwards_find_coupling_that_passes_upwards_cannot() -> None:
    """A store into one chunk turns a bit of the chunk before it over. Upwards that chunk was read already, and it is
    written before it is read again; downwards it is read next."""

    class Coupled(CpuHbm):
        downwards = False

        def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
            self.downwards = downwards
            return super().verify(pattern, invert, downwards)

        def _store(self, start_word: int, words: Any) -> None:
            super()._store(start_word, words)
            if start_word > 0 and self.downwards:
                self._words[start_word - 1] ^= 2

    memory = Coupled()
    memory.take(1 << 20)
    scan = Scan(memory, 1 << 20)
    scan.do(Step("inversions", lambda s: hbm_patterns.moving_inversions(s, Pattern("random", 3))))
    assert sorted(scan.damage.masks) == [8 * (n * (1 << 15) - 1) for n in range(1, 4)]


# --- self-test ---


def test_the_selftest_flips_a_cell_and_sees_it_with_any_seed() -> None:
    for seed in (0, *map(operands.mix, range(1, 12))):
        (memory,) = hbm.Check().selftest(replace(context(hbm_bytes=4096), seed=seed))
        assert memory.injected and memory.detected and memory.changed_bits == 1
        assert (memory.fault, memory.scope) == ("bitflip cell", "detector logic only")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 7, *map(operands.mix, range(1, 6))])
def test_the_full_selftest_sees_every_fault(seed: int) -> None:
    results = hbm.Check().selftest(replace(context(hbm_bytes=8192), seed=seed, selftest_full=True))
    assert [(r.fault.split(" ")[0], r.detected) for r in results] == [(name, True) for name in FAULTS]
    assert all(r.changed_bits and r.changed_bits > 0 for r in results)


def test_the_selftest_sees_a_blind_memory_test() -> None:
    class Wrong(CpuHbm):
        def verify(self, *_: Any, **__: Any) -> MemoryFaults:
            return MemoryFaults()

    (memory,) = hbm.Check().selftest(replace(context(), device=DeviceWith(hbm=Wrong)))
    assert not memory.detected


# --- host memory ---


def test_host_memory_of_no_given_size_is_small() -> None:
    memory = CpuHbm()
    assert memory.take(0).size_bytes == 16 << 20


def test_host_memory_that_is_not_there_is_said() -> None:
    with pytest.raises(DeviceError, match=r"no host memory for a test of \d+ bytes: lower shapes.hbm_bytes"):
        CpuHbm().take(1 << 52)


def test_memory_that_is_wrong_everywhere_ends_the_check_all_the_same() -> None:
    class Dead(CpuHbm):
        def _store(self, start_word: int, words: Any) -> None:
            super()._store(start_word, words ^ words.dtype.type(0x10))

    result = hbm.Check().run(replace(context(hbm_bytes=1 << 20), device=DeviceWith(hbm=Dead)))
    assert result.coverage.wrong_words == 1 << 17
    assert result.coverage.shape_words == "bit lane 4 in at least 131072 words, a run of at least 32768 bytes"
    assert len(result.errors) == 64
