"""The state check for a whole node: each GPU by its rules, how many there are, what they have in common. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_burnin.checks.state.rules import MODEL_RULES, NAME, RULES, Expected, HostLink, gpu_reason, unread_fields
from gpu_burnin.hardware import make_reason
from gpu_burnin.telemetry.state import GpuState, Unsupported, known
from gpu_burnin.types import JSON, MigInstance, Reason


def judge_state(states: Sequence[GpuState], expected: Expected) -> tuple[Reason, ...]:
    """Everything that keeps these GPUs from being as expected; empty when nothing does."""
    reasons = [*_count(states, expected)]
    expected = replace(expected, host_links=_slots(states, expected.host_links))
    for state in states:
        if state.lost:
            reasons.append(gpu_reason("GPU_LOST", state, f"NVML says {state.lost}", why=state.lost))
            continue
        sku = expected.table.find(state.pci_device_id, state.pci_subsystem_id)
        reasons += [
            *unread_fields(state, sku, expected),
            *(reason for rule in RULES for reason in rule(state, expected)),
        ]
        if sku is None:
            reasons.append(_unknown_sku(state))
            continue
        for of_model in MODEL_RULES:
            reasons += of_model(state, sku, expected)
    rules = (_unknown_expected, _twins, _odd, _mixed, _layouts)
    return (*reasons, *(reason for rule in rules for reason in rule(states, expected)))


def _count(states: Sequence[GpuState], expected: Expected) -> Iterable[Reason]:
    wanted = expected.gpu_count
    if wanted is not None and len(states) != wanted:
        message = f"{len(states)} GPUs are present, {wanted} are expected"
        yield make_reason("GPU_COUNT", NAME, message, details={"present": len(states), "expected": wanted})
    elif not states:
        yield make_reason("GPU_COUNT", NAME, "no GPU is present", details={"present": 0})
    for uuid in sorted(expected.gpu_uuids - {state.uuid for state in states}):
        # A lost GPU without a name may be this one: it has its own reason.
        if not any(state.lost and not state.uuid for state in states):
            message = f"{uuid} was present when the run was planned and is gone"
            yield make_reason("GPU_LOST", NAME, message, gpu=uuid)


def _unknown_expected(states: Sequence[GpuState], expected: Expected) -> Iterable[Reason]:
    """A slip of the expectation speaks against no GPU, and nobody can say whether they are as expected."""
    wanted = expected.configured.model
    if states and wanted is not None and (problem := expected.table.problem(wanted)):
        yield make_reason("GPU_UNKNOWN_SKU", NAME, f"expect.model {wanted}: {problem}", details={"expected": wanted})


def _twins(states: Sequence[GpuState], expected: Expected) -> Iterable[Reason]:
    """GPUs that give one UUID as their own; about the node, since neither can be named by it."""
    for uuid in sorted({state.uuid for state in states} - {""}):
        twins = [state for state in states if state.uuid == uuid]
        if len(twins) > 1:
            named = " and ".join(f"GPU {twin.index} ({twin.pci_bus_id})" for twin in twins)
            message = f"{named} have the same UUID, so neither can be addressed alone: they were not tested"
            addresses: list[JSON] = [twin.pci_bus_id for twin in twins]
            details: dict[str, JSON] = {"uuid": uuid, "pci_bus_ids": addresses}
            yield make_reason("GPU_UUID_SHARED", NAME, message, details=details)


def _unknown_sku(state: GpuState) -> Reason:
    ids = f"{state.pci_device_id >> 16:04X}:{state.pci_subsystem_id >> 16:04X}"
    message = f"the model with PCI device and subsystem id {ids} ({known(state.name)}) is not in skus.yaml"
    return gpu_reason("GPU_UNKNOWN_SKU", state, message, pci_ids=ids)


def _slots(states: Sequence[GpuState], host_links: Mapping[str, HostLink]) -> dict[str, HostLink]:
    """What the slots can do; where the host does not tell the lanes, as many as the widest GPU of that model has."""
    widest: dict[int, int] = {}
    for state in states:
        widest[state.pci_device_id] = max(widest.get(state.pci_device_id, 0), known(state.pcie_width) or 0)
    slots = {}
    for state in states:
        host = host_links.get(state.pci_bus_id, HostLink())
        slots[state.pci_bus_id] = replace(host, width=host.width or widest[state.pci_device_id])
    return slots


def _odd(states: Sequence[GpuState], expected: Expected) -> Iterable[Reason]:
    """Cards of which one has lost its end of a bridge, and it is unknown which."""
    names = [state.label for state in states if state.uuid in expected.links.odd]
    if names:
        message = (
            f"an odd number of cards has NVLinks, and bridges connect two or four: one of {', '.join(names)} has lost "
            "its bridge"
        )
        yield make_reason("NVLINK_DOWN", NAME, message, details={"gpus": [*expected.links.odd]})


def _layouts(states: Sequence[GpuState], expected: Expected) -> Iterable[Reason]:
    """In the expected MIG mode all GPUs of one model have the same instances."""
    if not expected.configured.mig:
        return
    on = [state for state in states if not state.lost and state.mig_enabled is True]
    layouts: dict[tuple[int, str], list[GpuState]] = {}
    for state in on:
        if isinstance(state.mig_instances, Unsupported):
            if state.mig_instances.by_design:  # an error has its reason already
                message = f"MIG mode is on, and the driver {state.driver_version} does not tell its instances"
                yield gpu_reason("UNSUPPORTED_FIELD", state, message, fields={"mig_instances": state.mig_instances.why})
            continue
        layouts.setdefault((state.pci_device_id, layout(state.mig_instances)), []).append(state)
    for model in sorted({model for model, _ in layouts}):
        of_model = {words: held for (device, words), held in layouts.items() if device == model}
        if len(of_model) < 2:
            continue
        told = "; ".join(
            f"{words} on GPU {', '.join(str(state.index) for state in held)}" for words, held in of_model.items()
        )
        alone = [held[0] for held in of_model.values() if len(held) == 1]
        gpu = alone[0].uuid if len(alone) == 1 and sum(map(len, of_model.values())) > 2 else None
        message = f"the GPUs have different MIG instances: {told}; give all of them the same"
        listed: list[JSON] = [*of_model]
        yield make_reason("MIG_MISMATCH", NAME, message, gpu=gpu, details={"layouts": listed})


def layout(instances: Sequence[MigInstance]) -> str:
    """The instances of a GPU in words, whatever their order: "7 x 1g.10gb"."""
    counts = Counter(instance.profile for instance in instances)
    return " + ".join(f"{number} x {profile}" for profile, number in sorted(counts.items())) or "none"


def _mixed(states: Sequence[GpuState], expected: Expected) -> Iterable[Reason]:
    """Versions that must be equal on all GPUs of one model, and equal to the fleet's where that is given."""
    live = [state for state in states if not state.lost]
    drivers = [(state, version) for state in live for version in (state.driver_version, known(state.gsp_firmware))]
    yield from _unequal("DRIVER_MIXED", "driver and firmware", drivers, expected.configured.driver_version)
    for model in sorted({state.pci_device_id for state in live}):
        found = [(state, known(state.vbios)) for state in live if state.pci_device_id == model]
        yield from _unequal("VBIOS_MIXED", "VBIOS", found, expected.configured.vbios)


