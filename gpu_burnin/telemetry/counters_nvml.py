"""Reading the counters of one GPU through nvidia-ml-py. Only sampler processes import this."""

from __future__ import annotations

from functools import partial

import pynvml as n

from gpu_burnin.hardware import load_skus
from gpu_burnin.telemetry.counters import Reading, base_name
from gpu_burnin.telemetry.nvml_links import LinkCounters, link_state
from gpu_burnin.telemetry.nvml_reader import Reader, by_age
from gpu_burnin.telemetry.state import Unsupported, Whole

_TOO_OLD = Unsupported("driver_too_old")
# Asked only of drivers that have them (skus.yaml): earlier ones knew other values by these ids.
_CLOCK_TIME_FIELDS = {
    "throttle_sw_thermal_ns": n.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    "throttle_hw_thermal_ns": n.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    "throttle_power_brake_ns": n.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
}
# nvmlDeviceGetViolationStatus (nanoseconds) goes with CUDA 14; the field values stay.
_POLICIES = {
    "throttle_power_ns": (n.NVML_PERF_POLICY_POWER, n.NVML_FI_DEV_PERF_POLICY_POWER),
    "throttle_thermal_ns": (n.NVML_PERF_POLICY_THERMAL, n.NVML_FI_DEV_PERF_POLICY_THERMAL),
    "throttle_board_limit_ns": (n.NVML_PERF_POLICY_BOARD_LIMIT, n.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT),
    "throttle_reliability_ns": (n.NVML_PERF_POLICY_RELIABILITY, n.NVML_FI_DEV_PERF_POLICY_RELIABILITY),
}
_PLACES = {"dram": n.NVML_MEMORY_LOCATION_DRAM, "sram": n.NVML_MEMORY_LOCATION_SRAM}
_KINDS = {"corrected": n.NVML_MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
_SINCE = {"volatile": n.NVML_VOLATILE_ECC, "aggregate": n.NVML_AGGREGATE_ECC}


class CounterReader:
    """The counters of one GPU. `driver` is the driver's version, such as 580.95.05."""

    def __init__(self, reader: Reader, driver: str) -> None:
        self._reader = reader
        self._driver = driver
        self._links = LinkCounters(reader, self._active_links())

    def read(self) -> dict[str, Reading]:
        """Every counter of UNITS, and those of single links: a number, or NVML's word for why there is none."""
        found: dict[str, Whole] = {
            **self._ecc(),
            **self._memory(),
            **self._pcie(),
            **self._times(),
            **self._links.read(),
        }
        found["energy_mj"] = self._reader.number(n.nvmlDeviceGetTotalEnergyConsumption)
        aged = {name: by_age(base_name(name), value, self._driver) for name, value in found.items()}
        return {name: value.why if isinstance(value, Unsupported) else value for name, value in aged.items()}

    def _ecc(self) -> dict[str, Whole]:
        return {
            f"ecc_{since}_{kind}_{place}": self._reader.ecc(kind_id, since_id, place_id)
            for since, since_id in _SINCE.items()
            for kind, kind_id in _KINDS.items()
            for place, place_id in _PLACES.items()
        }

    def _memory(self) -> dict[str, Whole]:
        rows = self._reader.get(n.nvmlDeviceGetRemappedRows)
        names = ("remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failure")
        return {
            **{name: rows if isinstance(rows, Unsupported) else int(rows[i]) for i, name in enumerate(names)},
            "retired_single_bit": self._reader.number(lambda h: len(n.nvmlDeviceGetRetiredPages(h, 0))),
            "retired_double_bit": self._reader.number(lambda h: len(n.nvmlDeviceGetRetiredPages(h, 1))),
        }

    def _pcie(self) -> dict[str, Whole]:
        return {
            "pcie_replays": self._reader.number(n.nvmlDeviceGetPcieReplayCounter),
            "pcie_correctable_errors": self._reader.field(n.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS),
            "pcie_nonfatal_errors": self._reader.field(n.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR),
            "pcie_fatal_errors": self._reader.field(n.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR),
        }

    def _times(self) -> dict[str, Whole]:
        table = load_skus()
        fields = {
            name: _TOO_OLD if table.is_newer(name, self._driver) else self._reader.field(field)
            for name, field in _CLOCK_TIME_FIELDS.items()
        }
        return {**{name: self._violation(*ids) for name, ids in _POLICIES.items()}, **fields}

    def _violation(self, policy: int, field: int) -> Whole:
        value = self._reader.number(lambda h: n.nvmlDeviceGetViolationStatus(h, policy).violationTime)
        if isinstance(value, Unsupported) and value.why in ("function_not_found", "deprecated"):
            return self._reader.field(field)
        return value

    def _active_links(self) -> tuple[int, ...]:
        """Numbers of the links that are up; what a link that is down counts says nothing, and may not be readable.

        Links beyond the last say invalid argument.
        """
        links: list[int] = []
        for link in range(n.NVML_NVLINK_MAX_LINKS):
            state = self._reader.number(partial(link_state, link=link))
            if state == Unsupported("invalid_argument"):
                break
            if state == n.NVML_FEATURE_ENABLED:
                links.append(link)
        return tuple(links)
