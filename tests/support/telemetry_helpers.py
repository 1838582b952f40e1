"""A healthy GPU as data, to be changed one field at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_burnin.checks.state.rules import HostLink
from gpu_burnin.telemetry.state import GpuState, Unsupported

NOT_SUPPORTED = Unsupported("not_supported")


def healthy(index: int = 0, **changes: Any) -> GpuState:
    """An H100 SXM5 at rest, with the given fields changed."""
    values: dict[str, Any] = {
        "index": index, "lost": "", "reset_required": False, "uuid": f"GPU-{index:04d}", "serial": f"165{index:04d}",
        "pci_bus_id": f"0000:{0x10 + index:02x}:00.0", "pci_device_id": 0x233010DE, "pci_subsystem_id": 0x16C110DE,
        "name": "NVIDIA H100 80GB HBM3", "driver_version": "580.95.05", "gsp_firmware": "580.95.05",
        "vbios": "96.00.89.00.01", "inforom_image": "G520.0200.00.05", "board_part_number": "692-2G520-0200-000",
        "compute_capability": "9.0", "memory_bytes": 85520809984, "inforom_valid": True, "persistence": True,
        "ecc_enabled": True, "ecc_pending": True, "sram_threshold_exceeded": False, "remapped_corrected": 0,
        "remapped_uncorrected": 0, "remap_pending": False, "remap_failure": False,
        "retired_single_bit": NOT_SUPPORTED, "retired_double_bit": NOT_SUPPORTED, "retired_pending": NOT_SUPPORTED,
        "recovery_action": 0, "channel_repair_pending": False, "tpc_repair_pending": False,
        "unrepairable_memory": False, "mig_enabled": False, "mig_pending": False, "power_draw_w": 71.0,
        "power_limit_w": 700.0, "power_enforced_w": 700.0, "power_default_w": 700.0, "energy_mj": 1,
        "clock_sm_mhz": 345, "clock_memory_mhz": 2619, "max_clock_sm_mhz": 1980, "max_clock_memory_mhz": 2619,
        "clocks_event_reasons": 1, "temperature_c": 31, "temperature_margin_c": 56, "temperature_slowdown_c": 89,
        "pcie_generation": 1, "pcie_max_generation": 5, "pcie_width": 16, "pcie_max_width": 16, "pcie_replays": 0,
        "pcie_fatal_errors": 0, "nvlink_active": tuple(range(18)), "nvlink_inactive": (), "nvlink_replays": 0,
        "nvlink_recoveries": 0, "nvlink_crc_errors": 0, "nvlink_failed_recoveries": NOT_SUPPORTED,
        "fabric_version": 3, "fabric_state": 3, "fabric_status": 0, "fabric_health_summary": 0, "fabric_health_mask": 0,
        "processes": (),
    }  # fmt: skip
    for counter in ("volatile", "aggregate"):
        for kind in ("corrected", "uncorrected"):
            for place in ("dram", "sram"):
                values[f"ecc_{counter}_{kind}_{place}"] = 0
    unknown = set(changes) - set(values)
    assert not unknown, f"no such fields: {unknown}"
    return GpuState(**(values | changes))


def in_any_slot(*states: GpuState) -> dict[str, HostLink]:
    """Slots that can do whatever the models of these GPUs can."""
    return {state.pci_bus_id: HostLink(6, 32) for state in states}


def pci_device(sys_root: Path, address: str, port: str = "", **files: str) -> Path:
    """A device in a sysfs of its own, under its port, with the link of a healthy H100 at rest; "" leaves a file out."""
    values = {
        "vendor": "0x10de", "class": "0x030200", "current_link_speed": "2.5 GT/s PCIe",
        "current_link_width": "16", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
        "aer_dev_correctable": "RxErr 0\nBadTLP 3\nTOTAL_ERR_COR 3",
        "aer_dev_nonfatal": "Undefined 0\nUnsupReq 1\nTOTAL_ERR_NONFATAL 1",
        "aer_dev_fatal": "Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 0",
    }  # fmt: skip
    device = sys_root / "devices/pci0000:00" / port / address
    device.mkdir(parents=True)
    for name, text in (values | files).items():
        if text:
            (device / name).write_text(text + "\n")
    link = sys_root / "bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(device)
    return device
