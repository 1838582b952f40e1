"""The NVIDIA devices on the PCI bus, as the kernel lists them: no driver is needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NVIDIA = "10de"
# PCI base class and subclass: VGA and 3D controllers, and the bridge as which an NVSwitch shows itself.
_GPU_CLASSES = ("0300", "0302")
_NVSWITCH_CLASS = "0680"


@dataclass(frozen=True)
class PciDevice:
    """One device. Ids are four lower-case hexadecimal digits, `class_code` six; `bound_driver` is empty for none."""

    address: str
    vendor: str
    device: str
    subsystem_vendor: str
    subsystem_device: str
    class_code: str
    bound_driver: str

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.class_code[:4] in _GPU_CLASSES

    @property
    def is_nvswitch(self) -> bool:
        """Whether it is an NVSwitch. Those of NVLink 5 are no PCI devices of the host."""
        return self.class_code[:4] == _NVSWITCH_CLASS


def devices(root: Path) -> tuple[PciDevice, ...]:
    """NVIDIA's devices in the order of their addresses. Raises OSError when the bus cannot be read."""
    bus = root / "sys/bus/pci/devices"
    found = (_device(path) for path in sorted(bus.iterdir()) if _hex(path / "vendor") == NVIDIA)
    return tuple(found)


def _device(path: Path) -> PciDevice:
    driver = path / "driver"
    return PciDevice(
        address=path.name,
        vendor=_hex(path / "vendor"),
        device=_hex(path / "device"),
        subsystem_vendor=_hex(path / "subsystem_vendor"),
        subsystem_device=_hex(path / "subsystem_device"),
        class_code=_hex(path / "class"),
        bound_driver=driver.readlink().name if driver.is_symlink() else "",
    )


def _hex(path: Path) -> str:
    return path.read_text(encoding="ascii").strip().lower().removeprefix("0x")
