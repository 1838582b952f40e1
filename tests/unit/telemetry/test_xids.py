"""Judging XIDs: the table's two columns, attribution, own kills, unknown codes, gaps, missing sources."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.hardware import load_xids
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.xids import judge_xids
from gpu_burnin.types import Action, Gpu, Reason, Verdict

GPUS = (
    Gpu(0, "GPU-a", "1", "0000:1b:00.0", "", "", 0, ""),
    Gpu(1, "GPU-b", "2", "0000:91:00.0", "", "", 0, ""),
)


def xid(code: int, text: str = "", bus: str = "0000:91:00.0", pid: int | None = None, at_us: int = 50) -> XidEvent:
    return XidEvent(code, bus, pid, text or f"NVRM: Xid: {code}", at_us, False)


def sxid(code: int, text: str) -> XidEvent:
    return XidEvent(code, "0000:06:00.0", None, f"nvidia-nvswitch1: SXid (PCI:0000:06:00.0): {code}, {text}", 50, True)


def judge(*events: XidEvent, gaps: int = 0, sources: str = "journal", **more: Any) -> tuple[Reason, ...]:
    return judge_xids(events, GPUS, gaps, sources, load_xids(), **more)


def test_silent_log_gives_no_reason() -> None:
    assert judge() == ()


def test_no_source_is_inconclusive() -> None:
    (reason,) = judge(sources="")
    assert (reason.code, reason.severity) == ("XID_SOURCE_MISSING", Verdict.INCONCLUSIVE)


def test_gap_is_inconclusive() -> None:
    (reason,) = judge(gaps=3)
    assert (reason.code, reason.severity, reason.evidence["gaps"]) == ("XID_GAP", Verdict.INCONCLUSIVE, 3)


def test_fatal_xid_fails_the_right_gpu() -> None:
    (reason,) = judge(xid(79))
    assert (reason.code, reason.gpu, reason.severity) == ("XID_FATAL", "GPU-b", Verdict.FAIL)
    assert reason.action is Action.POWER_CYCLE
    assert "fallen off the bus" in reason.message


def test_unknown_xid_holds() -> None:
    (reason,) = judge(xid(999))
    assert (reason.code, reason.action, reason.severity) == ("XID_UNKNOWN", Action.HOLD, Verdict.INCONCLUSIVE)


def test_xid_of_a_gpu_that_is_gone_still_counts() -> None:
    (reason,) = judge(xid(79, bus="0000:ff:00.0"))
    assert (reason.code, reason.gpu) == ("XID_FATAL", None)


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68])
def test_application_xid_during_preflight_is_tested_again(code: int) -> None:
    (reason,) = judge(xid(code))
    assert (reason.code, reason.action, reason.severity) == ("XID_SUSPECT", Action.RETEST, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109, 999])
def test_what_users_caused_before_the_run_does_not_count(code: int) -> None:
    assert judge(xid(code, at_us=50), preflight_from_us=100) == ()
    assert judge(xid(code, at_us=100), preflight_from_us=100) != ()


def test_fatal_xid_before_the_run_counts() -> None:
    assert [r.code for r in judge(xid(79, at_us=50), preflight_from_us=100)] == ["XID_FATAL"]


def test_own_kills_are_excused_only_for_what_a_kill_causes() -> None:
    assert judge(xid(43, pid=77), xid(45, pid=77), own_pids={77}) == ()
    assert [r.code for r in judge(xid(43, pid=78), own_pids={77})] == ["XID_SUSPECT"]
    assert [r.code for r in judge(xid(48, pid=77), own_pids={77})] == ["XID_FATAL"]
    assert [r.code for r in judge(xid(45), own_pids={77})] == ["XID_SUSPECT"]


def test_repeats_give_one_reason_for_each_gpu() -> None:
    reasons = judge(xid(79), xid(79), xid(79, bus="0000:1b:00.0"))
    assert [(r.gpu, r.evidence["count"]) for r in reasons] == [("GPU-b", 2), ("GPU-a", 1)]


@pytest.mark.parametrize(
    ("text", "code", "action"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "XID_FATAL", Action.REBOOT),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "XID_FATAL", Action.RESET_GPU),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "XID_FATAL", Action.RESET_GPU),
        ("GPU recovery action changed from 0x0 (None) to 0x9 (Something new)", "XID_SUSPECT", Action.HOLD),
    ],
)
def test_recovery_action_xid_is_followed(text: str, code: str, action: Action) -> None:
    (reason,) = judge(xid(154, text))
    assert (reason.code, reason.action) == (code, action)


def test_recovery_action_back_to_none_is_no_fault() -> None:
    assert judge(xid(154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")) == ()


def test_worst_line_of_a_code_decides() -> None:
    changes = (
        "from 0x0 (None) to 0x1 (GPU Reset Required)",
        "from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)",
    )
    (reason,) = judge(*(xid(154, text) for text in changes))
    assert reason.action is Action.REBOOT


def test_nvlink5_errors_are_judged_by_their_own_severity() -> None:
    assert judge(xid(145, "NVRM: Xid (PCI:0000:91:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 00")) == ()
    (reason,) = judge(xid(149, "NVRM: Xid (PCI:0000:91:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08"))
    assert reason.code == "XID_FATAL"


def test_sxid_is_judged_by_the_line_itself() -> None:
    (reason,) = judge(sxid(20034, "Fatal, Link 48 LTSSM Fault Up"), sxid(20034, "Severity 0 Engine instance 48"))
    assert (reason.code, reason.gpu, reason.action) == ("XID_FATAL", None, Action.REBOOT)
    details = (sxid(20034, "Non-fatal, Link 48 LTSSM Fault Up"), sxid(20034, "Data {0x0, 0x0}"))
    assert judge(*details) == ()
    assert [r.code for r in judge(sxid(20034, "Data {0x0, 0x0}"))] == ["XID_SUSPECT"]
    assert [r.code for r in judge(sxid(29999, "Non-fatal, new"))] == ["XID_UNKNOWN"]
