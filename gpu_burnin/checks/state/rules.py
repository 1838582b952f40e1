"""The rules of the state check for one GPU: pure, each a function of its state, its model and what is expected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_burnin.hardware import Sku, SkuTable, load_skus, make_reason
from gpu_burnin.hardware.skus import POWER_LIMIT_TOLERANCE_W
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.telemetry import fabric_health
from gpu_burnin.telemetry.node_links import NodeLinks
from gpu_burnin.telemetry.state import GpuState, Unsupported, known
from gpu_burnin.types import JSON, Action, Reason

NAME = "state"
# A GPU whose memory is under this part of the nominal size lost some (reserved memory and ECC take 1 to 6 %).
MEMORY_PART = 0.95
# Clocks event reasons that a resting GPU never has: hardware slowdown, software and hardware thermal slowdown,
# power brake (nvml.h).
THROTTLE_BITS = {0x08: "hardware slowdown", 0x20: "thermal slowdown by software",
                 0x40: "thermal slowdown by hardware", 0x80: "power brake"}  # fmt: skip
# NVML_GPU_RECOVERY_ACTION_*: what the driver asks for.
RECOVERY: dict[int, tuple[str, Action]] = {
    1: ("reset the GPU", Action.RESET_GPU),
    2: ("reboot the node", Action.REBOOT),
    3: ("drain peer-to-peer traffic and reset", Action.RESET_GPU),
    4: ("drain and reset the GPU", Action.RESET_GPU),
    5: ("recover the IMEX domain", Action.HOLD),
    6: ("reset the bus", Action.POWER_CYCLE),
    7: ("reboot the system", Action.REBOOT),
}
# What the rules below read; a value that is missing here without leave makes the check inconclusive.
JUDGED_FIELDS: tuple[str, ...] = (
    "serial", "vbios", "memory_bytes", "inforom_valid", "ecc_enabled", "ecc_pending",
    "ecc_volatile_uncorrected_dram", "ecc_volatile_uncorrected_sram", "ecc_aggregate_uncorrected_sram",
    "sram_threshold_exceeded", "remapped_uncorrected", "remap_pending", "remap_failure", "retired_single_bit",
    "retired_double_bit", "retired_pending", "recovery_action", "channel_repair_pending", "tpc_repair_pending",
    "unrepairable_memory", "mig_enabled", "mig_pending", "power_limit_w", "power_enforced_w",
    "power_default_w", "clocks_event_reasons", "pcie_max_generation", "pcie_width", "pcie_max_width",
    "pcie_fatal_errors", "processes",
)  # fmt: skip
LINK_FIELDS: tuple[str, ...] = ("nvlink_active", "nvlink_inactive", "nvlink_failed_recoveries")
FABRIC_FIELDS: tuple[str, ...] = ("fabric_state", "fabric_status", "fabric_health_summary")


@dataclass(frozen=True)
class HostLink:
    """What the host's slot can do for a GPU: PCIe generation and lanes. None: the host does not tell (a VM, say)."""

    generation: int | None = None
    width: int | None = None


@dataclass(frozen=True)
class Expected:
    """What this node should look like. None: the model's or the device's own default.

    `configured` is what the operator expects, `gpu_count` his number or that of the PCI bus, `links` what was decided
    of NVLinks. `gpu_uuids` are the GPUs of the plan, which must still be there; `own_pids` may use the GPUs;
    `host_links` are by PCI address.
    """

    table: SkuTable = field(default_factory=load_skus)
    configured: Expectations = field(default_factory=Expectations)
    links: NodeLinks = field(default_factory=NodeLinks)
    gpu_count: int | None = None
    gpu_uuids: frozenset[str] = frozenset()
    own_pids: frozenset[int] = frozenset()
    host_links: Mapping[str, HostLink] = field(default_factory=dict)


# A rule for every GPU, and one that holds it against its model.
Rule = Callable[[GpuState, Expected], Iterable[Reason]]
ModelRule = Callable[[GpuState, Sku, Expected], Iterable[Reason]]
# Errors of NVML that say nothing of one value: who asked may not know, the driver does not know the question, or the
# whole GPU wants a reset, which has a rule of its own.
_NO_ERROR_OF_A_VALUE = frozenset({"no_permission", "invalid_argument", "reset_required"})


