"""The verdict: PASS needs everything, each doubt is told with its code, FAIL beats INCONCLUSIVE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from run_helpers import GPUS, exchanged, healthy, plan, result, without

from gpu_burnin.hardware import load_xids, make_reason
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.types import Action, SelftestResult, Verdict
from gpu_burnin.verdict import (
    KernelLogFindings,
    Observations,
    judge,
    missed_fault_rate,
)

XIDS = load_xids()


def xid(code: int, bus: str = "0000:1c:00.0", pid: int | None = None) -> XidEvent:
    return XidEvent(code, bus, pid, f"NVRM: Xid (PCI:{bus}): {code}, something", 5_000_000, False)


def with_log(**change: object) -> Observations:
    return replace(healthy(), kernel_log=replace(healthy().kernel_log, **change))


def with_test(check: str, *, injected: bool = True, detected: bool = True) -> Observations:
    """One more self-test of GPU-1."""
    test = SelftestResult("nan bf16", check, "GPU-1", injected, detected, 0.1, "device buffers")
    return replace(healthy(), selftests=(*healthy().selftests, test))


def test_everything_well_is_a_pass() -> None:
    judged = judge(healthy(), XIDS)
    assert judged.verdict is Verdict.PASS
    assert judged.action is Action.NONE
    assert judged.reasons == ()
    assert judged.gpus == {"GPU-0": Verdict.PASS, "GPU-1": Verdict.PASS}


DOUBTS: list[tuple[str, Verdict, Callable[[], Observations]]] = [
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: without(healthy(), "gemm", "GPU-1")),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: without(healthy(), "state", None)),
    ("COVERAGE_LOW", Verdict.FAIL, lambda: exchanged(healthy(), result("gemm", "GPU-1", Verdict.FAIL))),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: replace(healthy(), left_out=("hbm",))),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: replace(healthy(), shortfalls=("1 of 2 GPUs left out",))),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: replace(healthy(replace(plan(), gpus=())))),
    (
        "COVERAGE_LOW",
        Verdict.INCONCLUSIVE,
        lambda: exchanged(healthy(), replace(result("hbm", "GPU-0"), coverage={"covered_bytes": 140 << 30})),
    ),
    (
        "COVERAGE_LOW",
        Verdict.INCONCLUSIVE,
        lambda: exchanged(
            healthy(),
            replace(result("hbm", "GPU-0"), coverage={"covered_bytes": 142 << 30, "gpu_memory_bytes": 150 << 30}),
        ),
    ),
    ("SELFTEST_BLIND", Verdict.INCONCLUSIVE, lambda: with_test("gemm", detected=False)),
    ("SELFTEST_BLIND", Verdict.INCONCLUSIVE, lambda: with_test("hbm", injected=False)),
    ("SELFTEST_BLIND", Verdict.INCONCLUSIVE, lambda: replace(healthy(), selftests=())),
    ("SIMULATED", Verdict.INCONCLUSIVE, lambda: replace(healthy(), simulated=True)),
    ("INTERRUPTED", Verdict.INCONCLUSIVE, lambda: replace(healthy(), interrupted=True)),
    ("INJECTED", Verdict.INCONCLUSIVE, lambda: healthy(plan(inject=("gemm:nan",)))),
    ("XID_SOURCE_MISSING", Verdict.INCONCLUSIVE, lambda: with_log(alive=False)),
    ("XID_GAP", Verdict.INCONCLUSIVE, lambda: with_log(gaps=1)),
    ("XID_UNKNOWN", Verdict.INCONCLUSIVE, lambda: with_log(events=(xid(9999),))),
    ("XID_FATAL", Verdict.FAIL, lambda: with_log(events=(xid(79),))),
    ("XID_SUSPECT", Verdict.INCONCLUSIVE, lambda: with_log(events=(xid(31),))),
    (
        "DIED_DURING_CHECK",
        Verdict.FAIL,
        lambda: replace(healthy(), extra=(make_reason("DIED_DURING_CHECK", "gemm", "died"),)),
    ),
]


@pytest.mark.parametrize(("code", "verdict", "seen"), DOUBTS)
def test_each_doubt_keeps_the_node_out(code: str, verdict: Verdict, seen: Callable[[], Observations]) -> None:
    judged = judge(seen(), XIDS)
    assert judged.verdict is verdict
    assert {reason.code for reason in judged.reasons} == {code}


def test_enough_memory_covered_is_enough() -> None:
    covered = {"covered_bytes": 95, "gpu_memory_bytes": 100}
    assert judge(exchanged(healthy(), replace(result("hbm", "GPU-0"), coverage=covered)), XIDS).verdict is Verdict.PASS


def test_simulated_where_allowed_passes_whatever_memory_it_covered() -> None:
    seen = exchanged(healthy(), replace(result("hbm", "GPU-0"), coverage={}))
    assert judge(replace(seen, simulated=True, allow_simulated=True), XIDS).verdict is Verdict.PASS


def test_fail_wins_and_leads_with_the_hardest_action() -> None:
    reasons = (
        make_reason("COVERAGE_LOW", "gemm", "little", gpu="GPU-0", action=Action.HOLD),
        make_reason("SLOW", "gemm", "slow", gpu="GPU-0", action=Action.RETEST),
        make_reason("GPU_LOST", "state", "lost", gpu="GPU-1"),
        make_reason("GPU_LOST", "state", "lost", gpu="GPU-1"),
    )
    judged = judge(replace(healthy(), extra=reasons), XIDS)
    assert judged.verdict is Verdict.FAIL
    assert judged.action is Action.HOLD
    assert [reason.code for reason in judged.reasons] == ["GPU_LOST", "SLOW", "COVERAGE_LOW"]


def test_a_gpus_own_verdict_has_only_its_own_reasons() -> None:
    judged = judge(with_log(events=(xid(79),)), XIDS)
    assert judged.gpus == {"GPU-0": Verdict.PASS, "GPU-1": Verdict.FAIL}
    assert judged.reasons[0].gpu == GPUS[1].uuid


def test_xid_of_a_process_that_the_run_killed_is_its_own() -> None:
    own = replace(with_log(events=(xid(43, pid=77),)), killed_pids=frozenset({77}))
    assert judge(own, XIDS).verdict is Verdict.PASS
    assert judge(replace(own, killed_pids=frozenset({78})), XIDS).verdict is Verdict.INCONCLUSIVE


def test_an_interrupted_run_lists_what_is_missing_once() -> None:
    judged = judge(replace(without(healthy(), "hbm", "GPU-1"), interrupted=True), XIDS)
    assert [reason.code for reason in judged.reasons] == ["INTERRUPTED"]
    assert [(gap.check, gap.gpu) for gap in judged.gaps] == [("hbm", "GPU-1")]


def test_missed_fault_rate_is_the_rule_of_three() -> None:
    assert missed_fault_rate(result("gemm", "GPU-0")) == pytest.approx(3 / 12)
    assert missed_fault_rate(result("state", None)) is None
    assert missed_fault_rate(result("gemm", "GPU-0", Verdict.FAIL)) is None


def test_dead_source_is_named() -> None:
    log = KernelLogFindings("/var/log/none", alive=False)
    assert judge(replace(healthy(), kernel_log=log), XIDS).verdict is Verdict.INCONCLUSIVE
