"""What a look at a node found, in text for a person and as JSON values. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from gpu_burnin.errors import EXIT_FAIL
from gpu_burnin.hardware import load_xids, what_to_do
from gpu_burnin.hardware.reasons import is_note
from gpu_burnin.node.scan import Scan, ScannedGpu, XidSeen
from gpu_burnin.report.order import order_for
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.prose import STANDARD_WIDTH, table, wrap
from gpu_burnin.system.quantities import count
from gpu_burnin.telemetry.kmsg import UNREADABLE, log_summary
from gpu_burnin.telemetry.state import known
from gpu_burnin.types import Notice, Reason, Verdict

# Columns that stay together where the table folds, the first beside each.
_KEY, _GROUPS = "GPU", (("serial or UUID", "PCI address"), ("temp", "ECC", "remaps", "PCIe", "NVLink"), ("found",))
# "GPU-" and as many digits as nvidia-smi -L needs to tell GPUs apart by eye.
_UUID_LETTERS = 12


def document(found: Scan) -> dict[str, Any]:
    """The scan as JSON values: times in UTC, sizes in bytes, units in the names; `exit_code` is the command's."""
    told: dict[str, Any] = to_json(found)
    return {"schema": told.pop("schema"), "exit_code": found.exit_code, **told}


def render(found: Scan, width: int = STANDARD_WIDTH) -> str:
    """The scan as lines of at most `width` characters, where words allow."""
    parts = [
        _head(found, width),
        _table(found, width),
        _reasons(found, width),
        _warnings(found, width),
        _log(found, width),
        _source_lines(found, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _head(found: Scan, width: int) -> list[str]:
    simulated = "; simulated: it says nothing about a real GPU" if found.simulated else ""
    names = [known(gpu.state.name) or "unknown model" for gpu in found.gpus]
    models = Counter(f"{name} ({gpu.sku})" if gpu.sku else name for name, gpu in zip(names, found.gpus, strict=True))
    gpus = ", ".join(f"{number} x {model}" for model, number in models.items()) or "no GPU seen"
    facts = (("driver", found.software.driver), ("CUDA", found.software.cuda), ("kernel", found.host.kernel))
    versions = ", ".join(f"{name} {version}" for name, version in facts if version)
    return [
        *wrap(f"{found.node}: looked at, not tested{simulated}", width),
        *wrap(f"{gpus}, {versions}", width),
    ]


def _table(found: Scan, width: int) -> list[str]:
    if not found.gpus:
        return []
    rows = [_row(gpu, found) for gpu in found.gpus]
    key = (_KEY, *(str(gpu.state.index) for gpu in found.gpus))
    columns = [[(name, *(row[name] for row in rows)) for name in group] for group in _GROUPS]
    return table(key, columns, width, indent="")


def _row(gpu: ScannedGpu, found: Scan) -> dict[str, str]:
    state = gpu.state
    return {
        "serial or UUID": known(state.serial) or state.uuid[:_UUID_LETTERS] or "-",
        "PCI address": state.pci_bus_id or "-",
        "temp": _cell(known(state.temperature_c), "{} °C"),
        "ECC": _ecc(gpu),
        "remaps": _remaps(gpu),
        "PCIe": _pcie(gpu),
        "NVLink": _nvlinks(gpu),
        "found": _found(state.uuid, found),
    }


def _cell(value: object, form: str = "{}") -> str:
    return "-" if value is None else form.format(value)


def _ecc(gpu: ScannedGpu) -> str:
    """Uncorrectable errors since the driver was loaded, and over the life of the board."""
    state = gpu.state
    if state.ecc_enabled is False:
        return "off"
    pairs = (
        (state.ecc_volatile_uncorrected_dram, state.ecc_volatile_uncorrected_sram),
        (state.ecc_aggregate_uncorrected_dram, state.ecc_aggregate_uncorrected_sram),
    )
    return "/".join(_cell(_sum(known(value) for value in pair)) for pair in pairs)


def _sum(values: Iterable[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _remaps(gpu: ScannedGpu) -> str:
    """Rows remapped; whether one waits for a reset, or could not be."""
    state = gpu.state
    rows = _cell(_sum((known(state.remapped_corrected), known(state.remapped_uncorrected))))
    mark = " failed" if state.remap_failure is True else " pending" if state.remap_pending is True else ""
    return f"{rows}{mark}"


def _pcie(gpu: ScannedGpu) -> str:
    """The highest generation that card and slot agree on, and the lanes now."""
    generation, lanes = known(gpu.state.pcie_max_generation), known(gpu.state.pcie_width)
    return f"{_cell(generation)} x{_cell(lanes)}" if generation or lanes else "-"


def _nvlinks(gpu: ScannedGpu) -> str:
    """Active links of those that are there."""
    active, inactive = known(gpu.state.nvlink_active), known(gpu.state.nvlink_inactive)
    return "-" if active is None else f"{len(active)}/{len(active) + len(inactive or ())}"


def _found(uuid: str, found: Scan) -> str:
    own = [reason for reason in found.reasons if reason.gpu == uuid]
    faults = sum(reason.severity is Verdict.FAIL for reason in own)
    parts = (
        *((count(faults, "fault"),) if faults else ()),
        *((count(len(own) - faults, "doubt"),) if own[faults:] else ()),
    )
    return ", ".join(parts) or "-"


def _reasons(found: Scan, width: int) -> list[str]:
    if not found.reasons:
        return ["Nothing wrong was seen."]
    lines = ["Found:"]
    told: set[str] = set()
    for reason in found.reasons:
        lines += wrap(f"{reason.severity} {reason.code}: {_message(reason, found)}", width, "  - ", "    ")
        if reason.code not in told and (advice := what_to_do(reason.code)):
            lines += wrap(f"To do: {advice}", width, "    ", "    ")
        told.add(reason.code)
    if found.exit_code == EXIT_FAIL:
        lines += wrap(f"Do this: {order_for(found.action).text}.", width)
    return lines


def _message(one: Reason | Notice, found: Scan) -> str:
    """What it says, with the number of its GPU alone: address and serial stand in the table."""
    state = next((gpu.state for gpu in found.gpus if one.gpu and gpu.state.uuid == one.gpu), None)
    return f"GPU {state.index}: {one.message.removeprefix(f'{state.label}: ')}" if state else one.message


def _warnings(found: Scan, width: int) -> list[str]:
    warnings = [one for one in found.warnings if not is_note(one.code)]
    notes = [one for one in found.warnings if is_note(one.code)]
    return [
        line
        for heading, told in (("Warnings:", warnings), ("Notes (nothing is wrong):", notes))
        if told
        for line in (
            heading,
            *(line for one in told for line in wrap(f"{one.code}: {_message(one, found)}", width, "  - ", "    ")),
        )
    ]


def _log(found: Scan, width: int) -> list[str]:
    if not found.kernel_log:
        return ["Kernel log: could not be read"]
    number = sum(one.count for one in found.xids)
    head = f"Kernel log since boot ({found.kernel_log}): {log_summary(number, found.lost_messages)}"
    told = next((_named(one) for one in found.xids if one.xid != UNREADABLE), "")
    more = f"`gpu-burnin explain {told}` tells more of one." if told else ""
    return [
        *wrap(head, width, "", "  "),
        *(line for one in found.xids for line in wrap(_xid(one), width, "  ", "    ")),
        *wrap(more, width, "  ", "  "),
    ]


def _xid(seen: XidSeen) -> str:
    policy = load_xids().policy(seen.xid, sxid=seen.sxid)
    times = f", {seen.count} times" if seen.count > 1 else ""
    place = seen.pci_bus_id or "an unknown device"
    return f"{_named(seen)} on {place}{times}: {policy.meaning if policy else seen.text}"


def _named(seen: XidSeen) -> str:
    kind = "SXid" if seen.sxid else "XID"
    if seen.xid == UNREADABLE and seen.pci_bus_id:
        return "a driver's line without an XID"
    return f"an {kind} that cannot be read" if seen.xid == UNREADABLE else f"{kind} {seen.xid}"


def _source_lines(found: Scan, width: int) -> list[str]:
    lines = wrap(f"Looked at: {'; '.join(found.looked_at) or 'nothing'}.", width)
    for one in found.unseen:
        lines += wrap(f"Not seen: {one}.", width)
    lines += wrap("This is no burn-in: no load was put on any GPU. gpu-burnin run tests them.", width)
    return lines