def gpu_reason(code: str, state: GpuState, message: str, action: Action | None = None, **details: JSON) -> Reason:
    """A reason about one GPU; its message starts with index, PCI address and UUID."""
    return make_reason(code, NAME, f"{state.label}: {message}", gpu=state.uuid or None, details=details, action=action)


def unread_fields(state: GpuState, sku: Sku | None, expected: Expected) -> Iterable[Reason]:
    """Judged fields without a value, unless model and driver may leave them out; and any other that NVML knows and
    could not read. Of a model that is not known (None) nothing tells what it may leave out: errors alone count."""
    missing = {
        name: value.why
        for name, value in state.unread().items()
        if (_is_error(value) and not _of_links(name))
        or (name in _judged_fields(state, sku, expected) and not _may_miss(state, sku, expected, name, value))
    }
    if missing:
        listed = ", ".join(f"{name} ({why})" for name, why in sorted(missing.items()))
        message = f"the driver {state.driver_version} gives no value for {listed}"
        if "no_permission" in missing.values():
            message += "; run as root"
        yield gpu_reason("UNSUPPORTED_FIELD", state, message, fields=dict(sorted(missing.items())))


def _is_error(value: Unsupported) -> bool:
    return not value.by_design and value.why not in _NO_ERROR_OF_A_VALUE


def _of_links(name: str) -> bool:
    """Whether a value is one of NVLinks and their fabric, which count where they are expected."""
    return name.startswith(("nvlink_", "fabric_"))


def _judged_fields(state: GpuState, sku: Sku | None, expected: Expected) -> set[str]:
    if sku is None:
        return set(JUDGED_FIELDS)
    links = expected.links.of(state.uuid, sku)
    linked, probed = links.links and not _without_links(state), links.switched and sku.fabric_probe
    return {*JUDGED_FIELDS, *(LINK_FIELDS if linked else ()), *(FABRIC_FIELDS if probed else ())}


def _may_miss(state: GpuState, sku: Sku | None, expected: Expected, name: str, value: Unsupported) -> bool:
    if not value.by_design:
        return False
    return sku is None or expected.table.may_miss(sku, name, state.driver_version) or _silenced(state, name)


def _silenced(state: GpuState, name: str) -> bool:
    """Whether a mode of the GPU, which has its own rule, makes NVML leave the field out.

    Nothing is counted with ECC off (nvidia-smi -q says N/A), and nvmlDeviceGetRemappedRows is silent with MIG
    instances (nvml.h).
    """
    if name.startswith(("ecc_volatile", "ecc_aggregate", "sram_threshold")):
        return state.ecc_enabled is False
    return name.startswith("remap") and state.mig_enabled is True


def _model(state: GpuState, sku: Sku, expected: Expected) -> Iterable[Reason]:
    """By its PCI ids. Where nobody knows the GPU's model, or the expected one, that has a reason of its own."""
    wanted = expected.configured.model
    if wanted in expected.table.skus and sku.key != wanted:
        message = f"it is of the model {sku.key} ({sku.name}), and expect.model is {wanted}"
        yield gpu_reason("GPU_MODEL", state, message, model=sku.key, expected=wanted)


def _memory(state: GpuState, sku: Sku, _: Expected) -> Iterable[Reason]:
    size = known(state.memory_bytes)
    if size is not None and size < MEMORY_PART * sku.memory_bytes:
        message = f"{size} bytes of memory, {sku.memory_bytes} expected of {sku.name}"
        yield gpu_reason("MEMORY_REDUCED", state, message, memory_bytes=size, nominal_bytes=sku.memory_bytes)


def _ecc_mode(state: GpuState, sku: Sku, _: Expected) -> Iterable[Reason]:
    if state.ecc_enabled is False and sku.ecc:
        yield gpu_reason("ECC_DISABLED", state, "ECC is off")


def _ecc(state: GpuState, expected: Expected) -> Iterable[Reason]:
    pending = known(state.ecc_pending)
    if pending is not None and pending != state.ecc_enabled and known(state.ecc_enabled) is not None:
        yield gpu_reason("ECC_PENDING", state, f"ECC will be {'on' if pending else 'off'} after a reset")
    for place in ("dram", "sram"):
        count = known(getattr(state, f"ecc_volatile_uncorrected_{place}"))
        if count:
            message = f"{count} uncorrectable errors in {place.upper()} since the driver was loaded"
            yield gpu_reason("ECC_UNCORRECTED", state, message, place=place, count=count, counter="volatile")
    limit = expected.table.limits["sram_uncorrected_aggregate"]
    aggregate = known(state.ecc_aggregate_uncorrected_sram) or 0
    if state.sram_threshold_exceeded is True or aggregate > limit.value:
        message = f"{aggregate} uncorrectable SRAM errors over its life, above the limit"
        yield gpu_reason(
            "ECC_UNCORRECTED", state, message, Action.REPAIR, place="sram", count=aggregate, counter="aggregate"
        )


