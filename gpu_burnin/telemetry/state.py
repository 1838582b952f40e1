"""The state of a GPU as data: every value is a reading or says why there is none. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TypeAlias, TypeVar

from gpu_burnin.types import JSON_NAME, Gpu, MigInstance

_T = TypeVar("_T")


@dataclass(frozen=True)
class Unsupported:
    """There is no value, and this is why: NVML's error name in lower case, such as "not_supported", or
    "driver_too_old" for what came with a later driver."""

    why: str = field(metadata={JSON_NAME: "unsupported"})

    @property
    def by_design(self) -> bool:
        """Whether driver or GPU do not know the value at all, unlike an error while reading it."""
        return self.why in (
            "not_supported", "function_not_found", "argument_version_mismatch", "deprecated", "driver_too_old",
        )  # fmt: skip


@dataclass(frozen=True)
class ProcessUse:
    """A process with a context on a GPU. `used_bytes` is None where the driver does not tell."""

    pid: int
    used_bytes: int | None


Text: TypeAlias = str | Unsupported
Whole: TypeAlias = int | Unsupported
Real: TypeAlias = float | Unsupported
Flag: TypeAlias = bool | Unsupported
Links: TypeAlias = tuple[int, ...] | Unsupported
Processes: TypeAlias = tuple[ProcessUse, ...] | Unsupported
MigInstances: TypeAlias = tuple[MigInstance, ...] | Unsupported


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment. `lost` is NVML's word when it no longer answers, "" otherwise; its identity may
    then be missing (""). `pci_device_id` and `pci_subsystem_id` are NVML's (id << 16 | vendor), 0 if unknown.

    ECC counters: volatile since the driver was loaded, aggregate over the life of the board. Recovery action
    is NVML field 230. NVLink links are numbers of populated links. Fabric values are those of nvmlGpuFabricInfo,
    of the version `fabric_version`. Clocks event reasons are NVML's bits. There are MIG instances in MIG mode alone.
    """

    index: int
    lost: str
    reset_required: bool
    uuid: str
    serial: Text
    pci_bus_id: str
    pci_device_id: int
    pci_subsystem_id: int
    name: Text
    driver_version: str
    gsp_firmware: Text
    vbios: Text
    inforom_image: Text
    board_part_number: Text
    compute_capability: Text
    memory_bytes: Whole
    inforom_valid: Flag
    persistence: Flag
    ecc_enabled: Flag
    ecc_pending: Flag
    ecc_volatile_corrected_dram: Whole
    ecc_volatile_corrected_sram: Whole
    ecc_volatile_uncorrected_dram: Whole
    ecc_volatile_uncorrected_sram: Whole
    ecc_aggregate_corrected_dram: Whole
    ecc_aggregate_corrected_sram: Whole
    ecc_aggregate_uncorrected_dram: Whole
    ecc_aggregate_uncorrected_sram: Whole
    sram_threshold_exceeded: Flag
    remapped_corrected: Whole
    remapped_uncorrected: Whole
    remap_pending: Flag
    remap_failure: Flag
    retired_single_bit: Whole
    retired_double_bit: Whole
    retired_pending: Flag
    recovery_action: Whole
    channel_repair_pending: Flag
    tpc_repair_pending: Flag
    unrepairable_memory: Flag
    mig_enabled: Flag
    mig_pending: Flag
    power_draw_w: Real
    power_limit_w: Real
    power_enforced_w: Real
    power_default_w: Real
    energy_mj: Whole
    clock_sm_mhz: Whole
    clock_memory_mhz: Whole
    max_clock_sm_mhz: Whole
    max_clock_memory_mhz: Whole
    clocks_event_reasons: Whole
    temperature_c: Whole
    temperature_margin_c: Whole
    temperature_slowdown_c: Whole
    pcie_generation: Whole
    pcie_max_generation: Whole
    pcie_width: Whole
    pcie_max_width: Whole
    pcie_replays: Whole
    pcie_fatal_errors: Whole
    nvlink_active: Links
    nvlink_inactive: Links
    nvlink_replays: Whole
    nvlink_recoveries: Whole
    nvlink_crc_errors: Whole
    nvlink_failed_recoveries: Whole
    fabric_version: Whole
    fabric_state: Whole
    fabric_status: Whole
    fabric_health_summary: Whole
    fabric_health_mask: Whole
    processes: Processes
    mig_instances: MigInstances = ()

    def unread(self) -> dict[str, Unsupported]:
        """The fields without a value, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Unsupported)}

    @property
    def label(self) -> str:
        """How a person finds this GPU."""
        return to_gpu(self, sku="").label


@dataclass(frozen=True)
class NodeState:
    """All GPUs of a node with the software beneath them. `simulated`: no real GPU is behind these values."""

    simulated: bool
    driver_version: str
    cuda_version: str
    nvml_version: str
    gpus: tuple[GpuState, ...]


def known(value: _T | Unsupported) -> _T | None:
    """The reading, or None when there is none."""
    return None if isinstance(value, Unsupported) else value


def to_gpu(state: GpuState, sku: str) -> Gpu:
    """The identity part of a state, as plan, report and evidence use it; what is unknown is "" or 0."""
    return Gpu(
        index=state.index,
        uuid=state.uuid,
        serial=known(state.serial) or "",
        pci_bus_id=state.pci_bus_id,
        name=known(state.name) or "",
        sku=sku,
        memory_bytes=known(state.memory_bytes) or 0,
        vbios=known(state.vbios) or "",
        instances=(known(state.mig_instances) or ()) if state.mig_enabled is True else None,
    )
