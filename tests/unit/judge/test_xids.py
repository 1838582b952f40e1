"""Judging XIDs: the table's two columns, attribution, own kills, unknown codes, gaps, missing sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gpu_burnin.hardware import load_xids
from gpu_burnin.judge.observations import Findings, KernelLogFindings
from gpu_burnin.judge.xid import _earlier, judge_work, judge_xids
from gpu_burnin.telemetry.findings import Source, TelemetryFindings
from gpu_burnin.telemetry.kmsg import UNREADABLE, XidEvent
from gpu_burnin.telemetry.sampling_record import EVENTS
from gpu_burnin.types import Action, Gpu, Reason, Verdict
from tests.support.observed import observed

GPUS = (
    Gpu(0, "GPU-a", "1", "0000:1b:00.0", "", "", 0, ""),
    Gpu(1, "GPU-b", "2", "0000:91:00.0", "", "", 0, ""),
)


def xid(code: int, text: str = "", bus: str = "0000:91:00.0", pid: int | None = None, at_us: int = 50) -> XidEvent:
    return XidEvent(code, bus, pid, text or f"NVRM: Xid: {code}", at_us, False)


def sxid(code: int, text: str) -> XidEvent:
    return XidEvent(code, "0000:06:00.0", None, f"nvidia-nvswitch1: SXid (PCI:0000:06:00.0): {code}, {text}", 50, True)


def find(
    *events: XidEvent,
    gaps: int = 0,
    sources: str = "journal",
    before: Iterable[XidEvent] = (),
    reported: Iterable[XidEvent] = (),
    driver_told: bool = False,
    log_is_a_file: bool = False,
    **more: Any,
) -> Findings:
    """What is said of these events; `before` are those that were there before the run, and `driver_told` says that NVML
    would have reported each one of it, and nobody asks for the time before."""
    told = (Source(EVENTS, gpu.uuid, driver_told) for gpu in GPUS)
    log = KernelLogFindings(sources, bool(sources), gaps, events, tuple(before), log_is_a_file)
    telemetry = TelemetryFindings(sources=tuple(told), xids=tuple(reported))
    return judge_xids(observed(gpus=GPUS, kernel_log=log, telemetry=telemetry, opens_gate=not driver_told, **more))


def judge(*events: XidEvent, **more: Any) -> tuple[Reason, ...]:
    return find(*events, **more).reasons


def nvlink(code: int, unit: str, status: int, severity: str = "Nonfatal", intrinfo: int = 4) -> XidEvent:
    """A line as drivers for Blackwell write it."""
    registers = f"({intrinfo:#010x} {status:#010x} 0x00000000 0x00000000 0x00000000 0x00000000)"
    return xid(code, f"NVRM: Xid (PCI:0000:91:00): {code}, {unit} {severity} XC1 i0 Link 12 {registers}")


def recovery(to: str, at_us: int = 60, bus: str = "0000:91:00.0") -> XidEvent:
    text = f"NVRM: Xid (PCI:0000:91:00): 154, GPU recovery action changed from 0x0 (None) to {to}"
    return xid(154, text, bus=bus, at_us=at_us)


def test_silent_log_gives_no_reason() -> None:
    assert judge() == ()


def test_what_nvml_reported_of_the_run_stands_in_where_nothing_asks_for_the_time_before() -> None:
    found = find(sources="", driver_told=True)
    assert (found.reasons, [notice.code for notice in found.notices]) == ((), ["XID_SOURCE_MISSING"])
    (reason,) = judge(sources="", driver_told=True, reported=[xid(79, "reported by NVML: XID 79, 1 times")])
    assert (reason.code, reason.severity) == ("XID_FATAL", Verdict.FAIL)


def test_a_log_that_the_kernel_has_overwritten_is_no_worse_than_none_where_nvml_told() -> None:
    """A container or a user without the journal reads /dev/kmsg, which keeps the last messages of a long uptime."""
    found = find(gaps=3000, sources="/dev/kmsg", driver_told=True)
    assert (found.reasons, [notice.code for notice in found.notices]) == ((), ["XID_GAP"])
    (reason,) = judge(xid(79), gaps=3000, sources="/dev/kmsg", driver_told=True)
    assert (reason.code, reason.severity) == ("XID_FATAL", Verdict.FAIL)


def test_a_log_that_was_cut_during_the_run_is_a_gap_whatever_nvml_told() -> None:
    assert "XID_GAP" in {reason.code for reason in judge(driver_told=True, before=[xid(13)])}


@pytest.mark.parametrize(("lost", "code"), [({"gaps": 3910}, "XID_GAP"), ({"sources": ""}, "XID_SOURCE_MISSING")])
def test_what_this_machines_log_lacks_only_warns_where_no_gpu_is_real(lost: dict[str, Any], code: str) -> None:
    found = find(no_real_gpu=True, **lost)
    assert (found.reasons, [notice.code for notice in found.notices]) == ((), [code])
    assert "says nothing about one" in found.notices[0].message
    assert [reason.code for reason in judge(**lost)] == [code], "a real GPU's log counts"
    assert [r.code for r in judge(no_real_gpu=True, log_is_a_file=True, **lost)] == [code], (
        "so does simulated GPUs' own"
    )
    assert [r.code for r in judge(xid(79), no_real_gpu=True, gaps=1)] == ["XID_FATAL"], "what is in the log counts"


def test_lost_messages_are_counted_at_least_and_in_threes() -> None:
    (reason,) = judge(gaps=3910)
    assert reason.message == "at least 3,910 messages lost since boot (read from journal)"
    assert reason.details["gaps"] == 3910


def test_an_xid_that_cannot_be_read_holds_the_node() -> None:
    (reason,) = judge(xid(UNREADABLE, "NVRM: Xid (PCI:0000:91", bus=""))
    assert (reason.code, reason.severity, reason.gpu) == ("XID_UNKNOWN", Verdict.INCONCLUSIVE, None)
    assert reason.message == (
        "an XID that cannot be read: the driver's line does not say which (NVRM: Xid (PCI:0000:91)"
    )


def test_fatal_xid_fails_the_right_gpu() -> None:
    (reason,) = judge(xid(79))
    assert (reason.code, reason.gpu, reason.severity) == ("XID_FATAL", "GPU-b", Verdict.FAIL)
    assert reason.action is Action.POWER_CYCLE
    assert "fallen off the bus" in reason.message


def test_xid_of_a_gpu_that_is_gone_still_counts() -> None:
    (reason,) = judge(xid(79, bus="0000:ff:00.0"))
    assert (reason.code, reason.gpu) == ("XID_FATAL", None)


@pytest.mark.parametrize(
    ("xid_code", "code", "action"),
    [*((code, "XID_SUSPECT", Action.RETEST) for code in (13, 31, 43, 45, 68)), (999, "XID_UNKNOWN", Action.HOLD)],
)
def test_what_an_application_may_cause_is_tested_again_and_what_nobody_knows_holds(
    xid_code: int, code: str, action: Action
) -> None:
    (reason,) = judge(xid(xid_code))
    assert (reason.code, reason.action, reason.severity) == (code, action, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109, 999])
def test_what_users_may_have_caused_is_told_and_does_not_count(code: int) -> None:
    old = xid(code)
    found = find(old, before=(old,), passed_this_boot=True)
    assert found.reasons == ()
    told = "XID_UNKNOWN" if code == 999 else "XID_SUSPECT"
    assert [(one.code, one.gpu, one.details["xid"]) for one in found.notices] == [(told, "GPU-b", code)]
    # The same code once more during the run counts.
    assert judge(old, xid(code, at_us=5_000_000), before=(old,), passed_this_boot=True) != ()


def test_line_that_another_source_stamps_later_is_still_of_before_the_run() -> None:
    old, stamped_later = xid(31, at_us=5_000_000), xid(31, at_us=5_400_000)
    assert judge(stamped_later, before=(old,)) == ()
    assert judge(xid(31, at_us=7_000_000), before=(old,)) != ()


def test_what_vanished_from_the_log_during_the_run_counts_and_is_a_gap() -> None:
    for sources, code in (("journal", "XID_GAP"), ("", "XID_SOURCE_MISSING")):
        reasons = find(before=(xid(79),), sources=sources).reasons
        assert [reason.code for reason in reasons] == [code, "XID_FATAL"]


def test_fatal_xid_before_the_run_counts_whoever_ran() -> None:
    for users_ran in (False, True):
        assert [r.code for r in judge(xid(79), before=(xid(79),), passed_this_boot=users_ran)] == ["XID_FATAL"]


@pytest.mark.parametrize(("code", "wanted"), [(999, ["XID_UNKNOWN"]), (157, ["XID_SUSPECT"]), (63, ["XID_FATAL"])])
def test_before_any_pass_of_this_boot_nobody_else_can_be_to_blame(code: int, wanted: list[str]) -> None:
    assert [r.code for r in judge(xid(code), before=(xid(code),))] == wanted


def test_code_that_asks_for_a_retest_is_answered_by_this_run() -> None:
    found = find(xid(31), before=(xid(31),))
    assert found.reasons == ()
    assert [notice.code for notice in found.notices] == ["XID_SUSPECT"]


def test_what_a_reset_has_cleared_since_is_told_and_does_not_count() -> None:
    fault, reset = xid(63, at_us=50), recovery("0x0 (None)", at_us=60)
    found = find(fault, reset, before=(fault, reset))
    assert found.reasons == ()
    assert "recovered" in found.notices[0].message
    # Not on another GPU, not the other way round, not during the run, not for what a reset does not clear.
    other = recovery("0x0 (None)", at_us=60, bus="0000:1b:00.0")
    assert [r.code for r in judge(fault, other, before=(fault, other))] == ["XID_FATAL"]
    late = xid(63, at_us=70)
    assert [r.code for r in judge(reset, late, before=(reset, late))] == ["XID_FATAL"]
    assert [r.code for r in judge(fault, reset)] == ["XID_FATAL"]
    lost = xid(79, at_us=50)
    assert [r.code for r in judge(lost, reset, before=(lost, reset))] == ["XID_FATAL"]


def test_own_kills_are_excused_only_for_what_a_kill_causes() -> None:
    assert find(xid(43, pid=77), xid(45, pid=77), killed_pids=frozenset({77})) == Findings()
    # A process of before the run cannot have been killed by it: the number was used twice.
    assert len(find(xid(43, pid=77), killed_pids=frozenset({77}), before=(xid(43, pid=77),)).notices) == 1
    assert [r.code for r in judge(xid(43, pid=78), killed_pids=frozenset({77}))] == ["XID_SUSPECT"]
    assert [r.code for r in judge(xid(48, pid=77), killed_pids=frozenset({77}))] == ["XID_FATAL"]
    assert [r.code for r in judge(xid(45), killed_pids=frozenset({77}))] == ["XID_SUSPECT"]


def test_repeats_give_one_reason_for_each_gpu() -> None:
    reasons = judge(xid(79), xid(79), xid(79, bus="0000:1b:00.0"))
    assert [(r.gpu, r.details["count"]) for r in reasons] == [("GPU-b", 2), ("GPU-a", 1)]


@pytest.mark.parametrize(
    ("text", "code", "action"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "XID_FATAL", Action.REBOOT),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "XID_FATAL", Action.RESET_GPU),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "XID_FATAL", Action.RESET_GPU),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)", "XID_FATAL", Action.RESET_GPU),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "XID_FATAL", Action.REBOOT),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "XID_FATAL", Action.RESET_GPU),
        ("GPU recovery action changed from 0x0 (None) to 0x6 (Bus Reset)", "XID_FATAL", Action.POWER_CYCLE),
        ("GPU recovery action changed from 0x2 (OS Reboot) to 0x5 (IMEX)", "XID_SUSPECT", Action.HOLD),
        ("GPU recovery action changed from 0x0 (None) to 0x9 (Something new)", "XID_SUSPECT", Action.HOLD),
        ("GPU recovery action changed: Node Reboot Required", "XID_FATAL", Action.REBOOT),
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


def nvlink4(*registers: int) -> XidEvent:
    values = ", ".join(f"{register:#x}" for register in registers)
    return xid(74, f"NVRM: Xid (PCI:0000:91:00): 74, pid=7, name=x, NVLink: fatal error detected on link 14({values})")


@pytest.mark.parametrize("first", [0x1, 0x800000, 0x40000000, 0x800001, 0x40000001, 0x40800000, 0x40800001])
def test_nvlink_bits_that_nvidia_says_to_ignore_are_told_and_do_not_count(first: int) -> None:
    found = find(nvlink4(first, 0, 0, 0, 0, 0, 0))
    assert (found.reasons, [notice.code for notice in found.notices]) == ((), ["XID_SUSPECT"])
    assert judge_work([nvlink4(first, 0, 0, 0, 0, 0, 0)], load_xids()) == ()


@pytest.mark.parametrize(
    "registers", [(0x3, 0, 0), (0x100000, 0, 0), (0x1, 0, 0x4), (0x10000000, 0, 0), (0x80000001, 0, 0), (0, 0, 0)]
)
def test_every_other_nvlink_error_is_fatal(registers: tuple[int, ...]) -> None:
    """Also one whose other registers say more than the first."""
    (reason,) = judge(nvlink4(*registers, 0, 0, 0, 0))
    assert (reason.code, reason.action) == ("XID_FATAL", Action.RESET_GPU)
    assert [one.fatal for one in judge_work([nvlink4(*registers, 0, 0, 0, 0)], load_xids())] == [True]


def cleanup(cause: int, pid: int = 7, at_us: int = 55) -> XidEvent:
    """As the driver writes it."""
    text = f"NVRM: Xid (PCI:0000:91:00): 45, pid={pid}, name=python3, channel 0x00000008 caused by previous Xid {cause}"
    return xid(45, text, pid=pid, at_us=at_us)


def test_an_xid_that_only_a_cleanup_names_counts_as_if_it_were_there() -> None:
    """The beginning of a log may be lost; the node must not be taken for one whose users only killed a process."""
    (reason,) = judge(cleanup(149), killed_pids=frozenset({7}))
    assert (reason.code, reason.gpu, reason.action) == ("XID_FATAL", "GPU-b", Action.RESET_GPU)
    assert "XID 149" in reason.message and "the driver names as the cause of an XID 45" in reason.message
    (one,) = judge_work([cleanup(149)], load_xids())
    assert (one.code, one.fatal) == ("XID_FATAL", True)
    assert [reason.code for reason in judge(before=[cleanup(79)])] == ["XID_GAP", "XID_FATAL"]
    assert [reason.code for reason in judge(cleanup(149), reported=[xid(45)])] == ["XID_FATAL"], "NVML told it too"


def test_a_cause_whose_own_line_is_there_is_judged_by_that_line() -> None:
    assert [r.code for r in judge(nvlink(149, "NETIR_BER_EVENT", 0), cleanup(149))] == ["XID_SUSPECT"]
    told = judge_work([nvlink(149, "NETIR_BER_EVENT", 0), cleanup(149)], load_xids())
    assert [(one.event.xid, one.fatal) for one in told] == [(149, False), (45, False)]


def test_a_cleanup_after_the_runs_own_kill_stays_its_own() -> None:
    assert judge(cleanup(45), killed_pids=frozenset({7})) == ()


def test_xid_154_sets_the_action_of_what_went_before_on_its_gpu() -> None:
    def actions(*events: XidEvent) -> list[Action]:
        return [reason.action for reason in judge(*events)]

    assert actions(xid(119)) == [Action.RESET_GPU]
    assert actions(xid(119), recovery("0x2 (Node Reboot Required)")) == [Action.REBOOT, Action.REBOOT]
    assert actions(xid(31), recovery("0x1 (GPU Reset Required)")) == [Action.RESET_GPU, Action.RESET_GPU]
    # A reset is enough where the driver says so; it knows nothing of power supplies and spare parts.
    assert actions(xid(110), xid(173), recovery("0x1 (GPU Reset Required)")) == [Action.RESET_GPU] * 3
    assert actions(xid(79), recovery("0x2 (OS Reboot)")) == [Action.POWER_CYCLE, Action.REBOOT]
    # Another GPU's demand is not this one's, and the last demand is the one that holds.
    assert actions(xid(119), recovery("0x2 (OS Reboot)", bus="0000:1b:00.0"))[0] is Action.RESET_GPU
    assert actions(xid(119), recovery("0x2 (OS)", at_us=60), recovery("0x1 (FLR)", at_us=70))[0] is Action.RESET_GPU


@pytest.mark.parametrize(
    ("event", "code", "action"),
    [
        (nvlink(144, "SAW_MVB", 0x2, "Fatal"), "XID_FATAL", Action.RESET_GPU),
        (nvlink(145, "RLW_REMAP", 0x40, "Fatal"), "XID_FATAL", Action.RESET_GPU),
        (nvlink(145, "RLW_SRC_TRACK", 0x1), "XID_FATAL", Action.RESET_GPU),
        (nvlink(145, "RLW_REMAP", 0x1), "XID_SUSPECT", Action.RETEST),
        (nvlink(145, "RLW_RXPIPE", 0x4), "XID_SUSPECT", Action.RESET_GPU),
        (nvlink(146, "TLW_RX/TLW_RX_PIPE0", 0x4, "Fatal"), "XID_FATAL", Action.RESET_GPU),
        (nvlink(149, "NETIR_LINK_EVT", 0, "Fatal", 0x00000011), "XID_FATAL", Action.RESET_GPU),
        (nvlink(149, "NETIR_LINK_DOWN", 0, "Link Fatal", 0x02500011), "XID_FATAL", Action.RESET_GPU),
        (nvlink(149, "NETIR_LINK_EVT", 0, "Fatal", 0x28 << 20 | 0x11), "XID_FATAL", Action.HOLD),
        (nvlink(149, "NETIR_LINK_EVT", 0, "Fatal", 0x26 << 20 | 0x11), "XID_SUSPECT", Action.HOLD),
        (nvlink(149, "NETIR_MFDE_EVENT", 5, "Fatal"), "XID_FATAL", Action.RESET_GPU),
        (nvlink(150, "MSE_WATCHDOG", 0, "Fatal", 0), "XID_FATAL", Action.RESET_GPU),
        # Two flags at once: the graver decides. One of them unknown: held.
        (nvlink(145, "RLW_REMAP", 0x101), "XID_SUSPECT", Action.RETEST),
        (nvlink(145, "RLW_REMAP", 0x140), "XID_FATAL", Action.RESET_GPU),
        (nvlink(145, "RLW_REMAP", 0x401), "XID_UNKNOWN", Action.HOLD),
        # Values that are no flags are not taken apart: 6 is not 2 and 4.
        (nvlink(149, "NETIR_MFDE_EVENT", 6), "XID_UNKNOWN", Action.HOLD),
        (nvlink(147, "NEW_UNIT", 0x1), "XID_UNKNOWN", Action.HOLD),
        # The line is graver than the table, or knows more.
        (nvlink(145, "RLW_CTRL", 0x80000000, "Fatal"), "XID_FATAL", Action.RESET_GPU),
        (nvlink(147, "NEW_UNIT", 0x1, "Fatal"), "XID_FATAL", Action.RESET_GPU),
    ],
)
def test_nvlink5_errors_are_decoded(event: XidEvent, code: str, action: Action) -> None:
    (reason,) = judge(event)
    assert (reason.code, reason.action, reason.gpu) == (code, action, "GPU-b")
    assert "status" in reason.message


@pytest.mark.parametrize(
    "event",
    [
        nvlink(144, "SAW_MVB", 0x4),
        nvlink(145, "RLW_CTRL", 0x80000000),
        nvlink(146, "TLW_CTRL", 0x1),
        nvlink(149, "NETIR_BER_EVENT", 2, intrinfo=0x13),
    ],
)
def test_nvlink5_errors_that_nvidia_calls_harmless_are_told(event: XidEvent) -> None:
    found = find(event)
    assert found.reasons == ()
    assert len(found.notices) == 1


def test_nvlink5_error_with_the_process_in_the_line() -> None:
    text = "145, pid=12, name=python, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000040 0x0 0x0)"
    assert [r.code for r in judge(xid(145, f"NVRM: Xid (PCI:0000:91:00): {text}"))] == ["XID_FATAL"]


def test_nvlink5_lines_without_registers_are_judged_by_their_own_severity() -> None:
    assert judge(xid(145, "NVRM: Xid (PCI:0000:91:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 00")) == ()
    (reason,) = judge(xid(149, "NVRM: Xid (PCI:0000:91:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08"))
    assert reason.code == "XID_FATAL"


def test_nvlink5_recovery_follows_xid_154() -> None:
    reasons = judge(nvlink(145, "RLW_REMAP", 0x1), recovery("0x2 (Node Reboot Required)"))
    assert [(r.code, r.action) for r in reasons] == [("XID_SUSPECT", Action.REBOOT), ("XID_FATAL", Action.REBOOT)]


def test_reports_of_nvml_count_once() -> None:
    logged, event = xid(79), xid(79, "NVML event: XID 79", at_us=51)
    (reason,) = judge(logged, reported=(event, event))
    assert (reason.details["text"], reason.details["count"]) == (logged.text, 1)
    # What the log does not have, or had only before the run, is NVML's to say.
    assert [r.gpu for r in judge(reported=(event,))] == ["GPU-b"]
    assert [r.code for r in judge(xid(31), before=(xid(31),), reported=(xid(31, "NVML", at_us=70),))] == ["XID_SUSPECT"]
    assert [r.gpu for r in judge(logged, reported=(xid(79, "NVML", bus="0000:1b:00.0"),))] == ["GPU-b", "GPU-a"]
    assert [r.code for r in judge(reported=(event,), sources="")] == ["XID_SOURCE_MISSING", "XID_FATAL"]
    # The kill is the executor's own in the log, so NVML's word of it is too.
    assert judge(xid(43, pid=77), killed_pids=frozenset({77}), reported=(xid(43, "NVML"),)) == ()


def test_sxid_is_judged_by_the_line_itself() -> None:
    (reason,) = judge(sxid(20034, "Fatal, Link 48 LTSSM Fault Up"), sxid(20034, "Severity 0 Engine instance 48"))
    assert (reason.code, reason.gpu, reason.action) == ("XID_FATAL", None, Action.REBOOT)
    details = (sxid(20034, "Non-fatal, Link 48 LTSSM Fault Up"), sxid(20034, "Data {0x0, 0x0}"))
    assert judge(*details) == ()
    assert [r.code for r in judge(sxid(20034, "Data {0x0, 0x0}"))] == ["XID_SUSPECT"]
    assert [r.code for r in judge(sxid(29999, "Non-fatal, new"))] == ["XID_UNKNOWN"]


def unstarted(bus: str = "0000:91:00.0") -> XidEvent:
    return XidEvent(UNREADABLE, bus, None, f"NVRM: GPU {bus}: RmInitAdapter failed! (0x62:0x65:1792)", 50, False, True)


def test_a_gpu_that_the_driver_could_not_start_is_a_fault_that_names_it() -> None:
    (reason,) = judge(unstarted(), unstarted())
    assert (reason.code, reason.severity, reason.action) == ("GPU_NOT_STARTED", Verdict.FAIL, Action.REBOOT)
    assert reason.message.startswith("the driver could not start the GPU at 0000:91:00.0, 2 times: NVRM: GPU")
    (work,) = judge_work([unstarted("")], load_xids())
    assert (work.code, work.fatal) == ("GPU_NOT_STARTED", True)
    assert "a GPU that no line names" in work.message


def test_what_was_there_before_is_found_in_a_storm() -> None:
    """One line, whenever the sources stamp it, among thousands of its text."""
    storm = [xid(95, "Uncontained: FBHUB", at_us=at_us) for at_us in range(0, 20_000_000, 1000)]
    assert _earlier(storm, storm[:10_000]) == frozenset(storm[:11_000])
