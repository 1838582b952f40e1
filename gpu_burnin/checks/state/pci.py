"""The state check's second opinion: what the kernel says of the GPUs and their PCIe links beside NVML. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_burnin.hardware import make_reason
from gpu_burnin.telemetry.pci import PciLink
from gpu_burnin.telemetry.state import GpuState, known
from gpu_burnin.types import JSON, Measurement, Reason

NAME = "state"


def judge_pci(states: Sequence[GpuState], on_bus: Sequence[str], links: Mapping[str, PciLink]) -> tuple[Reason, ...]:
    """GPUs that the driver does not list, links the kernel and NVML do not agree on, fatal PCIe errors.

    `on_bus` are the addresses of the GPUs on the PCI bus, `links` what sysfs says of them, both empty where
    nothing real is behind NVML. What the kernel cannot tell (virtual machines) is no reason: NVML's values are
    judged by themselves. The current speed is not compared: GPUs at rest change it at any moment.
    """
    reasons = [*_missing(states, on_bus)]
    for state in states:
        link = links.get(state.pci_bus_id)
        if link and not state.lost:
            reasons += [*_disagreement(state, link), *_fatal(state, link)]
    return tuple(reasons)


def pci_measurements(states: Sequence[GpuState], links: Mapping[str, PciLink]) -> tuple[Measurement, ...]:
    """AER counts since boot that a person wants to see though they are not judged by themselves."""
    return tuple(
        Measurement(f"gpu{state.index}_pcie_{name}_errors", float(count), "1")
        for state in states
        if (link := links.get(state.pci_bus_id))
        for name, count in (("correctable", link.aer_correctable), ("nonfatal", link.aer_nonfatal))
        if count is not None
    )


def _missing(states: Sequence[GpuState], on_bus: Sequence[str]) -> Iterable[Reason]:
    for address in sorted(set(on_bus) - {state.pci_bus_id for state in states}):
        # A lost GPU that cannot say its address may be this one: it has its own reason.
        if any(state.lost and not state.pci_bus_id for state in states):
            continue
        message = f"the GPU at {address} is on the PCI bus, but the driver does not list it"
        yield make_reason("GPU_MISSING", NAME, message, details={"pci_bus_id": address})


def _disagreement(state: GpuState, link: PciLink) -> Iterable[Reason]:
    pairs = (
        ("width", known(state.pcie_width), link.width),
        ("highest width", known(state.pcie_max_width), link.max_width),
    )
    for what, nvml, kernel in pairs:
        if nvml is not None and kernel is not None and nvml != kernel:
            yield _say(state, "PCIE_DISAGREE", f"PCIe {what} x{nvml} by NVML, x{kernel} by the kernel", nvml, kernel)
    highest = known(state.pcie_max_generation)
    # NVML's figure is that of card and slot together, so it may be lower than the card's own, never higher.
    if highest is not None and link.max_generation is not None and highest > link.max_generation:
        message = f"PCIe generation {highest} by NVML, {link.max_generation} at most by the kernel"
        yield _say(state, "PCIE_DISAGREE", message, highest, link.max_generation)


def _fatal(state: GpuState, link: PciLink) -> Iterable[Reason]:
    places = (
        (link.address, "", link.aer_fatal),
        (link.port, f" at the port {link.port} above it", link.port_aer_fatal),
    )
    for address, where, count in places:
        if count:
            message = f"{state.label}: {count} fatal PCIe errors since boot by the kernel{where}"
            details: dict[str, JSON] = {"fatal_errors": count, "pci_bus_id": address}
            yield make_reason("PCIE_DEGRADED", NAME, message, gpu=state.uuid or None, details=details)


def _say(state: GpuState, code: str, message: str, nvml: int, kernel: int) -> Reason:
    details: dict[str, JSON] = {"nvml": nvml, "kernel": kernel}
    return make_reason(code, NAME, f"{state.label}: {message}", gpu=state.uuid or None, details=details)
