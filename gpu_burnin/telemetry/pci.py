"""PCI addresses in one spelling."""

from __future__ import annotations


def normal_bus_id(text: str) -> str:
    """0000:91:00.0 from any spelling of NVML and the kernel; "" when it is no PCI address."""
    address, _, function = text.strip().lower().partition(".")
    try:
        domain, bus, device = (int(part, 16) for part in address.split(":"))
        return f"{domain:04x}:{bus:02x}:{device:02x}.{int(function or '0', 16):x}"
    except ValueError:
        return ""
