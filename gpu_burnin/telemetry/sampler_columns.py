"""What is sampled of a GPU, how each value is read, and buckets of samples. Only sampler processes import this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pynvml as n

from gpu_burnin.telemetry.nvml_reader import Reader
from gpu_burnin.telemetry.state import Real, Unsupported, known

REASONS = "clocks_event_reasons"
ENERGY = "energy_mj"
_Read = Callable[[Reader], Real]


def _number(call: Callable[[Any], Any]) -> _Read:
    return lambda reader: reader.number(call)


# Each value with the ways to read it: the first that driver and GPU know is used.
COLUMNS: Mapping[str, tuple[_Read, ...]] = {
    "temperature_c": (
        _number(lambda h: n.nvmlDeviceGetTemperatureV(h, n.NVML_TEMPERATURE_GPU)),
        _number(lambda h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
    ),
    "temperature_margin_c": (_number(n.nvmlDeviceGetMarginTemperature),),
    "temperature_memory_c": (lambda reader: reader.field(n.NVML_FI_DEV_MEMORY_TEMP),),
    "power_w": (lambda reader: reader.watts(n.nvmlDeviceGetPowerUsage),),
    # A sum since the driver was loaded, renewed each 20 to 100 ms: power over any time is its rise by that time.
    ENERGY: (_number(n.nvmlDeviceGetTotalEnergyConsumption),),
    "clock_sm_mhz": (_number(lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),),
    "clock_memory_mhz": (_number(lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),),
    REASONS: (
        _number(n.nvmlDeviceGetCurrentClocksEventReasons),
        _number(n.nvmlDeviceGetCurrentClocksThrottleReasons),
    ),
    "utilization_percent": (_number(lambda h: n.nvmlDeviceGetUtilizationRates(h).gpu),),
    "pcie_generation": (_number(n.nvmlDeviceGetCurrPcieLinkGeneration),),
}
_LIMITS: Mapping[str, _Read] = {
    "slowdown_c": _number(lambda h: n.nvmlDeviceGetTemperatureThreshold(h, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)),
    "memory_max_c": _number(lambda h: n.nvmlDeviceGetTemperatureThreshold(h, n.NVML_TEMPERATURE_THRESHOLD_MEM_MAX)),
    "tlimit_slowdown_c": lambda reader: reader.field(n.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT),
    "pcie_generation": _number(n.nvmlDeviceGetMaxPcieLinkGeneration),
    "power_limit_w": lambda reader: reader.watts(n.nvmlDeviceGetEnforcedPowerLimit),
    "power_default_w": lambda reader: reader.watts(n.nvmlDeviceGetPowerManagementDefaultLimit),
    "clock_sm_max_mhz": _number(lambda h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM)),
}


class Columns:
    """The values one GPU can give; `unsupported` says why the others are left out."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._reads: dict[str, _Read] = {}
        self.unsupported: dict[str, str] = {}
        for name, ways in COLUMNS.items():
            for way in ways:
                value = way(reader)
                if not isinstance(value, Unsupported) or not value.by_design:
                    self._reads[name] = way
                    break
                self.unsupported[name] = value.why

    def sample(self) -> dict[str, float | None]:
        """One value for each column, None for one that could not be read this time."""
        return {name: known(read(self._reader)) for name, read in self._reads.items()}

    def limits(self) -> dict[str, int]:
        """What the GPU tells of its limits: temperatures at which it slows down, power, clock, PCIe generation."""
        found = {name: known(read(self._reader)) for name, read in _LIMITS.items()}
        return {name: int(value) for name, value in found.items() if value is not None}


class Bucket:
    """Ten samples: for each column lowest, mean, highest; the bits are joined, and counted one by one."""

    def __init__(self) -> None:
        self.samples = 0
        self.late = 0
        self._values: dict[str, list[float]] = {}
        self._bits: dict[int, int] = {}

    def add(self, sample: Mapping[str, float | None]) -> None:
        """Take one sample."""
        self.samples += 1
        for name, value in sample.items():
            if value is None:
                # A sum is taken for that of the bucket's end: one from before the GPU was lost would be a lower power.
                if name == ENERGY:
                    self._values.pop(name, None)
                continue
            if name == REASONS:
                self._add_bits(int(value))
            self._values.setdefault(name, []).append(value)

    def _add_bits(self, bits: int) -> None:
        while bits:
            lowest = bits & -bits
            self._bits[lowest] = self._bits.get(lowest, 0) + 1
            bits ^= lowest

    def message(self, t_s: float) -> dict[str, Any]:
        """The bucket as a message to the parent; `t_s` is when it ended."""
        columns = {
            name: [min(values), round(sum(values) / len(values), 3), max(values)]
            for name, values in self._values.items()
            if name != REASONS
        }
        return {
            "type": "sample",
            "t_s": round(t_s, 4),
            "samples": self.samples,
            "late": self.late,
            "columns": columns,
            "reasons": sum(self._bits) if REASONS in self._values else None,
            "bits": {str(bit): count for bit, count in self._bits.items()},
        }