def _remap(state: GpuState, expected: Expected) -> Iterable[Reason]:
    if state.remap_pending is True:
        yield gpu_reason("REMAP_PENDING", state, "a row remap waits for a GPU reset")
    limit = expected.table.limits["remapped_uncorrected"].value
    remapped = known(state.remapped_uncorrected) or 0
    if state.remap_failure is True:
        yield gpu_reason("REMAP_FAILED", state, "a row could not be remapped")
    elif remapped > limit:
        message = f"{remapped} rows remapped for uncorrectable errors, {limit} at most"
        yield gpu_reason("REMAP_FAILED", state, message, count=remapped, limit=limit)


def _retired(state: GpuState, expected: Expected) -> Iterable[Reason]:
    if state.retired_pending is True:
        yield gpu_reason("RETIRED_PAGES", state, "a page retirement waits for a GPU reset")
    limit = expected.table.limits["retired_pages"].value
    retired = (known(state.retired_single_bit) or 0) + (known(state.retired_double_bit) or 0)
    if retired > limit:
        message = f"{retired} pages retired, {limit} at most"
        yield gpu_reason("RETIRED_PAGES", state, message, Action.REPAIR, count=retired, limit=limit)


def _repair(state: GpuState, _: Expected) -> Iterable[Reason]:
    if state.inforom_valid is False:
        yield gpu_reason("INFOROM_CORRUPT", state, "the InfoROM fails its checksum")
    for name, part in (("channel_repair_pending", "memory channel"), ("tpc_repair_pending", "TPC")):
        if getattr(state, name) is True:
            yield gpu_reason("REPAIR_PENDING", state, f"a {part} repair waits for a GPU reset", field=name)
    if state.unrepairable_memory is True:
        yield gpu_reason("MEMORY_UNREPAIRABLE", state, "memory cannot be repaired")


def _recovery(state: GpuState, _: Expected) -> Iterable[Reason]:
    value = known(state.recovery_action)
    if value:
        # The list grows with the driver: an unknown demand is still a demand.
        asks, action = RECOVERY.get(value, (f"do something unknown (value {value})", Action.HOLD))
        yield gpu_reason("RECOVERY_ACTION", state, f"the driver asks to {asks}", action, value=value)
    elif state.reset_required:
        yield gpu_reason("RECOVERY_ACTION", state, "NVML says that a reset is required", Action.RESET_GPU)


def _mig(state: GpuState, expected: Expected) -> Iterable[Reason]:
    modes = {"current": known(state.mig_enabled), "pending": known(state.mig_pending)}
    wanted = expected.configured.mig or False
    wrong = [name for name, mode in modes.items() if mode is not None and mode != wanted]
    if wrong:
        mode = "on" if wanted else "off"
        yield gpu_reason(
            "MIG_MISMATCH",
            state,
            f"MIG mode ({', '.join(wrong)}) is not {mode} as expected",
            current=modes["current"],
            pending=modes["pending"],
        )


def _settings(state: GpuState, sku: Sku, expected: Expected) -> Iterable[Reason]:
    which, limit = "enforced", known(state.power_enforced_w)
    if sku.module_power:  # what is enforced follows the processor's share
        which, limit = "requested", known(state.power_limit_w)
    wanted = (
        known(state.power_default_w) if expected.configured.power_limit_w is None else expected.configured.power_limit_w
    )
    if limit is not None and wanted is not None and abs(limit - wanted) > POWER_LIMIT_TOLERANCE_W:
        message = f"the {which} power limit is {limit:g} W, expected {wanted:g} W"
        yield gpu_reason("POWER_LIMIT", state, message, limit_w=limit, expected_w=wanted)


