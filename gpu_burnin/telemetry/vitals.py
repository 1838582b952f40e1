"""The few readings of NVML by which a GPU in production is watched, taken often at no cost to its work.

Only the agent imports this, into a thread of its own: NVML may hang.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pynvml as n

from gpu_burnin.hardware.corrected import CorrectedErrors
from gpu_burnin.telemetry import fabric_health
from gpu_burnin.telemetry.events import KINDS
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.nvml import Nvml, read_processes
from gpu_burnin.telemetry.nvml_fabric import read_fabric
from gpu_burnin.telemetry.nvml_library import is_simulated
from gpu_burnin.telemetry.nvml_links import LINK_COUNTERS, LinkCounters, read_links
from gpu_burnin.telemetry.nvml_mig import read_instances
from gpu_burnin.telemetry.nvml_reader import Reader, error_name
from gpu_burnin.telemetry.pci import normal_bus_id
from gpu_burnin.telemetry.state import Unsupported, known
from gpu_burnin.types import MigInstance

# NVML waits in the driver; an end of the agent waits for it.
_SLICE_MS = 1000


@dataclass(frozen=True)
class Vital:
    """One GPU. `lost` is NVML's word when it no longer answers; None is what could not be read.

    `uncorrected` counts uncorrectable memory errors since the driver was loaded, `corrected` those that were corrected;
    `identified`: UUID, serial, VBIOS and MIG instances were read, or the driver has none by design.
    `clocks_event_reasons` are nvml.h's bits nvmlClocksEventReason*.
    `nvlinks` is how many links are up; `nvlink_errors` what those count, by kind.
    `fabric_state` is nvmlGpuFabricState_t's, None where there is no fabric; `fabric_healthy` is told of a GPU in it.
    `instances` are those of a GPU in MIG mode, None for a whole one.
    """

    index: int
    uuid: str = ""
    serial: str = ""
    vbios: str = ""
    pci_bus_id: str = ""
    lost: str = ""
    identified: bool = False
    recovery_action: int | None = None
    reset_required: bool = False
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    uncorrected: int | None = None
    corrected: CorrectedErrors = field(default_factory=CorrectedErrors)
    clocks_event_reasons: int | None = None
    nvlinks: int | None = None
    nvlink_errors: Mapping[str, int] = field(default_factory=dict)
    fabric_state: int | None = None
    fabric_healthy: bool | None = None
    pids: tuple[int, ...] | None = None
    instances: tuple[MigInstance, ...] | None = None

    @property
    def label(self) -> str:
        """How a person finds this GPU."""
        known_names = " ".join(part for part in (self.pci_bus_id, self.uuid) if part)
        return f"GPU {self.index} ({known_names})" if known_names else f"GPU {self.index}"


@dataclass(frozen=True)
class Vitals:
    """All GPUs at one moment. `at_s` is when the reading began, on the monotonic clock."""

    driver: str
    gpus: tuple[Vital, ...]
    simulated: bool
    at_s: float


def read_vitals(nvml: Nvml) -> Vitals:
    """The readings now. Raises NvmlUnavailableError when not even the number of GPUs can be read."""
    at_s, driver = time.monotonic(), nvml.driver_version()
    return Vitals(driver, tuple(_read(index) for index in range(nvml.gpu_count())), is_simulated(), at_s)


def _read(index: int) -> Vital:
    try:
        reader = Reader(n.nvmlDeviceGetHandleByIndex(index))
    except n.NVMLError as error:
        return Vital(index, lost=error_name(error.value))
    uuid, serial, vbios = (
        reader.text(call) for call in (n.nvmlDeviceGetUUID, n.nvmlDeviceGetSerial, n.nvmlDeviceGetVbiosVersion)
    )
    pci = reader.get(n.nvmlDeviceGetPciInfo_v3)
    rows = reader.get(n.nvmlDeviceGetRemappedRows)
    counts = [
        known(reader.ecc(n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC, place))
        for place in (n.NVML_MEMORY_LOCATION_DRAM, n.NVML_MEMORY_LOCATION_SRAM)
    ]
    dram, sram = (
        known(reader.ecc(n.NVML_MEMORY_ERROR_TYPE_CORRECTED, n.NVML_VOLATILE_ECC, place))
        for place in (n.NVML_MEMORY_LOCATION_DRAM, n.NVML_MEMORY_LOCATION_SRAM)
    )
    processes = known(read_processes(reader))
    mode = reader.get(n.nvmlDeviceGetMigMode)
    in_mig = not isinstance(mode, Unsupported) and bool(mode[0])
    instances = read_instances(reader, mode)
    return Vital(
        index=index,
        uuid=known(uuid) or "",
        serial=known(serial) or "",
        vbios=known(vbios) or "",
        pci_bus_id="" if isinstance(pci, Unsupported) else normal_bus_id(str(pci.busId)),
        identified=all(
            not isinstance(value, Unsupported) or value.by_design for value in (uuid, serial, vbios, mode, instances)
        ),
        recovery_action=known(reader.field(n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)),
        remap_pending=None if isinstance(rows, Unsupported) else bool(rows[2]),
        remap_failure=None if isinstance(rows, Unsupported) else bool(rows[3]),
        uncorrected=sum(count for count in counts if count is not None) if any(c is not None for c in counts) else None,
        corrected=CorrectedErrors(dram, sram, None if isinstance(rows, Unsupported) else int(rows[0])),
        clocks_event_reasons=known(reader.number(n.nvmlDeviceGetCurrentClocksEventReasons)),
        **_nvlink(reader),
        **_fabric(reader),
        pids=None if processes is None else tuple(process.pid for process in processes),
        instances=(known(instances) or ()) if in_mig else None,
        # Last, since any of the calls above may have found out.
        lost=reader.lost,
        reset_required=reader.reset_required,
    )


def _nvlink(reader: Reader) -> dict[str, Any]:
    active, _ = read_links(reader)
    if isinstance(active, Unsupported):
        return {"nvlinks": 0} if active.why == "not_supported" else {}
    counted = LinkCounters(reader, active).read()
    sums = {name.removeprefix("nvlink_"): known(counted[name]) for name in LINK_COUNTERS}
    return {"nvlinks": len(active), "nvlink_errors": {kind: sum_ for kind, sum_ in sums.items() if sum_ is not None}}


def _fabric(reader: Reader) -> dict[str, Any]:
    found = {name.removeprefix("fabric_"): known(value) for name, value in read_fabric(reader).items()}
    state = found["state"]
    if state != fabric_health.COMPLETED:
        # 0: there is none.
        return {"fabric_state": state or None}
    complaints = found["status"] or fabric_health.of_summary(found["health_summary"])
    return {
        "fabric_state": state,
        "fabric_healthy": not (complaints or fabric_health.of_mask(found["health_mask"] or 0)),
    }


class EventWatch:
    """Waits for the events of all GPUs at once. `why` says what keeps NVML from telling them, "" for nothing."""

    def __init__(self, gpus: int) -> None:
        self.why = ""
        self._set: Any = None
        try:
            self._set = n.nvmlEventSetCreate()
            for index in range(gpus):
                self._register(index)
        except n.NVMLError as error:
            self._failed(error)

    @property
    def ended(self) -> bool:
        """Whether NVML tells no event any more."""
        return self._set is None

    def wait(self, seconds: float) -> Iterator[XidEvent | None]:
        """The events of at most `seconds`: an XID as the kernel log has it, None for another that asks for a reading.

        NVML may report XID 0, which means nothing (leptonai/gpud issue 164): it is passed over.
        """
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if self._set is None:
                time.sleep(min(left_s, _SLICE_MS / 1000))
                return
            try:
                data = n.nvmlEventSetWait_v2(self._set, min(int(left_s * 1000) + 1, _SLICE_MS))
            except n.NVMLError as error:
                if error.value != n.NVML_ERROR_TIMEOUT:
                    self._failed(error)
                return
            kind = KINDS.get(int(data.eventType))
            if kind == "xid" and data.eventData:
                yield _xid(data)
            elif kind is not None and kind != "xid":
                yield None

    def _register(self, index: int) -> None:
        try:
            handle = n.nvmlDeviceGetHandleByIndex(index)
            wanted = n.nvmlDeviceGetSupportedEventTypes(handle) & sum(KINDS)
            if not wanted & n.nvmlEventTypeXidCriticalError:
                self.why = f"GPU {index} reports no XID events"
                return
            n.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except n.NVMLError as error:
            # One GPU without events does not silence the others.
            self.why = f"NVML events of GPU {index} failed with {error_name(error.value)}"

    def _failed(self, error: Any) -> None:
        self._set = None
        self.why = f"NVML events failed with {error_name(error.value)}"


def _xid(data: Any) -> XidEvent:
    """NVML's own report of an XID, without the text that the kernel log has."""
    code = int(data.eventData)
    reader = Reader(data.device)
    pci = reader.get(n.nvmlDeviceGetPciInfo_v3)
    bus = "" if isinstance(pci, Unsupported) else normal_bus_id(str(pci.busId))
    text = f"NVML reports XID {code}"
    return XidEvent(code, bus, None, text, int(time.monotonic() * 1e6), sxid=False)
