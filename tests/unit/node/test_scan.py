"""`gpu-burnin scan`: what a look at a node sees and says, by the judges of a run, and that it leaves nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.api.evidence import Statement
from gpu_burnin.checks.state import check as state_check
from gpu_burnin.hardware import load_skus
from gpu_burnin.node import scan as scanning
from gpu_burnin.node.scan import Scan, scan
from gpu_burnin.node.scan_text import document, render
from gpu_burnin.settings.config import Config
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.system import host
from gpu_burnin.telemetry.discover import Found
from gpu_burnin.telemetry.kernel_log import FileLog
from gpu_burnin.telemetry.state import GpuState, ProcessUse, Unsupported, to_gpu
from tests.support.node_runs import BOOT_LINE, LAB, Node
from tests.support.report_helpers import leave_run
from tests.support.telemetry_helpers import healthy

SICK_LOG = (LAB / "scenarios/sick-ecc-xid79.kmsg").read_text()
XID_38 = "3,1,61234567,-;NVRM: Xid (PCI:0000:10:00): 38, pid=7, name=job, Ch 00000001\n"
RepairFacts = Callable[..., Scan]


def found_of(*states: GpuState, simulated: bool = False) -> Found:
    """What discover() would have made of these GPUs."""
    skus = load_skus()

    def key(state: GpuState) -> str:
        sku = skus.find(state.pci_device_id, state.pci_subsystem_id)
        return sku.key if sku else ""

    return Found(
        gpus=tuple(to_gpu(state, key(state)) for state in states),
        busy={
            s.uuid: tuple(p.pid for p in s.processes) for s in states if isinstance(s.processes, tuple) and s.processes
        },
        simulated=simulated,
        driver="580.95.05",
        cuda="13.0",
        states=states,
    )


@pytest.fixture
def look(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RepairFacts:
    """Scans a node of these GPUs with this kernel log after its boot; no GPU of this machine takes part."""
    monkeypatch.setattr(state_check, "gpu_addresses", tuple)
    monkeypatch.setattr(state_check, "read_link", lambda _: None)
    monkeypatch.setattr(scanning, "gpu_addresses", tuple)

    def run(*states: GpuState, log: str | None = "", found: Found | None = None, **settings: object) -> Scan:
        path = tmp_path / "kmsg"
        if log is not None:
            path.write_text(BOOT_LINE + log)
        monkeypatch.setattr(scanning, "discover", lambda: found or found_of(*states))
        return scan(replace(config, kernel_log=str(path), **settings))  # type: ignore[arg-type]

    return run


def codes(seen: Scan) -> list[str]:
    return [reason.code for reason in seen.reasons]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"ecc_volatile_corrected_dram": 9_600_000_000, "remapped_corrected": 8},
            "9,600,000,000 memory errors corrected since the driver was loaded, and 8 rows remapped for such",
        ),
        ({"remapped_corrected": 1}, "0 memory errors corrected since the driver was loaded, and 1 row remapped"),
    ],
)
def test_a_storm_of_corrected_errors_is_told(look: RepairFacts, changes: dict[str, int], words: str) -> None:
    """After NVIDIA/DCGM issue 313: no run had to see them rise."""
    seen = look(healthy(0), replace(healthy(1), **changes))
    (told,) = seen.warnings
    assert (told.code, told.gpu, seen.exit_code) == ("ECC_CORRECTED", "GPU-0001", 0)
    assert words in told.message


@pytest.mark.parametrize(
    ("name", "code"),
    [("log-nvsentinel155-fallen-no-xid.kmsg", "XID_FATAL"), ("log-okm789-rminitadapter.kmsg", "GPU_NOT_STARTED")],
)
def test_a_log_without_an_xid_that_tells_of_a_fault(look: RepairFacts, name: str, code: str) -> None:
    log = (Path(__file__).parents[2] / "support/field_cases" / name).read_text().partition("\n")[2]
    seen = look(healthy(0), log=log)
    (reason,) = [reason for reason in seen.reasons if reason.code == code]
    assert "0000:43:00.0" in reason.message and seen.exit_code == 1


def test_a_healthy_node_is_code_0_and_still_not_tested(look: RepairFacts) -> None:
    seen = look(*map(healthy, range(8)))
    assert (codes(seen), seen.exit_code, seen.tested) == ([], 0, False)
    text = render(seen)
    assert text.startswith("gpu-1: looked at, not tested")
    assert "8 x NVIDIA H100 80GB HBM3 (h100-sxm5-80gb), driver 580.95.05, CUDA 13.0" in text
    assert "Nothing wrong was seen." in text
    assert "This is no burn-in" in text and "PASS" not in text
    for width in (40, 80):
        lines = render(seen, width).splitlines()
        assert all(len(line) <= width for line in lines if "kmsg" not in line), "but for a long path"


def test_what_is_seen_of_each_gpu_is_in_its_row(look: RepairFacts) -> None:
    sick = healthy(
        1,
        serial=Unsupported("not_supported"),
        uuid="GPU-5f3b19f1-5d6f-a1b5",
        ecc_volatile_uncorrected_dram=2,
        ecc_aggregate_uncorrected_dram=3,
        remapped_uncorrected=1,
        remap_pending=True,
        nvlink_active=tuple(range(17)),
        nvlink_inactive=(17,),
        pcie_width=8,
        pcie_max_width=8,
    )
    rows = [line.split() for line in render(look(healthy(0), sick), 120).splitlines() if line[:1] in ("0", "1")]
    assert " ".join(rows[0]) == "0 1650000 0000:10:00.0 31 °C 0/0 0 5 x16 18/18 -"
    # The doubt: this model has a serial.
    assert " ".join(rows[1]) == "1 GPU-5f3b19f1 0000:11:00.0 31 °C 2/3 1 pending 5 x8 17/18 4 faults, 1 doubt"


@pytest.mark.slow  # a whole run, if a short one
def test_a_scan_says_what_the_checks_of_a_run_say(node: Node) -> None:
    node.scenario = "sick-ecc-xid79"
    node.kernel_log.write_text(BOOT_LINE + SICK_LOG)
    before = sorted(node.directory.rglob("*"))
    code, out, err = node.call("scan", "--json")
    seen = json.loads(out)
    assert (code, seen["exit_code"], seen["simulated"], seen["tested"], err) == (1, 1, True, False, "")
    assert sorted(node.directory.rglob("*")) == before, "nothing is written"
    assert seen["action"] == "power_cycle"
    run_code, report, _ = node.run("--checks", "state")
    assert run_code == 1
    of_a_run = [reason for reason in report["reasons"] if reason["check"] in ("state", "kernel_log")]
    assert len(of_a_run) == 4
    assert seen["reasons"] == of_a_run, "one set of rules"
    code, text, _ = node.call("scan")
    assert code == 1
    assert "looked at, not tested; simulated" in text
    assert "XID 79 on 0000:43:00.0: GPU has fallen off the bus" in text
    assert "Do this: Power the machine off and on, then `gpu-burnin run`." in text
    assert "4 faults" in text


def test_without_nvml_or_kernel_log_it_says_what_it_could_not_see(look: RepairFacts) -> None:
    seen = look(found=Found(error="libnvidia-ml.so.1 was not found"), log=None)
    assert (seen.exit_code, seen.gpus) == (3, ())
    assert sorted(codes(seen)) == ["NVML_UNAVAILABLE", "XID_SOURCE_MISSING"]
    text = " ".join(render(seen).split())
    assert "Kernel log: could not be read" in text
    assert "Looked at: nothing." in text
    assert "Not seen: the GPUs, since NVML does not answer (the kernel shows no GPU)." in text
    assert "Do this" not in text, "doubts order no reboot"
    lost = look(found=Found(error="libnvidia-ml.so.1 was not found"), log=SICK_LOG)
    assert (codes(lost)[0], lost.exit_code) == ("XID_FATAL", 1), "a fault is a fault though NVML is silent"


def test_lost_kernel_messages_are_a_doubt_not_nothing(look: RepairFacts) -> None:
    seen = look(healthy(0), healthy(1), log="6,9,200,-;after a gap\n")
    assert (codes(seen), seen.exit_code) == (["XID_GAP"], 3)
    assert "no XID seen, at least 8 messages lost" in " ".join(render(seen).split())


def test_this_machines_kernel_log_is_a_doubt_about_its_own_gpus_alone(
    look: RepairFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileLog, "simulated", False)
    lost, silent = "6,9,200,-;after a gap\n", "libnvidia-ml.so.1 was not found"
    assert codes(look(healthy(0), log=lost)) == ["XID_GAP"]
    assert "XID_GAP" in codes(look(found=Found(error=silent), log=lost)), "the PCI bus has a GPU"
    simulated = replace(found_of(healthy(0), simulated=True), no_real_gpu=True)
    for found, wanted in ((simulated, []), (Found(error=silent, no_real_gpu=True), ["NVML_UNAVAILABLE"])):
        seen = look(found=found, log=lost)
        assert (codes(seen), [one.code for one in seen.warnings][-1]) == (wanted, "XID_GAP")
        assert "eboot the machine" not in render(seen)


def test_what_an_ordinary_user_cannot_read_is_named(look: RepairFacts) -> None:
    seen = look(healthy(0, serial=Unsupported("no_permission")), healthy(1))
    assert (codes(seen), seen.exit_code) == (["UNSUPPORTED_FIELD"], 3)
    assert seen.unseen[0] == "what NVML gives to root alone: serial"
    assert "run as root" in render(seen)


def test_work_on_a_gpu_is_no_fault_of_it(look: RepairFacts) -> None:
    busy = healthy(0, processes=(ProcessUse(4711, None),), clocks_event_reasons=0x20)
    seen = look(busy, healthy(1))
    assert (codes(seen), seen.exit_code) == ([], 0)
    assert [one.code for one in seen.warnings] == ["THROTTLED", "GPU_BUSY"]
    assert "in use by process 4711" in render(seen)
    assert look(healthy(0, clocks_event_reasons=0x20), healthy(1)).exit_code == 1, "at rest nothing slows a GPU down"


def test_warnings_of_a_run_are_told_too(look: RepairFacts) -> None:
    seen = look(healthy(0, persistence=False), healthy(1, persistence=False))
    assert ([one.code for one in seen.warnings], seen.exit_code) == (["PERSISTENCE_OFF"], 0)
    alone = look(healthy(0, nvlink_active=(), fabric_state=Unsupported("not_supported")))
    assert ([one.code for one in alone.warnings], alone.exit_code) == (["NVLINK_ABSENT"], 0)


def test_the_configuration_says_what_is_expected(look: RepairFacts) -> None:
    assert codes(look(*map(healthy, range(7)), expect=Expectations(gpus=8))) == ["GPU_COUNT"]


def test_xids_that_users_may_have_caused_are_judged_by_the_runtime_column(
    look: RepairFacts, config: Config, statement: Statement, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = (healthy(0), healthy(1))
    assert look(*nodes, log=XID_38).exit_code == 1, "nobody but the driver was there"
    leave_run(config, replace(statement, boot_id=host.boot_id()))
    seen = look(*nodes, log=XID_38)
    assert (codes(seen), seen.exit_code) == ([], 0)
    assert [(one.code, one.gpu) for one in seen.warnings] == [("XID_SUSPECT", "GPU-0000")]
    assert [(one.xid, one.count) for one in seen.xids] == [(38, 1)]
    # Where the record is root's, it counts as if nothing had passed, and says so.
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != config.state_dir and real(path, mode))
    seen = look(*nodes, log=XID_38)
    assert seen.exit_code == 1
    assert any("whether a burn-in has passed since boot" in one for one in seen.unseen)
    assert look(*nodes).unseen == look(*nodes, log=XID_38).unseen[:-1], "no XID, no matter"


def test_no_line_is_written_into_the_kernel_log(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def opened(spec: str, *, writes: bool) -> FileLog:
        asked.append(writes)
        return FileLog(Path("/none"))

    monkeypatch.setattr(scanning, "open_kernel_log", opened)
    monkeypatch.setattr(scanning, "discover", lambda: Found(error="none"))
    scan(config)
    assert asked == [False]


def test_repeated_and_unknown_xids_are_counted(look: RepairFacts) -> None:
    lines = "".join(
        f"3,{n},{n}000000,-;NVRM: Xid (PCI:0000:10:00): {xid}, pid=7, x\n" for n, xid in ((1, 94), (2, 94), (3, 4321))
    )
    seen = look(healthy(0), healthy(1), log=lines)
    assert [(one.xid, one.count, one.pci_bus_id) for one in seen.xids] == [
        (94, 2, "0000:10:00.0"),
        (4321, 1, "0000:10:00.0"),
    ]
    text = render(seen)
    assert "XID 94 on 0000:10:00.0, 2 times: " in text and "XID 4321 on 0000:10:00.0: NVRM:" in text
    assert "`gpu-burnin explain XID 94` tells more of one." in text
    assert "XID_UNKNOWN" in codes(seen)
    torn = look(healthy(0), healthy(1), log="3,1,1000000,-;NVRM: Xid (PCI:0000\n")
    assert "an XID that cannot be read on an unknown device: NVRM: Xid (PCI:0000" in render(torn)
    assert "gpu-burnin explain" not in render(torn)


def test_the_json_has_every_reading_with_its_unit_in_the_name(look: RepairFacts) -> None:
    told = json.loads(json.dumps(document(look(healthy(0), healthy(1)))))
    assert (told["schema"], told["exit_code"], told["tested"]) == ("muster-scan/v1", 0, False)
    assert [gpu["sku"] for gpu in told["gpus"]] == ["h100-sxm5-80gb"] * 2
    state = told["gpus"][0]["state"]
    assert (state["serial"], state["temperature_c"], state["power_draw_w"]) == ("1650000", 31, 71.0)
    assert state["retired_pending"] == {"unsupported": "not_supported"}
    assert told["software"]["driver"] == "580.95.05"
    assert told["kernel_log"].endswith("kmsg") and told["looked_at"]
