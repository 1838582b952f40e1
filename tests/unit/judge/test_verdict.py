"""The verdict: PASS needs everything, each doubt is told with its code, FAIL beats INCONCLUSIVE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks.hbm.result import LEAST_PATTERNS
from gpu_burnin.checks.hbm.rounds import CORE
from gpu_burnin.checks.nvlink.result import NvlinkCoverage
from gpu_burnin.hardware import load_xids, make_reason
from gpu_burnin.judge.coverage import missed_fault_rate, missed_fault_rate_of_gpu
from gpu_burnin.judge.observations import KernelLogFindings, Observations
from gpu_burnin.judge.verdict import judge
from gpu_burnin.judge.xid import is_own
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.types import JSON, Action, CheckResult, Coverage, Measurement, Reason, SelftestResult, Verdict
from tests.support.run_helpers import COVERAGE, GPUS, PRECISIONS, covered, exchanged, healthy, plan, result, without

XIDS = load_xids()


def xid(code: int, bus: str = "0000:1c:00.0", pid: int | None = None) -> XidEvent:
    return XidEvent(code, bus, pid, f"NVRM: Xid (PCI:{bus}): {code}, something", 5_000_000, False)


def with_log(**change: object) -> Observations:
    return replace(healthy(), kernel_log=replace(healthy().kernel_log, **change))


MISMATCH = make_reason("GEMM_MISMATCH", "gemm", "bf16 product is wrong", gpu="GPU-1")


def with_test(check: str, *, injected: bool = True, detected: bool = True, real: Reason | None = None) -> Observations:
    """One more self-test of GPU-1."""
    test = SelftestResult("nan bf16", check, "GPU-1", injected, detected, 0.1, "device buffers", real=real)
    return replace(healthy(), selftests=(*healthy().selftests, test))


def test_everything_well_is_a_pass() -> None:
    judged = judge(healthy())
    assert judged.verdict is Verdict.PASS
    assert judged.action is Action.NONE
    assert judged.reasons == ()
    assert judged.gpus == {"GPU-0": Verdict.PASS, "GPU-1": Verdict.PASS}


PROVEN = {"path": "bf16 tensor cores", "proven": True, "why": ""}


def gemm(**change: Any) -> Observations:
    """A gemm result of GPU-0 with other coverage."""
    return exchanged(healthy(), replace(result("gemm", "GPU-0"), coverage=covered("gemm", **change)))


def hbm(**change: Any) -> Observations:
    """A result of the memory of GPU-0 with other coverage."""
    return exchanged(healthy(), replace(result("hbm", "GPU-0"), coverage=covered("hbm", **change)))


def paths(**change: Any) -> dict[str, Any]:
    """The data path proofs of GPU-0 with some of them changed; None takes a precision out."""
    shown = {**COVERAGE["gemm"]["data_path"], **change}  # type: ignore[dict-item]
    return {name: proof for name, proof in shown.items() if proof}


def rate(name: str, value: float, confidence: str) -> Observations:
    """A rate of GPU-1 against a floor of 10."""
    measurement = Measurement(name, value, "GB/s", 10.0, "somebody", confidence)
    return exchanged(healthy(), replace(result("hbm", "GPU-1"), measurements=(measurement,)))


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
        lambda: hbm(gpu_memory_bytes=None),
    ),
    (
        "COVERAGE_LOW",
        Verdict.INCONCLUSIVE,
        lambda: hbm(covered_bytes=142 << 30),
    ),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: hbm(patterns=CORE[: LEAST_PATTERNS - 1])),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: hbm(patterns=[])),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: gemm(data_path={})),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: gemm(data_path=paths(fp8_e4m3=None))),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: gemm(precisions_not_covered=["fp8_e4m3"])),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: gemm(data_path=paths(bf16={**PROVEN, "proven": False}))),
    ("COVERAGE_LOW", Verdict.INCONCLUSIVE, lambda: gemm(data_path=paths(bf16={"path": "?", "why": "slow"}))),
    (
        "COVERAGE_LOW",
        Verdict.INCONCLUSIVE,
        lambda: exchanged(healthy(), replace(result("sm", "GPU-0"), coverage=covered("sm", sms_covered=131))),
    ),
    ("SLOW", Verdict.FAIL, lambda: rate("copy", 9.9, "measured")),
    ("SLOW", Verdict.FAIL, lambda: rate("copy", 9.9, "vendor")),
    ("SELFTEST_BLIND", Verdict.INCONCLUSIVE, lambda: with_test("gemm", detected=False)),
    ("SELFTEST_BLIND", Verdict.INCONCLUSIVE, lambda: with_test("kernel_log", detected=False)),
    ("SELFTEST_BLIND", Verdict.INCONCLUSIVE, lambda: with_test("counters", injected=False)),
    ("SELFTEST_BLIND", Verdict.INCONCLUSIVE, lambda: with_test("hbm", injected=False)),
    ("SELFTEST_BLIND", Verdict.INCONCLUSIVE, lambda: replace(healthy(), selftests=())),
    # What was wrong before a fault was injected blames the GPU, and no detector.
    ("GEMM_MISMATCH", Verdict.FAIL, lambda: with_test("gemm", injected=False, detected=False, real=MISMATCH)),
    ("SIMULATED", Verdict.INCONCLUSIVE, lambda: replace(healthy(), simulated=True)),
    ("INTERRUPTED", Verdict.INCONCLUSIVE, lambda: replace(healthy(), interrupted=True)),
    ("INJECTED", Verdict.INCONCLUSIVE, lambda: healthy(plan(inject=("gemm:nan",)))),
    ("XID_SOURCE_MISSING", Verdict.INCONCLUSIVE, lambda: with_log(alive=False)),
    ("XID_GAP", Verdict.INCONCLUSIVE, lambda: with_log(gaps=1)),
    ("XID_UNKNOWN", Verdict.INCONCLUSIVE, lambda: with_log(events=(xid(9999),))),
    ("XID_FATAL", Verdict.FAIL, lambda: with_log(events=(xid(79),))),
    ("XID_SUSPECT", Verdict.INCONCLUSIVE, lambda: with_log(events=(xid(31),))),
    ("XID_FATAL", Verdict.FAIL, lambda: with_log(events=(xid(79),), before=(xid(79),))),
    ("XID_FATAL", Verdict.FAIL, lambda: replace(healthy(), telemetry=replace(healthy().telemetry, xids=(xid(79),)))),
    ("TELEMETRY_LOST", Verdict.INCONCLUSIVE, lambda: replace(healthy(), telemetry=TelemetryFindings())),
    (
        "DIED_DURING_CHECK",
        Verdict.FAIL,
        lambda: replace(healthy(), extra=(make_reason("DIED_DURING_CHECK", "gemm", "died"),)),
    ),
]


@pytest.mark.parametrize(("code", "verdict", "seen"), DOUBTS)
def test_each_doubt_keeps_the_node_out(code: str, verdict: Verdict, seen: Callable[[], Observations]) -> None:
    judged = judge(seen())
    assert judged.verdict is verdict
    assert {reason.code for reason in judged.reasons} == {code}


def test_enough_memory_covered_is_enough() -> None:
    seen = hbm(covered_bytes=95, gpu_memory_bytes=100, patterns=CORE[:LEAST_PATTERNS])
    assert judge(seen).verdict is Verdict.PASS


def test_simulated_where_allowed_passes_whatever_memory_it_covered() -> None:
    seen = exchanged(healthy(), replace(result("hbm", "GPU-0"), coverage=Coverage()))
    assert judge(replace(seen, simulated=True, allow_simulated=True)).verdict is Verdict.PASS


def test_fail_wins_and_leads_with_the_hardest_action() -> None:
    reasons = (
        make_reason("COVERAGE_LOW", "gemm", "little", gpu="GPU-0", action=Action.HOLD),
        make_reason("SLOW", "gemm", "slow", gpu="GPU-0", action=Action.RETEST),
        make_reason("GPU_LOST", "state", "lost", gpu="GPU-1"),
        make_reason("GPU_LOST", "state", "lost", gpu="GPU-1"),
    )
    judged = judge(replace(healthy(), extra=reasons))
    assert judged.verdict is Verdict.FAIL
    assert judged.action is Action.HOLD
    assert [reason.code for reason in judged.reasons] == ["GPU_LOST", "SLOW", "COVERAGE_LOW"]


def test_a_gpus_own_verdict_has_only_its_own_reasons() -> None:
    judged = judge(with_log(events=(xid(79),)))
    assert judged.gpus == {"GPU-0": Verdict.PASS, "GPU-1": Verdict.FAIL}
    assert judged.reasons[0].gpu == GPUS[1].uuid


def test_only_codes_that_follow_a_kill_are_shown_as_own() -> None:
    assert is_own(xid(43, pid=77), XIDS, frozenset({77}))
    assert not is_own(xid(43, pid=77), XIDS, frozenset({78}))
    assert not is_own(xid(43), XIDS, frozenset({77}))
    assert not is_own(xid(48, pid=77), XIDS, frozenset({77}))
    assert not is_own(xid(9999, pid=77), XIDS, frozenset({77}))


def test_rate_under_a_derived_floor_is_a_notice() -> None:
    judged = judge(rate("copy", 9.9, "derived"))
    assert judged.verdict is Verdict.PASS
    assert [(notice.code, notice.gpu) for notice in judged.notices] == [("SLOW", "GPU-1")]


def test_floors_of_the_model_are_judged_without_being_asked_for() -> None:
    slow = Measurement("gemm_bf16_throughput", 100.0, "TFLOP/s")
    seen = exchanged(healthy(), replace(result("gemm", "GPU-0"), measurements=(slow,)))
    assert [notice.code for notice in judge(seen).notices] == ["SLOW"]
    assert judge(replace(seen, simulated=True, allow_simulated=True)).notices == ()


def test_fault_that_is_back_after_a_restart_goes_up_the_ladder() -> None:
    first = judge(with_log(events=(xid(48),)))
    assert first.action is Action.RESET_GPU
    again = replace(with_log(events=(xid(48),)), last_reasons=first.reasons, restarted=True)
    assert judge(again).action is Action.POWER_CYCLE


def test_model_without_fp8_needs_no_fp8() -> None:
    gpus = tuple(replace(gpu, sku="a100-sxm4-80gb") for gpu in GPUS)
    seen = replace(gemm(data_path=paths(fp8_e4m3=None), precisions_not_covered=["fp8_e4m3"]), gpus=gpus)
    assert judge(seen).verdict is Verdict.PASS
    # Run all the same, it needs no proof of a unit that the model does not have.
    unproven = gemm(data_path=paths(fp8_e4m3={**PROVEN, "proven": False}))
    assert judge(replace(unproven, gpus=gpus)).verdict is Verdict.PASS
    assert judge(unproven).verdict is Verdict.INCONCLUSIVE


def test_the_data_path_is_judged_once() -> None:
    """A PASS that should be none is refused in the words of the check itself."""
    seen = gemm(data_path=paths(bf16={**PROVEN, "proven": False, "why": "too slow"}, fp8_e4m3=None))
    (reason,) = judge(seen).reasons
    assert reason.message == "bf16 did not prove its data path (too slow); fp8_e4m3 was not covered"
    (short,) = next(r for r in seen.results if (r.name, r.gpu) == ("gemm", "GPU-0")).coverage.shortfalls(PRECISIONS)
    assert (reason.message, reason.details) == (short.message, short.details)


def test_an_interrupted_run_lists_what_is_missing_once() -> None:
    judged = judge(replace(without(healthy(), "hbm", "GPU-1"), interrupted=True))
    assert [reason.code for reason in judged.reasons] == ["INTERRUPTED"]
    assert [(gap.check, gap.gpu) for gap in judged.gaps] == [("hbm", "GPU-1")]


def test_missed_fault_rate_is_the_rule_of_three() -> None:
    assert missed_fault_rate(result("gemm", "GPU-0")) == pytest.approx(3 / 12)
    assert missed_fault_rate(result("state", None)) is None
    assert missed_fault_rate(result("gemm", "GPU-0", Verdict.FAIL)) is None


def test_missed_fault_rate_of_a_gpu_takes_all_its_time() -> None:
    passed = [result("gemm", "GPU-0"), result("hbm", "GPU-0"), result("gemm", "GPU-1"), result("state", None)]
    assert missed_fault_rate_of_gpu("GPU-0", passed) == pytest.approx(3 / 24)
    assert missed_fault_rate_of_gpu("GPU-2", passed) is None
    assert missed_fault_rate_of_gpu("GPU-0", [*passed, result("sm", "GPU-0", Verdict.INCONCLUSIVE)]) is None


def test_a_gpu_whose_check_never_came_to_a_result_has_not_passed() -> None:
    seen = replace(without(healthy(), "hbm", "GPU-1"), interrupted=True)
    assert judge(seen).gpus == {"GPU-0": Verdict.PASS, "GPU-1": Verdict.INCONCLUSIVE}


def test_causes_come_before_what_follows_from_them() -> None:
    busy = make_reason("NVML_UNAVAILABLE", "state", "no driver", action=Action.RETEST)
    seen = replace(healthy(), shortfalls=("no GPU was tested",), simulated=True, extra=())
    told = judge(exchanged(seen, replace(result("state", None, Verdict.INCONCLUSIVE), reasons=(busy,))))
    assert told.reasons[0].code == "NVML_UNAVAILABLE"
    assert {reason.code for reason in told.reasons} == {"NVML_UNAVAILABLE", "COVERAGE_LOW", "SIMULATED"}


def test_a_number_of_gpus_is_named_first_only_where_nothing_else_asks_for_as_much() -> None:
    """Evidence has one code. The admitter forgives a power cycle for a number that was wrong, and for no fault."""
    count = make_reason("GPU_COUNT", "state", "7 GPUs are present, 8 are expected")
    missing = make_reason("GPU_MISSING", "state", "0000:41:00.0 is on the bus, and the driver does not list it")
    told = judge(exchanged(healthy(), replace(result("state", None, Verdict.FAIL), reasons=(count, missing))))
    assert [reason.code for reason in told.reasons][:2] == ["GPU_MISSING", "GPU_COUNT"]
    alone = judge(exchanged(healthy(), replace(result("state", None, Verdict.FAIL), reasons=(count,))))
    assert (alone.reasons[0].code, alone.action) == ("GPU_COUNT", Action.POWER_CYCLE)


def test_a_machine_without_driver_and_gpu_needs_the_driver_first_and_no_reboot() -> None:
    silent = make_reason("NVML_UNAVAILABLE", "state", "no driver")
    state = replace(result("state", None, Verdict.INCONCLUSIVE), reasons=(silent,))
    log = KernelLogFindings("/dev/kmsg", True, gaps=3910)
    seen = exchanged(replace(healthy(), gpus=(), plan=replace(plan(), gpus=()), kernel_log=log, simulated=True), state)
    told = judge(replace(seen, no_real_gpu=True))
    assert (told.reasons[0].code, told.action) == ("NVML_UNAVAILABLE", Action.RETEST)
    assert any("`gpu-burnin demo` shows the program" in reason.message for reason in told.reasons)
    assert judge(seen).action is Action.REBOOT, "a machine that has a GPU is held as strictly as ever"


def test_gpus_that_disagree_on_random_products_make_no_pass() -> None:
    seen = healthy()
    for uuid, digests in (("GPU-0", ["0x1", "0x2"]), ("GPU-1", ["0x1", "0x3"])):
        tested = next(r for r in seen.results if (r.name, r.gpu) == ("gemm", uuid))
        seen = exchanged(seen, replace(tested, coverage=covered("gemm", random_digests={"bf16": digests})))
    judged = judge(seen)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert [reason.code for reason in judged.reasons] == ["GEMM_DISAGREE"]


def _pair(**change: object) -> dict[str, object]:
    """A row of the nvlink check."""
    row: dict[str, object] = {
        "peer": "GPU-1", "class": "nvswitch/18/None", "expected": True, "write_bytes_per_s": 4e11,
        "read_bytes_per_s": 4e11, "why": None, "transfers_wrong": {"write": 0, "read": 0}, **change,
    }  # fmt: skip
    return row


def _copies(**coverage: Any) -> Observations:
    """An nvlink result of GPU-0 with this coverage."""
    whole = covered("nvlink", **{"p2p": [_pair()], **coverage})
    return exchanged(healthy(), replace(result("nvlink", "GPU-0"), coverage=whole))


@pytest.mark.parametrize(
    ("coverage", "verdict", "codes"),
    [
        ({}, Verdict.PASS, []),
        ({"pairs_covered": 0}, Verdict.INCONCLUSIVE, ["COVERAGE_LOW"]),
        (
            {"pairs_total": 0, "pairs_covered": 0, "p2p": []},
            Verdict.PASS,
            [],
        ),  # one GPU, or none that need reach another
        ({"p2p": [_pair(transfers_wrong={"write": 0, "read": 2})]}, Verdict.FAIL, ["P2P_CORRUPTED"]),
        (
            {"pairs_covered": 0, "p2p": [_pair(write_bytes_per_s=None, read_bytes_per_s=None, why="no way")]},
            Verdict.FAIL,
            ["P2P_UNAVAILABLE", "COVERAGE_LOW"],
        ),
    ],
)
def test_copies_between_gpus_are_judged_by_all_their_results(
    coverage: dict[str, object], verdict: Verdict, codes: list[str]
) -> None:
    judged = judge(_copies(**coverage))
    assert (judged.verdict, [reason.code for reason in judged.reasons]) == (verdict, codes)


def test_a_pair_that_need_not_copy_is_a_notice() -> None:
    row = _pair(write_bytes_per_s=None, read_bytes_per_s=None, why="no way", expected=False)
    judged = judge(_copies(pairs_total=0, pairs_covered=0, p2p=[row]))
    assert judged.verdict is Verdict.PASS
    assert [notice.code for notice in judged.notices] == ["P2P_UNAVAILABLE"]


def test_a_check_that_had_nothing_to_test_bounds_no_rate_of_faults() -> None:
    """One GPU has no pair: its moment in the check says nothing of links."""
    nothing = NvlinkCoverage(pairs_total=0, pairs_covered=0)
    alone = CheckResult("nvlink", "GPU-0", Verdict.PASS, 8e-6, coverage=nothing)
    assert missed_fault_rate(alone) is None
    assert judge(exchanged(healthy(), alone)).verdict is Verdict.PASS


def _timed(**coverage: JSON) -> CheckResult:
    """A pcie result of 12 s."""
    return replace(result("pcie", "GPU-0"), coverage=covered("pcie", **coverage))


@pytest.mark.parametrize(
    ("coverage", "rate_per_s"),
    [
        ({"verified_s": 3.0}, 1.0),
        # A fault of one direction shows only while that is at work.
        ({"verified_s": 3.0, "verified_parts_s": {"h2d": 2.0, "d2h": 1.5}}, 2.0),
        ({"verified_s": 3.0, "verified_parts_s": {"h2d": 3.0, "d2h": 0.0}}, None),
        # No more than the time in which it had its GPU.
        ({"verified_s": 30.0, "waited_s": 10.5}, 2.0),
        ({"verified_s": float("nan")}, None),
        ({"verified_s": -1.0}, None),
    ],
)
def test_a_bound_speaks_of_verified_time_only(coverage: dict[str, JSON], rate_per_s: float | None) -> None:
    assert missed_fault_rate(_timed(**coverage)) == (None if rate_per_s is None else pytest.approx(rate_per_s))


@pytest.mark.parametrize("check", ["pcie", "nvlink", "nccl", "power"])
def test_a_result_that_says_nothing_of_its_coverage_is_no_pass(check: str) -> None:
    judged = judge(exchanged(healthy(), replace(result(check, "GPU-0"), coverage=Coverage())))
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert {(reason.code, reason.check) for reason in judged.reasons} == {("COVERAGE_LOW", check)}


@pytest.mark.parametrize(
    ("coverage", "words"),
    [
        ({"verified_s": 0.0}, "verified no work of this GPU"),
        ({"copies_verified": 89}, "98.9% was verified, at least 100% is required"),
        ({"copies_moved": 0, "copies_verified": 0}, "0.0% was verified"),
    ],
)
def test_what_was_not_verified_is_no_pass(coverage: dict[str, JSON], words: str) -> None:
    judged = judge(exchanged(healthy(), _timed(**coverage)))
    assert judged.verdict is Verdict.INCONCLUSIVE
    (reason,) = judged.reasons
    assert (reason.code, reason.check, reason.gpu) == ("COVERAGE_LOW", "pcie", "GPU-0")
    assert words in reason.message
