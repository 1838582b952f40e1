"""What the agent makes of what it sees: pure. Fatal findings take the admission back, the others ask for a retest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_burnin.hardware import XidTable, load_skus
from gpu_burnin.judge.xid import judge_work
from gpu_burnin.system import hardware_identity
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.vitals import Vital, Vitals
from gpu_burnin.types import JSON, Action, Gpu

# What is told as long as it lasts, and not when it came.
STANDING = frozenset({"ECC_CORRECTED", "REMAP_PENDING"})
# NVML_GPU_RECOVERY_ACTION_*, nvml.h: what the driver asks for.
_RECOVERY: Mapping[int, str] = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic and reset",
    4: "drain and reset the GPU",
}


@dataclass(frozen=True)
class Finding:
    """One finding. `place` tells the same code on two devices apart; `monotonic_us` is when, None for now.

    `action` is what clears it, None where that of its code does (reasons.yaml).
    """

    code: str
    message: str
    fatal: bool = False
    place: str = ""
    monotonic_us: int | None = None
    action: Action | None = None


def of_xids(events: Iterable[XidEvent], table: XidTable, labels: Mapping[str, str]) -> tuple[Finding, ...]:
    """XIDs and SXids by the runtime column: revoke is fatal, warn and unknown codes are told, log is nothing.

    `labels` are how a person finds the GPUs, by PCI address, as far as NVML was ever heard of them.
    """
    return tuple(
        Finding(
            one.code,
            _located(one.message, one.event.pci_bus_id, labels),
            one.fatal,
            f"{'SXid' if one.event.sxid else 'XID'} {one.event.xid} {one.event.pci_bus_id}".strip(),
            one.event.monotonic_us,
            one.action,
        )
        for one in judge_work(events, table)
    )


def _located(message: str, bus_id: str, labels: Mapping[str, str]) -> str:
    return message.replace(f" on {bus_id}", f" on {labels[bus_id]}", 1) if bus_id in labels else message


def of_vitals(now: Vitals, before: Mapping[str, int]) -> tuple[Finding, ...]:
    """What NVML says of the GPUs; `before` has the uncorrectable errors that are known already, by UUID."""
    return tuple(finding for gpu in now.gpus for finding in _of_gpu(gpu, before))


def _of_gpu(gpu: Vital, before: Mapping[str, int]) -> Iterable[Finding]:
    place = gpu.uuid or str(gpu.index)
    if gpu.lost:
        yield Finding("GPU_LOST", f"{gpu.label} no longer answers its driver ({gpu.lost})", True, place)
        return
    if gpu.recovery_action:
        # The list grows with the driver: an unknown demand is still a demand.
        asks = _RECOVERY.get(gpu.recovery_action, f"do something unknown (value {gpu.recovery_action})")
        yield Finding("RECOVERY_ACTION", f"{gpu.label}: the driver asks to {asks}", True, place)
    elif gpu.reset_required:
        yield Finding("RECOVERY_ACTION", f"{gpu.label}: NVML says that a reset is required", True, place)
    if gpu.remap_failure:
        yield Finding("REMAP_FAILED", f"{gpu.label}: a memory row could not be replaced", True, place)
    elif gpu.remap_pending:
        yield Finding("REMAP_PENDING", f"{gpu.label}: a memory row waits for a reset to be replaced", False, place)
    if gpu.corrected.is_much(load_skus().limits):
        yield Finding("ECC_CORRECTED", f"{gpu.label}: {gpu.corrected.words}", False, place)
    known = before.get(gpu.uuid)
    if known is not None and gpu.uncorrected is not None and gpu.uncorrected > known:
        more = gpu.uncorrected - known
        message = f"{gpu.label}: {more} more uncorrectable memory error{'s' if more > 1 else ''}"
        yield Finding("ECC_UNCORRECTED", message, False, f"{place} {gpu.uncorrected}")


def identity_of(vitals: Vitals, kernel: str) -> dict[str, JSON]:
    """The hardware identity that these readings are of."""
    gpus = (
        Gpu(gpu.index, gpu.uuid, gpu.serial, gpu.pci_bus_id, "", "", 0, gpu.vbios, gpu.instances) for gpu in vitals.gpus
    )
    return hardware_identity.identity(gpus, vitals.driver, kernel)


def of_hardware(vitals: Vitals, kernel: str, tested: Mapping[str, JSON]) -> Finding | None:
    """Whether this is the hardware that was tested in this boot. What could not be read is no change."""
    if any(gpu.lost or not gpu.identified for gpu in vitals.gpus):
        return None
    changed = hardware_identity.difference(tested, identity_of(vitals, kernel))
    return Finding("HARDWARE_CHANGED", f"not the hardware that was tested: {changed}", True) if changed else None
