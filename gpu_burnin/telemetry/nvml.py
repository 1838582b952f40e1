"""Typed reading of NVML through nvidia-ml-py. Only worker processes import this: NVML may hang or crash."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import pynvml

from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.system.own_name import host_name
from gpu_burnin.telemetry.nvml_fabric import read_fabric
from gpu_burnin.telemetry.nvml_library import LIBRARY, initialise, is_simulated
from gpu_burnin.telemetry.nvml_links import read_links
from gpu_burnin.telemetry.nvml_mig import read_instances
from gpu_burnin.telemetry.nvml_reader import Reader, by_age, error_name
from gpu_burnin.telemetry.pci import normal_bus_id
from gpu_burnin.telemetry.state import (
    GpuState,
    Links,
    NodeState,
    Processes,
    ProcessUse,
    Unsupported,
    Whole,
)

_T = TypeVar("_T")

_VOLATILE, _AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
_CORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_DRAM, _SRAM = pynvml.NVML_MEMORY_LOCATION_DRAM, pynvml.NVML_MEMORY_LOCATION_SRAM

_FIXES: dict[int, str] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        f"{LIBRARY} was not found; install the NVIDIA driver (its compute libraries) or set LD_LIBRARY_PATH"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA kernel module is not loaded; run modprobe nvidia and look at the kernel log if that fails"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        f"{LIBRARY} and the loaded NVIDIA kernel module are of different versions (NVML error 18), as after a "
        "driver update without a restart; reboot, or unload and load the nvidia modules"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "NVML refuses access to the GPUs; run as root, with /dev/nvidia* visible",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        f"{LIBRARY} lacks a function that every supported driver has; update the NVIDIA driver to 535 or newer"
    ),
}


class NvmlUnavailableError(GpuBurninError):
    """NVML as a whole cannot be used; the message is one sentence with the fix, `code` is NVML's."""

    def __init__(self, code: int) -> None:
        fix = _FIXES.get(
            code,
            f"NVML failed with {error_name(code)} (error {code}); look at the kernel log for NVRM lines, then reboot",
        )
        super().__init__(f"{host_name()}: {fix}", EXIT_INCONCLUSIVE)
        self.code = code


class Nvml:
    """NVML opened and closed: `with Nvml() as nvml`. Raises NvmlUnavailableError when it cannot be."""

    def __enter__(self) -> Self:
        try:
            initialise()
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(error.value) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pynvml.nvmlShutdown()

    def driver_version(self) -> str:
        """Version of the driver, such as 580.95.05."""
        return _must(lambda: str(pynvml.nvmlSystemGetDriverVersion()))

    def nvml_version(self) -> str:
        """Version of the library."""
        return _must(lambda: str(pynvml.nvmlSystemGetNVMLVersion()))

    def cuda_version(self) -> str:
        """Highest CUDA version of the driver, such as 13.0."""
        number = _must(lambda: int(pynvml.nvmlSystemGetCudaDriverVersion_v2()))
        return f"{number // 1000}.{number % 1000 // 10}"

    def gpu_count(self) -> int:
        """Number of GPUs that the driver knows, lost ones included."""
        return _must(lambda: int(pynvml.nvmlDeviceGetCount()))


