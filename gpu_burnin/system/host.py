"""Facts of the machine itself: who it is, which boot this is, what it runs. Only reads files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import read_text
from gpu_burnin.system.own_name import host_name

MACHINE_ID = "etc/machine-id"
BOOT_ID = "proc/sys/kernel/random/boot_id"
_MACHINE_ID_FORM = re.compile(r"[0-9a-f]{32}")
_BOOT_ID_FORM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# /sys/class/dmi/id: the serials and the UUID can be read by root only.
_DMI_FIELDS = (
    "sys_vendor",
    "product_name",
    "product_serial",
    "product_uuid",
    "board_serial",
    "bios_version",
    "bios_date",
)
# The kernel's ipmi_si driver shows the BMC as a platform device with these files.
_BMC_FIELDS = ("firmware_revision", "manufacturer_id", "product_id", "device_id", "guid")


@dataclass(frozen=True)
class Host:
    """Identity and system facts of this machine; what could not be read is "", or missing in `dmi` and `bmc`."""

    machine_id: str
    boot_id: str
    hostname: str
    kernel: str
    dmi: dict[str, str] = field(default_factory=dict)
    bmc: dict[str, str] = field(default_factory=dict)


def _text(path: Path) -> str:
    """The stripped content, or "" for a file that is not there or may not be read."""
    try:
        return read_text(path, errors="replace").strip()
    except OSError:
        return ""


def _id(path: Path, form: re.Pattern[str]) -> str:
    return text if form.fullmatch(text := _text(path)) else ""


def machine_id(root: Path = Path("/")) -> str:
    """The machine id of systemd; raises GpuBurninError when it is missing or malformed."""
    value = _id(root / MACHINE_ID, _MACHINE_ID_FORM)
    if not value:
        raise GpuBurninError(
            f"{host_name()}: {root / MACHINE_ID} holds no machine id (32 hexadecimal digits); make one "
            "with `systemd-machine-id-setup`"
        )
    return value


def boot_id(root: Path = Path("/")) -> str:
    """The kernel's id of this boot; raises GpuBurninError when /proc does not give it."""
    value = _id(root / BOOT_ID, _BOOT_ID_FORM)
    if not value:
        raise GpuBurninError(f"{host_name()}: {root / BOOT_ID} holds no boot id; mount /proc")
    return value


def read_host(root: Path = Path("/")) -> Host:
    """All facts, as far as this machine gives them."""
    dmi_dir = root / "sys/class/dmi/id"
    bmc_dirs = sorted((root / "sys/devices/platform").glob("ipmi_bmc.*"))
    return Host(
        machine_id=_id(root / MACHINE_ID, _MACHINE_ID_FORM),
        boot_id=_id(root / BOOT_ID, _BOOT_ID_FORM),
        hostname=host_name(),
        kernel=os.uname().release,
        dmi={name: text for name in _DMI_FIELDS if (text := _text(dmi_dir / name))},
        bmc={name: text for name in _BMC_FIELDS if bmc_dirs and (text := _text(bmc_dirs[0] / name))},
    )


def busy_s(stat: Path = Path("/proc/stat")) -> float:
    """Processor time that this machine has spent since its start, in seconds (proc(5), /proc/stat)."""
    user, nice, system, _idle, _iowait, irq, softirq = (int(word) for word in stat.read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
