"""PCI addresses in one spelling, and the kernel's own view of GPUs on the PCI bus (sysfs). Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SYS, PROC, DEV = Path("/sys"), Path("/proc"), Path("/dev")
# linux/proc_ns.h: PROC_PID_INIT_INO, the number of the PID namespace that a machine starts with.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
NVIDIA_VENDOR = "0x10de"
# Display and 3D controllers.
_GPU_CLASSES = ("0x0300", "0x0302")
# Other bridges: what NVSwitches are up to Hopper. Those of later boards are not on the PCI bus of the host.
_SWITCH_CLASSES = ("0x0680",)
# Transfer rate of a lane in GT/s by PCIe generation (PCI Express Base Specification).
GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass(frozen=True)
class PciLink:
    """What sysfs says of a device and of the port above it (an empty address when there is none).

    Widths are lanes. AER counters are errors since boot. `host_max_width` and `host_max_generation` are the least that
    any port between CPU and device can do. None: not readable, as in many virtual machines.
    """

    address: str
    width: int | None
    max_width: int | None
    max_generation: int | None
    aer_correctable: int | None
    aer_nonfatal: int | None
    aer_fatal: int | None
    port: str
    port_aer_fatal: int | None
    host_max_width: int | None = None
    host_max_generation: int | None = None


def normal_bus_id(text: str) -> str:
    """0000:91:00.0 from any spelling of NVML and the kernel; "" when it is no PCI address."""
    address, _, function = text.strip().lower().partition(".")
    try:
        domain, bus, device = (int(part, 16) for part in address.split(":"))
        return f"{domain:04x}:{bus:02x}:{device:02x}.{int(function or '0', 16):x}"
    except ValueError:
        return ""


def gpu_addresses(sys_root: Path = SYS, proc: Path = PROC, dev: Path = DEV) -> tuple[str, ...]:
    """Addresses of the NVIDIA GPUs on the PCI bus that the NVIDIA driver should have, whatever the driver says.

    Virtual functions and GPUs that were given to a virtual machine (vfio-pci) are not among them. Nor are those of
    others where this is a container that was given some of the machine's GPUs: sysfs shows it all of them.
    """
    found = _nvidia_devices(_GPU_CLASSES, sys_root)
    if _read_link(proc / "self/ns/pid") == _FIRST_PID_NAMESPACE:
        return found  # on the machine itself a GPU without a device node is missing
    given = [address for address in found if _device_node(address, proc, dev)]
    bound = [address for address in found if _driver(sys_root / "bus/pci/devices" / address) == "nvidia"]
    return tuple(given) if set(bound) - set(given) else found


def switch_addresses(sys_root: Path = SYS) -> tuple[str, ...]:
    """Addresses of the NVSwitches on the PCI bus that belong to this host and not to a virtual machine on it."""
    return _nvidia_devices(_SWITCH_CLASSES, sys_root)


def _device_node(address: str, proc: Path, dev: Path) -> bool:
    """Whether the driver's device node of a GPU is here."""
    told = _MINOR.search(_text(proc / "driver/nvidia/gpus" / address / "information") or "")
    return told is not None and (dev / f"nvidia{told[1]}").exists()


def _driver(device: Path) -> str:
    return (device / "driver").resolve().name


def _read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _nvidia_devices(classes: tuple[str, ...], sys_root: Path) -> tuple[str, ...]:
    return tuple(
        sorted(
            normal_bus_id(device.name) or device.name
            for device in (sys_root / "bus/pci/devices").glob("*")
            if _text(device / "vendor") == NVIDIA_VENDOR
            and (_text(device / "class") or "")[:6] in classes
            and not (device / "physfn").exists()
            and _driver(device) != "vfio-pci"
        )
    )


def read_link(address: str, sys_root: Path = SYS) -> PciLink | None:
    """The link of one device; None when sysfs does not have the device."""
    device = sys_root / "bus/pci/devices" / address
    if not address or not device.exists():
        return None
    ports = [parent for parent in device.resolve().parents if normal_bus_id(parent.name)]
    above, port = device.resolve().parent, ports[0].name if ports else ""
    return PciLink(
        address=address,
        width=_width(device / "current_link_width"),
        max_width=_width(device / "max_link_width"),
        max_generation=_generation(device / "max_link_speed"),
        aer_correctable=_aer(device / "aer_dev_correctable"),
        aer_nonfatal=_aer(device / "aer_dev_nonfatal"),
        aer_fatal=_aer(device / "aer_dev_fatal"),
        port=port,
        port_aer_fatal=_aer(above / "aer_dev_fatal") if port else None,
        host_max_width=_least(_width(port / "max_link_width") for port in ports),
        host_max_generation=_least(_generation(port / "max_link_speed") for port in ports),
    )


def current_link(address: str, sys_root: Path = SYS) -> tuple[int | None, int | None]:
    """Generation and width of a device's link as they are now: a GPU at rest lowers the generation."""
    device = sys_root / "bus/pci/devices" / address
    return _generation(device / "current_link_speed"), _width(device / "current_link_width")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _width(path: Path) -> int | None:
    """Lanes; the kernel says 0 or 255 where it does not know."""
    text = _text(path) or ""
    return int(text) if text.isdecimal() and 0 < int(text) <= 32 else None


def _generation(path: Path) -> int | None:
    """From "32.0 GT/s PCIe"; older kernels leave the last word out or say "32 GT/s"."""
    number = (_text(path) or "").split(" ", 1)[0]
    try:
        return GENERATION.get(float(number))
    except ValueError:
        return None


def _aer(path: Path) -> int | None:
    """The total of one AER counter file, whose last line is "TOTAL_ERR_FATAL 0" (or _COR, _NONFATAL)."""
    for line in (_text(path) or "").splitlines():
        name, _, count = line.partition(" ")
        if name.startswith("TOTAL_ERR") and count.strip().isdecimal():
            return int(count)
    return None
