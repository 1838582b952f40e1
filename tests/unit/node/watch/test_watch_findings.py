"""What the agent makes of events and readings: tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.hardware import load_xids
from gpu_burnin.hardware.corrected import CorrectedErrors
from gpu_burnin.node.watch.findings import Finding, identity_of, of_hardware, of_vitals, of_xids
from gpu_burnin.system.hardware_identity import digest, identity
from gpu_burnin.telemetry.kmsg import XidEvent, parse_record, xid_event
from gpu_burnin.telemetry.vitals import Vital, Vitals
from gpu_burnin.types import Gpu

TABLE = load_xids()
GPU = Vital(0, "GPU-a", "1650", "96.00", "0000:1b:00.0", identified=True, uncorrected=2, pids=())
VITALS = Vitals("580.95.05", (GPU,), simulated=False, at_s=0.0)


def event(text: str, at_us: int = 5_000_000) -> XidEvent:
    record = parse_record(f"3,1,{at_us},-;{text}")
    assert record is not None
    found = xid_event(record)
    assert found is not None
    return found


def findings_of(*events: XidEvent) -> list[tuple[str, bool]]:
    return [(finding.code, finding.fatal) for finding in of_xids(events, TABLE, {})]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", [("XID_FATAL", True)]),
        ("NVRM: Xid (PCI:0000:1b:00): 13, pid=7, Graphics Exception", [("XID_SUSPECT", False)]),
        ("NVRM: Xid (PCI:0000:1b:00): 31, pid=7, MMU Fault", [("XID_SUSPECT", False)]),
        ("NVRM: Xid (PCI:0000:1b:00): 43, pid=7, Ch 00000008", [("XID_SUSPECT", False)]),
        ("NVRM: Xid (PCI:0000:1b:00): 99999, something new", [("XID_UNKNOWN", False)]),
        ("NVRM: Xid PCI something", [("XID_UNKNOWN", False)]),
        ("nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 99999, Fatal, Link 1", [("XID_UNKNOWN", False)]),
    ],
)
def test_each_code_counts_by_the_runtime_column(text: str, expected: list[tuple[str, bool]]) -> None:
    assert findings_of(event(text)) == expected


def test_every_code_of_the_table_is_judged_as_its_row_says() -> None:
    for sxid, rows in ((False, TABLE.xids), (True, TABLE.sxids)):
        for code, policy in rows.items():
            made = XidEvent(code, "0000:1b:00.0", None, "no text", 1, sxid)
            _, runtime, _ = policy.for_text("no text")
            expected = {"revoke": [("XID_FATAL", True)], "warn": [("XID_SUSPECT", False)], "log": []}[runtime]
            assert findings_of(made) == expected, code


def test_one_finding_for_each_code_and_device() -> None:
    storm = [event("NVRM: Xid (PCI:0000:1b:00): 31, pid=7, MMU Fault", at) for at in range(100)]
    other = event("NVRM: Xid (PCI:0000:43:00): 31, pid=7, MMU Fault")
    found = of_xids([*storm, other], TABLE, {})
    assert [finding.place for finding in found] == ["XID 31 0000:1b:00.0", "XID 31 0000:43:00.0"]
    assert "100 times" in found[0].message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"lost": "gpu_is_lost"}, [("GPU_LOST", True)]),
        ({"lost": "gpu_is_lost", "remap_failure": True}, [("GPU_LOST", True)]),
        ({"recovery_action": 1}, [("RECOVERY_ACTION", True)]),
        ({"recovery_action": 99}, [("RECOVERY_ACTION", True)]),
        ({"recovery_action": 0}, []),
        ({"reset_required": True}, [("RECOVERY_ACTION", True)]),
        ({"remap_failure": True, "remap_pending": True}, [("REMAP_FAILED", True)]),
        ({"remap_pending": True}, [("REMAP_PENDING", False)]),
        # After NVIDIA/DCGM issue 313.
        ({"corrected": CorrectedErrors(9_600_000_000, 0, 8)}, [("ECC_CORRECTED", False)]),
        ({"corrected": CorrectedErrors(0, 10_001, None)}, [("ECC_CORRECTED", False)]),
        ({"corrected": CorrectedErrors(20_000_000, 10_000, 8)}, []),
        ({"uncorrected": 3}, [("ECC_UNCORRECTED", False)]),
        ({"uncorrected": None, "remap_pending": None, "recovery_action": None, "pids": None}, []),
    ],
)
def test_what_a_reading_says_against_a_gpu(change: dict[str, object], expected: list[tuple[str, bool]]) -> None:
    now = replace(VITALS, gpus=(replace(GPU, **change),))  # type: ignore[arg-type]
    assert [(finding.code, finding.fatal) for finding in of_vitals(now, {"GPU-a": 2})] == expected


def test_errors_of_before_the_agent_came_are_none_of_its_own() -> None:
    assert of_vitals(VITALS, {}) == ()


def test_identity_is_that_of_a_run() -> None:
    of_run = identity([Gpu(0, "GPU-a", "1650", "0000:1b:00.0", "H200", "h200", 1, "96.00")], "580.95.05", "6.12")
    assert digest(identity_of(VITALS, "6.12")) == digest(of_run)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"uuid": "GPU-b"}, "not the hardware that was tested: GPU-a is gone; GPU-b is new"),
        ({"vbios": "97.00"}, "not the hardware that was tested: VBIOS of GPU-a 96.00 -> 97.00"),
        ({"instances": ()}, "not the hardware that was tested: MIG instances of GPU-a MIG off -> none"),
        # What cannot be read is no change, and a lost GPU is told as such.
        ({"serial": "", "identified": False}, ""),
        ({"uuid": "", "lost": "gpu_is_lost"}, ""),
    ],
)
def test_other_hardware_is_named(change: dict[str, object], says: str) -> None:
    now = replace(VITALS, gpus=(replace(GPU, **change),))  # type: ignore[arg-type]
    found = of_hardware(now, "6.12", identity_of(VITALS, "6.12"))
    assert found == (Finding("HARDWARE_CHANGED", says, True) if says else None)
