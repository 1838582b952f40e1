"""The kernel's view of GPUs and links beside NVML's: missing GPUs, disagreement, fatal errors, unreadable values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.state.check import Check
from gpu_burnin.checks.state.pci import judge_pci, pci_measurements
from gpu_burnin.telemetry import nvml
from gpu_burnin.telemetry.pci import gpu_addresses, read_link
from gpu_burnin.telemetry.state import NodeState, Unsupported
from gpu_burnin.types import Action, Verdict
from tests.support.telemetry_helpers import healthy, pci_device

ADDRESS, PORT = "0000:10:00.0", "0000:0f:01.0"


def found(tmp_path: Path, state: Any = None, **files: str) -> list[tuple[str, str | None]]:
    """Code and GPU of the reasons against one GPU whose sysfs has the given files."""
    pci_device(tmp_path, ADDRESS, PORT, **files)
    link = read_link(ADDRESS, tmp_path)
    assert link
    reasons = judge_pci([state or healthy(0)], (ADDRESS,), {ADDRESS: link})
    return [(reason.code, reason.gpu) for reason in reasons]


def test_healthy_link_is_read_and_gives_no_reason(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    link = read_link(ADDRESS, tmp_path)
    assert link
    assert (link.width, link.max_width, link.max_generation, link.port) == (16, 16, 5, PORT)
    assert (link.aer_correctable, link.aer_nonfatal, link.aer_fatal, link.port_aer_fatal) == (3, 1, 0, None)
    measured = pci_measurements([healthy(0)], {ADDRESS: link})
    assert [(m.name, m.value) for m in measured] == [
        ("gpu0_pcie_correctable_errors", 3.0),
        ("gpu0_pcie_nonfatal_errors", 1.0),
    ]


@pytest.mark.parametrize(
    ("code", "files"),
    [
        ("PCIE_DISAGREE", {"current_link_width": "8"}),
        ("PCIE_DISAGREE", {"max_link_width": "8"}),
        ("PCIE_DISAGREE", {"max_link_speed": "16.0 GT/s PCIe"}),
        ("PCIE_DEGRADED", {"aer_dev_fatal": "DLP 2\nTOTAL_ERR_FATAL 2"}),
    ],
)
def test_each_fault_of_the_link_is_found(tmp_path: Path, code: str, files: dict[str, str]) -> None:
    assert found(tmp_path, **files) == [(code, "GPU-0000")]


def test_fatal_errors_of_the_port_above_count(tmp_path: Path) -> None:
    pci_device(tmp_path, ADDRESS, PORT)
    (tmp_path / "devices/pci0000:00" / PORT / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 1\n")
    link = read_link(ADDRESS, tmp_path)
    assert link
    (reason,) = judge_pci([healthy(0)], (ADDRESS,), {ADDRESS: link})
    assert (reason.code, reason.gpu, reason.action) == ("PCIE_DEGRADED", "GPU-0000", Action.POWER_CYCLE)
    assert PORT in reason.message


def test_slot_can_do_what_the_weakest_port_on_the_way_can(tmp_path: Path) -> None:
    pci_device(tmp_path, ADDRESS, f"0000:00:01.0/0000:0e:00.0/{PORT}")
    ports = tmp_path / "devices/pci0000:00/0000:00:01.0"
    for port, speed, width in ((ports, "16.0", "16"), (ports / "0000:0e:00.0" / PORT, "32.0", "8")):
        (port / "max_link_speed").write_text(f"{speed} GT/s PCIe\n")
        (port / "max_link_width").write_text(f"{width}\n")
    link = read_link(ADDRESS, tmp_path)
    assert link
    assert (link.port, link.host_max_generation, link.host_max_width) == (PORT, 4, 8)


def test_card_in_an_older_host_is_no_fault_on_real_hardware(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pci_device(tmp_path, ADDRESS, PORT)
    slot = tmp_path / "devices/pci0000:00" / PORT / "max_link_speed"
    gpu = healthy(0, pcie_max_generation=4)
    monkeypatch.setattr(nvml, "read_node", lambda: NodeState(False, "580.95.05", "13.0", "13.580", (gpu,)))
    monkeypatch.setattr("gpu_burnin.checks.state.check.gpu_addresses", lambda: (ADDRESS,))
    monkeypatch.setattr("gpu_burnin.checks.state.check.read_link", lambda address: read_link(address, tmp_path))
    for speed, found in (("16.0 GT/s PCIe", []), ("32.0 GT/s PCIe", ["PCIE_DEGRADED"])):
        slot.write_text(speed)
        result = Check().run(CheckContext(1, "quick", 10, ()))
        assert [reason.code for reason in result.reasons] == found


@pytest.mark.parametrize(
    "files",
    [
        {"current_link_width": "", "max_link_width": "", "max_link_speed": "", "aer_dev_fatal": ""},
        {"current_link_width": "0", "max_link_width": "255", "max_link_speed": "Unknown", "aer_dev_fatal": "nothing"},
    ],
)
def test_what_the_kernel_cannot_tell_is_no_reason(tmp_path: Path, files: dict[str, str]) -> None:
    assert found(tmp_path, **files) == []


def test_values_that_nvml_cannot_tell_are_not_compared(tmp_path: Path) -> None:
    state = healthy(0, pcie_width=Unsupported("timeout"), pcie_max_width=Unsupported("timeout"))
    assert found(tmp_path, state, current_link_width="8") == []


def test_gpu_on_the_bus_that_the_driver_does_not_list_is_missing() -> None:
    (reason,) = judge_pci([healthy(0)], (ADDRESS, "0000:11:00.0"), {})
    assert (reason.code, reason.severity, reason.action) == ("GPU_MISSING", Verdict.FAIL, Action.POWER_CYCLE)
    assert "0000:11:00.0" in reason.message
    # A lost GPU without an address may be the one.
    assert judge_pci([healthy(0), healthy(1, lost="gpu_is_lost", pci_bus_id="")], (ADDRESS, "0000:11:00.0"), {}) == ()


def test_gpus_on_the_bus(tmp_path: Path) -> None:
    for number, files in enumerate(
        ({}, {"class": "0x030000"}, {"class": "0x068000"}, {"vendor": "0x1002"}, {"physfn": "x"}, {})
    ):
        device = pci_device(tmp_path, f"0000:{number:02x}:00.0", **files)
    (tmp_path / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (device / "driver").symlink_to(tmp_path / "bus/pci/drivers/vfio-pci")
    assert gpu_addresses(tmp_path) == ("0000:00:00.0", "0000:01:00.0")
    assert read_link("0000:ff:00.0", tmp_path) is None
    assert read_link("", tmp_path) is None


def _machine(tmp_path: Path, namespace: str, nodes: Iterable[int]) -> tuple[str, ...]:
    """What is seen of four GPUs, of which the driver has three, where only some device nodes are there."""
    root, proc, dev = tmp_path / "sys", tmp_path / "proc", tmp_path / "dev"
    (root / "bus/pci/drivers/nvidia").mkdir(parents=True)
    dev.mkdir()
    for number in range(4):
        device = pci_device(root, address := f"0000:1{number}:00.0")
        if number < 3:
            (device / "driver").symlink_to(root / "bus/pci/drivers/nvidia")
        told = proc / "driver/nvidia/gpus" / address
        told.mkdir(parents=True)
        (told / "information").write_text(f"Model: \t\t NVIDIA H200\nDevice Minor: \t {number}\n")
    for number in nodes:
        (dev / f"nvidia{number}").touch()
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to(namespace)
    return tuple(address[5:7] for address in gpu_addresses(root, proc, dev))


@pytest.mark.parametrize(
    ("namespace", "nodes", "seen"),
    [
        ("pid:[4026531836]", range(3), ("10", "11", "12", "13")),
        ("pid:[4026531836]", [1], ("10", "11", "12", "13")),  # on the machine itself nothing is excused
        ("pid:[4026532999]", range(3), ("10", "11", "12", "13")),  # a container that was given all
        ("pid:[4026532999]", [1], ("11",)),
        ("pid:[4026532999]", [1, 2], ("11", "12")),
        ("pid:[4026532999]", [], ()),
    ],
)
def test_a_container_answers_for_the_gpus_it_was_given(
    namespace: str, nodes: Iterable[int], seen: tuple[str, ...], tmp_path: Path
) -> None:
    assert _machine(tmp_path, namespace, nodes) == seen


@pytest.mark.parametrize(("simulated", "code"), [(False, "GPU_MISSING"), (True, None)])
def test_check_asks_the_kernel_only_on_real_hardware(
    monkeypatch: pytest.MonkeyPatch, simulated: bool, code: str | None
) -> None:
    monkeypatch.setattr(nvml, "read_node", lambda: NodeState(simulated, "580.95.05", "13.0", "13.580", (healthy(0),)))
    monkeypatch.setattr("gpu_burnin.checks.state.check.gpu_addresses", lambda: (ADDRESS, "0000:11:00.0"))
    result = Check().run(CheckContext(1, "quick", 10, (), options={"expect": {"gpus": 1}}))
    assert [reason.code for reason in result.reasons] == ([code] if code else [])
    assert result.coverage.simulated is simulated
    assert Check().selftest(CheckContext(1, "quick", 10, ())) == ()