def _unequal(
    code: str, what: str, found: Sequence[tuple[GpuState, str | None]], wanted: str | None
) -> Iterable[Reason]:
    """One reason where the versions are not one; about one GPU when all others agree, else about the node."""
    holders: dict[str, list[GpuState]] = {}
    for state, version in found:
        if version and state not in holders.setdefault(version, []):
            holders[version].append(state)
    if not holders or set(holders) <= ({wanted} if wanted else set(list(holders)[:1])):
        return
    listed = "; ".join(
        f"{version} on GPU {', '.join(str(state.index) for state in holders[version])}" for version in sorted(holders)
    )
    odd = [held[0] for version, held in holders.items() if len(held) == 1 and version != wanted]
    several = len({state.index for state, _ in found}) > 1  # a GPU alone cannot stand out
    gpu = odd[0].uuid or None if len(odd) == 1 and several else None
    expectation = f"; {wanted} is expected" if wanted else ""
    versions: list[JSON] = [*sorted(holders)]
    details: dict[str, JSON] = {"versions": versions, "expected": wanted}
    yield make_reason(
        code, NAME, f"{what} versions are mixed or wrong: {listed}{expectation}", gpu=gpu, details=details
    )


def persistence_off(states: Sequence[GpuState]) -> list[str]:
    """UUIDs of the GPUs whose persistence mode is off."""
    return [state.uuid for state in states if state.persistence is False]
