"""The gemm and hbm checks and the self-test, right and wrong, on the CPU backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_helpers import context

from gpu_burnin import selftest
from gpu_burnin.checks import CHECK_NAMES, REGISTRY, gemm, hbm
from gpu_burnin.compute import exact, patterns
from gpu_burnin.compute.backend import BackendError, make_backend
from gpu_burnin.compute.cpu import CpuBackend
from gpu_burnin.compute.exact import Digest
from gpu_burnin.compute.faults import FAULTS, SELFTEST_FAULTS
from gpu_burnin.compute.patterns import MemoryFaults, Pattern, compare
from gpu_burnin.plan import CHECK_FAULTS
from gpu_burnin.types import Verdict


def test_the_registry_loads_checks_by_name() -> None:
    assert tuple(REGISTRY) == CHECK_NAMES
    assert (REGISTRY["gemm"].name, REGISTRY["hbm"].per_gpu) == ("gemm", True)
    with pytest.raises(KeyError, match="choose from"):
        REGISTRY["no_such_check"]


# --- gemm ---


def test_gemm_passes_and_says_what_it_covered() -> None:
    result = gemm.Check().run(context())
    assert (result.verdict, result.reasons, result.errors) == (Verdict.PASS, (), ())
    coverage: dict[str, Any] = dict(result.coverage)
    assert coverage["simulated"] is True
    assert coverage["precisions_not_covered"] == []
    assert coverage["ranges"] == {p: sorted(r.name for r in exact.ranges_for(p)) for p in exact.PRECISIONS}
    assert coverage["verified_by_golden"] == sum(len(exact.ranges_for(p)) for p in exact.PRECISIONS)
    assert coverage["verified_by_freivalds"] == len(exact.PRECISIONS)
    assert {m.name for m in result.measurements} == {f"gemm_{p}_throughput" for p in exact.PRECISIONS}
    assert all(m.value > 0 for m in result.measurements)


def test_gemm_without_golden_digests_verifies_all_by_freivalds() -> None:
    result = gemm.Check().run(context(gemm_m=48, gemm_n=80, gemm_k=32))
    assert result.verdict is Verdict.PASS
    assert result.coverage["verified_by_golden"] == 0
    assert result.coverage["verified_by_freivalds"] == sum(len(exact.ranges_for(p)) for p in exact.PRECISIONS)


def test_gemm_uses_the_time_it_is_given() -> None:
    sent: list[Any] = []
    result = gemm.Check().run(replace(context(budget_s=0.8), progress=sent.append))
    assert 0.8 <= result.seconds < 5
    assert sum(dict(result.coverage)["products"].values()) > 50  # type: ignore[union-attr,arg-type]
    assert sent and sent[0]["wrong"] == 0


@pytest.mark.parametrize("fault", CHECK_FAULTS["gemm"])
def test_gemm_fails_on_every_injected_fault(fault: str) -> None:
    result = gemm.Check().run(context(inject=(fault,)))
    assert result.verdict is Verdict.FAIL
    (reason,) = result.reasons
    nonfinite = fault in ("nan", "inf")
    assert reason.code == ("GEMM_NONFINITE" if nonfinite else "GEMM_MISMATCH")
    assert reason.gpu == "GPU-0"
    assert "a repeat came out right" in reason.message
    assert result.errors[0]["repeat"] == "right"
    assert result.coverage["wrong_products"] == 1


class _BrokenBackend(CpuBackend):
    """Computes element 100 of every FP32 product wrong by one, every time."""

    def gemm(self, precision: str, a: Any, b: Any, c: Any) -> None:
        super().gemm(precision, a, b, c)
        if precision == "fp32":
            c.data.view(np.float32).reshape(-1)[100] += 1


def test_gemm_says_when_a_repeat_is_wrong_in_the_same_way() -> None:
    result = gemm.Check().run(replace(context(), backend=_BrokenBackend()))
    assert result.verdict is Verdict.FAIL
    assert len(result.reasons) == 4, "the rest is counted, not told one by one"
    assert "wrong in the same way" in result.reasons[0].message
    assert (result.errors[0]["row"], result.errors[0]["col"]) == (1, 36)
    assert result.coverage["wrong_products"] == len(exact.ranges_for("fp32")) + 1


def test_gemm_on_a_real_device_admits_what_it_cannot_prove() -> None:
    backend = CpuBackend()
    backend.simulated = False
    backend.precisions = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8")
    result = gemm.Check().run(replace(context(), backend=backend))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert [r.code for r in result.reasons] == ["COVERAGE_LOW"]
    assert "fp8_e4m3" in result.reasons[0].message


def test_checks_without_backend_are_an_error() -> None:
    for check in (gemm.Check(), hbm.Check()):
        with pytest.raises(BackendError):
            check.run(replace(context(), backend=None))


def test_unknown_backend_is_an_error() -> None:
    with pytest.raises(BackendError, match="choose cpu or cuda"):
        make_backend("tpu")


# --- hbm ---


def test_hbm_passes_and_counts_bytes() -> None:
    result = hbm.Check().run(context())
    assert (result.verdict, result.errors) == (Verdict.PASS, ())
    assert result.coverage["covered_bytes"] == 1 << 16
    assert result.coverage["gpu_memory_bytes"] == 1 << 30
    assert result.coverage["memory"] == "host memory, no GPU memory"
    kinds = {str(p).split("(")[0].split(" ")[0] for p in dict(result.coverage)["patterns"]}  # type: ignore[union-attr]
    assert kinds == {"address", "random", "walking", "modulo"}


@pytest.mark.parametrize(("fault", "words"), [("bitflip", 1), ("stuck", 2)])
def test_hbm_fails_on_every_injected_fault(fault: str, words: int) -> None:
    result = hbm.Check().run(context(inject=(fault,)))
    assert result.verdict is Verdict.FAIL
    (reason,) = result.reasons
    assert reason.code == "HBM_BIT_ERROR"
    assert result.coverage["wrong_words"] == words
    error = result.errors[-1]
    assert error["bit_lanes"] == ([17] if fault == "bitflip" else list(range(8, 16)))
    assert error["pattern"] == "address"
    assert int(str(error["expected"]), 16) == error["offset_bytes"]


def test_an_injected_stuck_lane_is_two_words_at_any_place() -> None:
    """Seed 0 once struck the first word twice, which undid it."""
    for seed in (0, *map(exact.mix, range(1, 40))):
        ctx = replace(context(inject=("stuck",), hbm_bytes=4096), seed=seed)
        assert hbm.Check().run(ctx).coverage["wrong_words"] == 2


def test_hbm_is_not_covered_where_the_backend_has_no_memory_test() -> None:
    backend = CpuBackend()
    backend.covers_memory = False
    result = hbm.Check().run(replace(context(), backend=backend))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert (result.reasons[0].code, result.coverage["covered_bytes"]) == ("COVERAGE_LOW", 0)


class _FaultyMemory(CpuBackend):
    """Memory with one hardware fault, applied after every write."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def _spoil(self, memory: Any) -> None:
        if self.kind == "stuck at 0":
            memory[5] &= ~np.uint64(1 << 3)
        elif self.kind == "stuck at 1":
            memory[5] |= np.uint64(1 << 3)
        elif self.kind == "address line":  # writes to the upper half land in the lower one too
            memory[: memory.size // 2] = memory[memory.size // 2 :]
        elif self.kind == "joined data lines":
            bit = (memory >> np.uint64(4)) & np.uint64(1)
            memory[...] = (memory & ~np.uint64(1 << 5)) | (bit << np.uint64(5))
        elif self.kind == "neighbour disturb":
            memory[41] = memory[40]

    def memory_write(self, memory: Any, pattern: Pattern) -> None:
        super().memory_write(memory, pattern)
        self._spoil(memory)

    def memory_verify(
        self, memory: Any, pattern: Pattern, then: Pattern | None = None, downwards: bool = False
    ) -> MemoryFaults:
        faults = super().memory_verify(memory, pattern, then, downwards)
        self._spoil(memory)
        return faults


_KINDS = ("stuck at 0", "stuck at 1", "joined data lines", "neighbour disturb", "address line")
_FINDS = {
    "address": _KINDS,
    "inversions": _KINDS,
    "walking": _KINDS[:-1],  # it repeats every 64 words, so words at aliased addresses are equal
    "modulo": _KINDS,
}


@pytest.mark.parametrize(("test", "kind"), [(t, k) for t, kinds in _FINDS.items() for k in kinds])
def test_patterns_find_hardware_faults(test: str, kind: str) -> None:
    backend = _FaultyMemory(kind)
    scan = hbm.Scan(backend, backend.memory_allocate(1 << 16), 1 << 16)
    steps = {
        "address": lambda: hbm.address_in_cell(scan),
        "inversions": lambda: hbm.moving_inversions(scan, 1),
        "walking": lambda: [hbm.walking_bit(scan, i) for i in range(64)],
        "modulo": lambda: [hbm.modulo_20(scan, i) for i in range(20)],
    }
    steps[test]()
    assert scan.faults.count > 0
    assert len(scan.faults.recorded) <= patterns.MAX_RECORDED


def test_patterns_are_functions_of_the_position() -> None:
    for pattern in (Pattern("address"), Pattern("random", 3), Pattern("walking", 5), Pattern("modulo", 7)):
        whole = pattern.words(0, 1000)
        assert np.array_equal(whole[300:400], pattern.words(300, 100))
        assert np.array_equal(~whole, pattern.complement().words(0, 1000))
        assert compare(whole, pattern, 0) == MemoryFaults()
    with pytest.raises(ValueError, match="unknown memory pattern"):
        Pattern("plaid").words(0, 1)


# --- self-test ---


def test_selftest_detects_every_fault_in_every_precision() -> None:
    results = selftest.run_selftest("gemm", context())
    assert len(results) == len(exact.PRECISIONS) * (len(SELFTEST_FAULTS) + 1)
    assert all(r.injected and r.detected and r.latency_s > 0 for r in results)
    assert {r.scope for r in results} == {"detector logic only"}
    (memory,) = selftest.run_selftest("hbm", context())
    assert memory.detected


@pytest.mark.parametrize("size", [16, 64])
def test_selftest_detects_every_fault_with_any_seed(size: int) -> None:
    """A fault that changed nothing would make a healthy GPU look blind: no seed may give one."""
    known = (0, 0x5E1F, 5750266228001073982)  # each of these once did
    base = context(gemm_m=size, gemm_n=size, gemm_k=size, hbm_bytes=4096)
    for seed in (*known, *map(exact.mix, range(1, 12))):
        ctx = replace(base, seed=seed)
        assert not _undetected([r for check in ("gemm", "hbm") for r in selftest.run_selftest(check, ctx)]), seed


@pytest.mark.parametrize("seed", [0, *map(exact.mix, range(1, 6))])
def test_healthy_hardware_passes_with_any_seed(seed: int) -> None:
    for sizes in ((16, 16, 16), (64, 64, 64), (32, 48, 80)):
        shapes = dict(zip(("gemm_m", "gemm_n", "gemm_k"), sizes, strict=True))
        ctx = replace(context(hbm_bytes=4096, **shapes), seed=seed)
        for check in (gemm.Check(), hbm.Check()):
            assert check.run(ctx).verdict is Verdict.PASS, (seed, sizes)


def _undetected(results: Iterable[Any]) -> set[str]:
    return {r.fault for r in results if not r.detected}


def test_selftest_sees_a_blind_digest() -> None:
    class Blind(CpuBackend):
        def digest(self, c: Any, key: int) -> Digest:
            return Digest(0)

    assert "bitflip fp32" in _undetected(selftest.run_selftest("gemm", replace(context(), backend=Blind())))


def test_selftest_sees_a_freivalds_check_that_always_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "bilinear", lambda *_: 1)
    monkeypatch.setattr(exact, "expected_bilinear", lambda *_: 1)
    missed = _undetected(selftest.run_selftest("gemm", context()))
    assert missed == {f"wrong_value {p} (fresh seed)" for p in exact.PRECISIONS}


def test_selftest_sees_a_blind_nan_counter_and_a_detector_that_always_cries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cries(CpuBackend):
        def launches(self) -> int:
            return 0

    missed = _undetected(selftest.run_selftest("gemm", replace(context(), backend=Cries())))
    assert len(missed) == len(exact.PRECISIONS) * (len(SELFTEST_FAULTS) + 1)


def test_selftest_sees_a_blind_memory_test() -> None:
    class Blind(CpuBackend):
        def memory_verify(self, *_: Any, **__: Any) -> MemoryFaults:
            return MemoryFaults()

    assert _undetected(selftest.run_selftest("hbm", replace(context(), backend=Blind()))) == {"cell flip"}


def test_selftest_has_nothing_for_other_checks() -> None:
    assert selftest.run_selftest("state", context()) == ()
    assert selftest.run_selftest("gemm", replace(context(), backend=None)) == ()
    assert FAULTS["stale"].keeps_old