def _throttled(state: GpuState, _: Expected) -> Iterable[Reason]:
    bits = known(state.clocks_event_reasons) or 0
    found = [name for bit, name in THROTTLE_BITS.items() if bits & bit]
    if found:
        yield gpu_reason("THROTTLED", state, f"slowed down at rest: {', '.join(found)}", clocks_event_reasons=bits)


def _pcie(state: GpuState, sku: Sku, expected: Expected) -> Iterable[Reason]:
    """The link against what the model and the host's slot can do: a card in a slot of an older generation has no fault,
    nor has one in a slot of fewer lanes. NVML's highest width is the card's own (nvidia-smi -q of an L4 and of an L40S
    of a cloud: x8 of x16 in good order), so it says nothing of the slot.

    The current generation drops at rest, so only the highest that card and slot agree on is judged here.
    """
    host = expected.host_links.get(state.pci_bus_id, HostLink())
    generation = known(state.pcie_max_generation)
    reachable = min(sku.pcie_generation, host.generation or 0)
    if generation is not None and generation < reachable:
        message = f"PCIe generation {generation} at most, model and slot can do {reachable}"
        yield gpu_reason("PCIE_DEGRADED", state, message, generation=generation, reachable=reachable)
    width = known(state.pcie_width)
    wanted = min(sku.pcie_width, host.width or 0)
    if width is not None and width < wanted:
        yield gpu_reason("PCIE_DEGRADED", state, f"PCIe width x{width}, x{wanted} expected", width=width)


def _pcie_errors(state: GpuState, _: Expected) -> Iterable[Reason]:
    fatal = known(state.pcie_fatal_errors)
    if fatal:
        yield gpu_reason("PCIE_DEGRADED", state, f"{fatal} fatal PCIe errors", fatal_errors=fatal)


def _nvlink(state: GpuState, sku: Sku, expected: Expected) -> Iterable[Reason]:
    wanted = expected.links.of(state.uuid, sku).links
    active = () if _without_links(state) else known(state.nvlink_active)
    inactive = known(state.nvlink_inactive) or ()
    if wanted and active is not None and len(active) < wanted:
        down = f" (down: {', '.join(map(str, inactive))})" if inactive else ""
        message = f"{len(active)} of {wanted} NVLinks are active{down}"
        yield gpu_reason("NVLINK_DOWN", state, message, active=len(active), expected=wanted, inactive=list(inactive))
    failed = known(state.nvlink_failed_recoveries)
    if wanted and failed:
        yield gpu_reason("NVLINK_ERRORS", state, f"{failed} NVLink recoveries failed", failed_recoveries=failed)


def _without_links(state: GpuState) -> bool:
    """Whether NVML says that the GPU has no links at all, as it does of all links that are not populated."""
    return state.nvlink_active == Unsupported("not_supported")


def _fabric(state: GpuState, sku: Sku, expected: Expected) -> Iterable[Reason]:
    if not sku.fabric_probe or not expected.links.of(state.uuid, sku).switched:
        return
    value, status = known(state.fabric_state), known(state.fabric_status)
    if value is not None and (value != fabric_health.COMPLETED or status):
        message = f"fabric state {value} (3 is completed) with status {status}"
        yield gpu_reason("FABRIC_NOT_READY", state, message, fabric_state=value, fabric_status=status)
        return
    summary, mask = known(state.fabric_health_summary), known(state.fabric_health_mask) or 0
    called = fabric_health.of_summary(summary)
    if called:
        yield gpu_reason("FABRIC_NOT_READY", state, f"the fabric calls this GPU {called}", health_summary=summary)
    complaints = fabric_health.of_mask(mask)
    if complaints:
        yield gpu_reason("FABRIC_NOT_READY", state, f"in the fabric {', '.join(complaints)}", health_mask=mask)


def _busy(state: GpuState, expected: Expected) -> Iterable[Reason]:
    foreign = [process for process in known(state.processes) or () if process.pid not in expected.own_pids]
    if foreign:
        pids: list[JSON] = [process.pid for process in foreign]
        yield gpu_reason("GPU_BUSY", state, f"in use by process {', '.join(map(str, pids))}", pids=pids)


RULES: tuple[Rule, ...] = (
    _ecc, _remap, _retired, _repair, _recovery, _mig, _throttled, _pcie_errors, _busy,
)  # fmt: skip
MODEL_RULES: tuple[ModelRule, ...] = (_model, _memory, _ecc_mode, _settings, _pcie, _nvlink, _fabric)
