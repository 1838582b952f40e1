"""Facts of the machine itself: who it is, which boot this is, what it runs. Only reads files."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from gpu_burnin.errors import GpuBurninError

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
    """Identity and system facts of this machine; `dmi` and `bmc` hold only what could be read."""

    machine_id: str
    boot_id: str
    hostname: str
    kernel: str
    dmi: dict[str, str] = field(default_factory=dict)
    bmc: dict[str, str] = field(default_factory=dict)


def _text(path: Path) -> str:
    """The stripped content, or "" for a file that is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def machine_id(root: Path = Path("/")) -> str:
    """The machine id of systemd; raises GpuBurninError when it is missing or malformed."""
    value = _text(root / MACHINE_ID)
    if not _MACHINE_ID_FORM.fullmatch(value):
        raise GpuBurninError(
            f"{socket.gethostname()}: {root / MACHINE_ID} holds no machine id (32 hexadecimal digits); "
            "run systemd-machine-id-setup"
        )
    return value


def boot_id(root: Path = Path("/")) -> str:
    """The kernel's id of this boot; raises GpuBurninError when /proc does not give it."""
    value = _text(root / BOOT_ID)
    if not _BOOT_ID_FORM.fullmatch(value):
        raise GpuBurninError(f"{socket.gethostname()}: {root / BOOT_ID} holds no boot id; mount /proc")
    return value


def read_host(root: Path = Path("/")) -> Host:
    """All facts; raises GpuBurninError when the machine or boot id cannot be had."""
    dmi_dir = root / "sys/class/dmi/id"
    bmc_dirs = sorted((root / "sys/devices/platform").glob("ipmi_bmc.*"))
    return Host(
        machine_id=machine_id(root),
        boot_id=boot_id(root),
        hostname=socket.gethostname(),
        kernel=os.uname().release,
        dmi={name: text for name in _DMI_FIELDS if (text := _text(dmi_dir / name))},
        bmc={name: text for name in _BMC_FIELDS if bmc_dirs and (text := _text(bmc_dirs[0] / name))},
    )