def _must(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(error.value) from error


def _over_links(reader: Reader, links: Links, read: Callable[[int], Whole]) -> Whole:
    """Sum of a per-link counter; one unreadable link makes the sum unreadable."""
    if isinstance(links, Unsupported):
        return links
    total = 0
    for link in links:
        value = read(link)
        if isinstance(value, Unsupported):
            return value
        total += value
    return total


def _link_errors(reader: Reader, links: Links, counter: int) -> Whole:
    def read(link: int) -> Whole:
        return reader.number(lambda h: pynvml.nvmlDeviceGetNvLinkErrorCounter(h, link, counter))

    return _over_links(reader, links, read)


def read_processes(reader: Reader) -> Processes:
    """Compute, graphics and MPS processes; a process in several lists counts once."""
    found: dict[int, ProcessUse] = {}
    calls = (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    )
    for number, call in enumerate(calls):
        listed = reader.get(call)
        if isinstance(listed, Unsupported):
            # Graphics and MPS lists do not exist everywhere; the compute list must.
            if number == 0:
                return listed
            continue
        for process in listed:
            found.setdefault(process.pid, ProcessUse(process.pid, process.usedGpuMemory))
    return tuple(found.values())


def _inforom_valid(reader: Reader) -> bool | Unsupported:
    value = reader.get(lambda h: pynvml.nvmlDeviceValidateInforom(h) is None)
    return False if value == Unsupported("corrupted_inforom") else value


def _sram_status(handle: Any) -> Any:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return status


def _part(value: Any | Unsupported, pick: Callable[[Any], _T]) -> _T | Unsupported:
    """One member of a structure that was read, or why the structure was not."""
    return value if isinstance(value, Unsupported) else pick(value)


def _read_gpu(index: int, driver_version: str) -> GpuState:
    try:
        reader = Reader(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        return _unreachable(index, driver_version, error_name(error.value))
    n = pynvml
    pci = reader.get(n.nvmlDeviceGetPciInfo_v3)
    ecc = reader.get(n.nvmlDeviceGetEccMode)
    mig = reader.get(n.nvmlDeviceGetMigMode)
    rows = reader.get(n.nvmlDeviceGetRemappedRows)
    repair = reader.get(n.nvmlDeviceGetRepairStatus)
    active, inactive = read_links(reader)
    populated: Links = active
    if not isinstance(active, Unsupported) and not isinstance(inactive, Unsupported):
        populated = active + inactive
    uuid = reader.text(n.nvmlDeviceGetUUID)
    values: dict[str, Any] = {
        "uuid": "" if isinstance(uuid, Unsupported) else uuid,
        "serial": reader.text(n.nvmlDeviceGetSerial),
        "pci_bus_id": "" if isinstance(pci, Unsupported) else normal_bus_id(str(pci.busId)),
        "pci_device_id": 0 if isinstance(pci, Unsupported) else int(pci.pciDeviceId),
        "pci_subsystem_id": 0 if isinstance(pci, Unsupported) else int(pci.pciSubSystemId),
        "name": reader.text(n.nvmlDeviceGetName),
        "gsp_firmware": reader.text(n.nvmlDeviceGetGspFirmwareVersion),
        "vbios": reader.text(n.nvmlDeviceGetVbiosVersion),
        "inforom_image": reader.text(n.nvmlDeviceGetInforomImageVersion),
        "board_part_number": reader.text(n.nvmlDeviceGetBoardPartNumber),
        "compute_capability": reader.text(lambda h: "{}.{}".format(*n.nvmlDeviceGetCudaComputeCapability(h))),
        "memory_bytes": reader.number(lambda h: n.nvmlDeviceGetMemoryInfo(h).total),
        "inforom_valid": _inforom_valid(reader),
        "persistence": reader.flag(n.nvmlDeviceGetPersistenceMode),
        "ecc_enabled": _part(ecc, lambda modes: bool(modes[0])),
        "ecc_pending": _part(ecc, lambda modes: bool(modes[1])),
        "sram_threshold_exceeded": reader.flag(lambda h: _sram_status(h).bThresholdExceeded),
        "remapped_corrected": _part(rows, lambda row: int(row[0])),
        "remapped_uncorrected": _part(rows, lambda row: int(row[1])),
        "remap_pending": _part(rows, lambda row: bool(row[2])),
        "remap_failure": _part(rows, lambda row: bool(row[3])),
        "retired_single_bit": reader.number(lambda h: len(n.nvmlDeviceGetRetiredPages(h, 0))),
        "retired_double_bit": reader.number(lambda h: len(n.nvmlDeviceGetRetiredPages(h, 1))),
        "retired_pending": reader.flag(n.nvmlDeviceGetRetiredPagesPendingStatus),
        "recovery_action": reader.field(n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        "channel_repair_pending": _part(repair, lambda status: bool(status[0])),
        "tpc_repair_pending": _part(repair, lambda status: bool(status[1])),
        "unrepairable_memory": reader.flag(n.nvmlDeviceGetUnrepairableMemoryFlag_v1),
        "mig_enabled": _part(mig, lambda modes: bool(modes[0])),
        "mig_pending": _part(mig, lambda modes: bool(modes[1])),
        "power_draw_w": reader.watts(n.nvmlDeviceGetPowerUsage),
        "power_limit_w": reader.watts(n.nvmlDeviceGetPowerManagementLimit),
        "power_enforced_w": reader.watts(n.nvmlDeviceGetEnforcedPowerLimit),
        "power_default_w": reader.watts(n.nvmlDeviceGetPowerManagementDefaultLimit),
        "energy_mj": reader.number(n.nvmlDeviceGetTotalEnergyConsumption),
        "clock_sm_mhz": reader.number(lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
        "clock_memory_mhz": reader.number(lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
        "max_clock_sm_mhz": reader.number(lambda h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)),
        "max_clock_memory_mhz": reader.number(lambda h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_MEM)),
        "clocks_event_reasons": _clocks_event_reasons(reader),
        "temperature_c": _temperature(reader),
        "temperature_margin_c": reader.number(n.nvmlDeviceGetMarginTemperature),
        "temperature_slowdown_c": reader.number(lambda h: n.nvmlDeviceGetTemperatureThreshold(h, 1)),
        "pcie_generation": reader.number(n.nvmlDeviceGetCurrPcieLinkGeneration),
        "pcie_max_generation": reader.number(n.nvmlDeviceGetMaxPcieLinkGeneration),
        "pcie_width": reader.number(n.nvmlDeviceGetCurrPcieLinkWidth),
        "pcie_max_width": reader.number(n.nvmlDeviceGetMaxPcieLinkWidth),
        "pcie_replays": reader.number(n.nvmlDeviceGetPcieReplayCounter),
        "pcie_fatal_errors": reader.field(n.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR),
        "nvlink_active": active,
        "nvlink_inactive": inactive,
        "nvlink_replays": _link_errors(reader, populated, n.NVML_NVLINK_ERROR_DL_REPLAY),
        "nvlink_recoveries": _link_errors(reader, populated, n.NVML_NVLINK_ERROR_DL_RECOVERY),
        "nvlink_crc_errors": _link_errors(reader, populated, n.NVML_NVLINK_ERROR_DL_CRC_FLIT),
        "nvlink_failed_recoveries": _over_links(
            reader,
            populated,
            lambda link: reader.field(n.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, link),
        ),
        **read_fabric(reader),
        "processes": read_processes(reader),
        "mig_instances": read_instances(reader, mig),
    }
    for counter_name, counter in (("volatile", _VOLATILE), ("aggregate", _AGGREGATE)):
        for kind_name, kind in (("corrected", _CORRECTED), ("uncorrected", _UNCORRECTED)):
            for place_name, place in (("dram", _DRAM), ("sram", _SRAM)):
                values[f"ecc_{counter_name}_{kind_name}_{place_name}"] = reader.ecc(kind, counter, place)
    values = {name: by_age(name, value, driver_version) for name, value in values.items()}
    # Last, since any of the calls above may have found out.
    return GpuState(
        index=index,
        lost=reader.lost,
        reset_required=reader.reset_required,
        driver_version=driver_version,
        **values,
    )


def _clocks_event_reasons(reader: Reader) -> Whole:
    """The bits, under the older name of the function for drivers before 535.54."""
    value = reader.number(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
    if value == Unsupported("function_not_found"):
        return reader.number(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    return value


def _temperature(reader: Reader) -> Whole:
    """Degrees Celsius of the GPU core; drivers before 570 have only the older function."""
    value = reader.number(lambda h: pynvml.nvmlDeviceGetTemperatureV(h, pynvml.NVML_TEMPERATURE_GPU))
    if isinstance(value, Unsupported) and value.by_design:
        return reader.number(lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU))
    return value


def _unreachable(index: int, driver_version: str, why: str) -> GpuState:
    """The state of a GPU that gives not even a handle."""
    fixed: dict[str, Any] = {
        "index": index, "lost": why, "reset_required": why == "reset_required", "uuid": "", "pci_bus_id": "",
        "pci_device_id": 0, "pci_subsystem_id": 0, "driver_version": driver_version,
    }  # fmt: skip
    rest: dict[str, Any] = {name: Unsupported(why) for name in GpuState.__dataclass_fields__ if name not in fixed}
    return GpuState(**fixed, **rest)


def read_inventory(nvml: Nvml) -> tuple[GpuState, ...]:
    """Everything the state check needs, of every GPU; a lost GPU is data, not an error.

    Raises NvmlUnavailableError when not even the number of GPUs can be read.
    """
    driver = nvml.driver_version()
    return tuple(_read_gpu(index, driver) for index in range(nvml.gpu_count()))


def read_node() -> NodeState:
    """Open NVML, read the node, close it. Raises NvmlUnavailableError."""
    with Nvml() as nvml:
        return NodeState(
            simulated=is_simulated(),
            driver_version=nvml.driver_version(),
            cuda_version=nvml.cuda_version(),
            nvml_version=nvml.nvml_version(),
            gpus=read_inventory(nvml),
        )
