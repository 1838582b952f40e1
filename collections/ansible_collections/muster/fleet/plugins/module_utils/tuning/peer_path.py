"""What is on the way between GPUs (and network cards) that makes their direct transfers slow without an error.

With IOMMU translation, and with access control (ACS) that sends each request of one device to another up to the CPU,
peer-to-peer works, at a fraction of its bandwidth (NCCL documentation, Troubleshooting, "PCI Access Control Services").
Reads sysfs alone. Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.nvidia import pci

_DEVICES = "sys/bus/pci/devices"
# PCI Express base specification: capability 10h, whose flags have the port's type in bits 7:4; extended capability
# 000Dh (ACS), whose control register is at offset 6.
_PCIE, _ACS, _ACS_CONTROL = 0x10, 0x000D, 6
_CAPABILITIES, _EXTENDED = 0x34, 0x100
_SWITCH_DOWNSTREAM = 6
# P2P request redirect, P2P completion redirect, upstream forwarding.
_REDIRECTS = 0b1_1100
_TRANSLATED = ("DMA", "DMA-FQ")


@dataclass(frozen=True)
class PeerPath:
    """`iommu`: of each GPU's group its type, "" for none. `redirecting`: switch ports above GPUs that redirect.

    `unread` has the bridges whose ACS state could not be read.
    """

    iommu: dict[str, str]
    redirecting: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """What makes transfers between devices slow, a sentence each."""
        found = []
        translated = sorted(gpu for gpu, kind in self.iommu.items() if kind in _TRANSLATED)
        if translated and len(self.iommu) > 1:
            found.append(
                f"the IOMMU translates for GPU {', '.join(translated)}, which slows transfers between devices: boot "
                "with iommu=pt, unless GPUs are given to virtual machines"
            )
        if self.redirecting:
            found.append(
                f"PCIe switch port {', '.join(self.redirecting)} sends transfers between devices up to the CPU (ACS), "
                "which is slow: turn ACS off in the firmware, or with setpci at boot, unless GPUs are given to virtual "
                "machines"
            )
        if self.unread:
            found.append(
                f"ACS of {', '.join(self.unread)} cannot be read: whether transfers are redirected is not known"
            )
        return found


def observe(root: Path) -> PeerPath:
    """The paths of all NVIDIA GPUs below a root."""
    iommu, bridges = {}, set()
    for gpu in (device for device in pci.devices(root) if device.is_gpu) if (root / _DEVICES).is_dir() else ():
        link = root / _DEVICES / gpu.address
        iommu[gpu.address] = _text(link / "iommu_group/type")
        bridges |= {parent for parent in link.resolve().parents if (parent / "config").is_file()}
    redirecting, unread = [], []
    for bridge in sorted(bridges, key=lambda path: path.name):
        control = _control(bridge / "config")
        if control is None:
            unread.append(bridge.name)
        elif control & _REDIRECTS:
            redirecting.append(bridge.name)
    return PeerPath(iommu, tuple(redirecting), tuple(unread))


def _control(config: Path) -> int | None:
    """The ACS control register of a switch's downstream port, 0 for any other bridge; None: it is not to be read."""
    try:
        data = config.read_bytes()
        at = _capability(data, _PCIE)
        if at is None or data[at + 2] >> 4 != _SWITCH_DOWNSTREAM:
            return 0
        if len(data) <= _EXTENDED:
            return None  # only root reads past the first 256 bytes, and only where the host has them mapped
        acs = _extended(data, _ACS)
        return 0 if acs is None else struct.unpack_from("<H", data, acs + _ACS_CONTROL)[0]
    except (OSError, IndexError, struct.error):
        return None


def _capability(data: bytes, wanted: int) -> int | None:
    at, seen = data[_CAPABILITIES] & 0xFC, set()
    while at and at not in seen:
        if data[at] == wanted:
            return at
        seen.add(at)
        at = data[at + 1] & 0xFC
    return None


def _extended(data: bytes, wanted: int) -> int | None:
    at, seen = _EXTENDED, set()
    while at >= _EXTENDED and at not in seen:
        header = struct.unpack_from("<I", data, at)[0]
        if header & 0xFFFF == wanted:
            return at
        seen.add(at)
        at = header >> 20
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
