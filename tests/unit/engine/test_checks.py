"""The registry, and the hbm check with its self-test, right and wrong, on the CPU backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_helpers import context

from gpu_burnin.checks import CHECK_NAMES, REGISTRY, gemm, hbm
from gpu_burnin.compute import exact, patterns
from gpu_burnin.compute.backend import BackendError
from gpu_burnin.compute.choose import make_backend
from gpu_burnin.compute.cpu import CpuBackend
from gpu_burnin.compute.patterns import MemoryFaults, Pattern, compare
from gpu_burnin.types import Verdict
from tests.sick_memory import SickMemory


def test_the_registry_loads_checks_by_name() -> None:
    assert tuple(REGISTRY) == CHECK_NAMES
    assert (REGISTRY["gemm"].name, REGISTRY["hbm"].per_gpu) == ("gemm", True)
    with pytest.raises(KeyError, match="choose from"):
        REGISTRY["no_such_check"]


def test_checks_without_backend_are_an_error() -> None:
    for check in (gemm.Check(), hbm.Check()):
        with pytest.raises(BackendError):
            check.run(replace(context(), backend=None))
        assert check.selftest(replace(context(), backend=None)) == ()


def test_unknown_backend_is_an_error() -> None:
    with pytest.raises(BackendError, match="choose cpu or cuda"):
        make_backend("tpu")


@pytest.mark.parametrize("seed", [0, *map(exact.mix, range(1, 6))])
def test_healthy_memory_passes_with_any_seed(seed: int) -> None:
    assert hbm.Check().run(replace(context(hbm_bytes=4096), seed=seed)).verdict is Verdict.PASS


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


_KINDS = ("stuck at 0", "stuck at 1", "joined data lines", "neighbour disturb", "address line")
# The place of a fault: its word in the low half, its bit in the upper one.
_PLACES = {"joined data lines": 4 << 32, "neighbour disturb": 40}
_PLACE = 3 << 32 | 5
_FINDS = {
    "address": _KINDS,
    "inversions": _KINDS,
    "walking": _KINDS[:-1],  # it repeats every 64 words, so words at aliased addresses are equal
    "modulo": _KINDS,
}


@pytest.mark.parametrize(("test", "kind"), [(t, k) for t, kinds in _FINDS.items() for k in kinds])
def test_patterns_find_hardware_faults(test: str, kind: str) -> None:
    backend = SickMemory(kind, _PLACES.get(kind, _PLACE))
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


def test_the_selftest_flips_a_cell_and_sees_it_with_any_seed() -> None:
    for seed in (0, *map(exact.mix, range(1, 12))):
        (memory,) = hbm.Check().selftest(replace(context(hbm_bytes=4096), seed=seed))
        assert memory.injected and memory.detected and memory.changed_bits == 1
        assert memory.scope == "detector logic only"


def test_the_selftest_sees_a_blind_memory_test() -> None:
    class Blind(CpuBackend):
        def memory_verify(self, *_: Any, **__: Any) -> MemoryFaults:
            return MemoryFaults()

    (memory,) = hbm.Check().selftest(replace(context(), backend=Blind()))
    assert not memory.detected
