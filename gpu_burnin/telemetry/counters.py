"""The counters of a GPU over one run: names, units, and what became of each. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from gpu_burnin.telemetry.findings import Counter

# A reading as it travels from the sampler: a number, or NVML's word for why there is none.
Reading: TypeAlias = int | str

_ECC = [
    f"ecc_{since}_{kind}_{place}"
    for since in ("volatile", "aggregate")
    for kind in ("corrected", "uncorrected")
    for place in ("dram", "sram")
]
# Names as in GpuState where it has them. Times in nanoseconds are how long the clocks were held down, by cause.
UNITS: Mapping[str, str] = {
    **dict.fromkeys(_ECC, "errors"),
    "remapped_corrected": "rows",
    "remapped_uncorrected": "rows",
    "remap_pending": "flag",
    "remap_failure": "flag",
    "retired_single_bit": "pages",
    "retired_double_bit": "pages",
    "pcie_replays": "replays",
    "pcie_correctable_errors": "errors",
    "pcie_nonfatal_errors": "errors",
    "pcie_fatal_errors": "errors",
    "nvlink_replays": "replays",
    "nvlink_recoveries": "events",
    "nvlink_failed_recoveries": "events",
    "nvlink_crc_errors": "errors",
    "nvlink_receive_errors": "errors",
    "throttle_power_ns": "ns",
    "throttle_thermal_ns": "ns",
    "throttle_board_limit_ns": "ns",
    "throttle_reliability_ns": "ns",
    "throttle_sw_thermal_ns": "ns",
    "throttle_hw_thermal_ns": "ns",
    "throttle_power_brake_ns": "ns",
    "energy_mj": "mJ",
}
_ONE_LINK = re.compile(r"_link\d+$")


def base_name(name: str) -> str:
    """The counter that a counter of one link (nvlink_replays_link3) is part of, else the name itself."""
    return _ONE_LINK.sub("", name)


class CounterTrack:
    """Follows the counters of one GPU over the readings of a run: first and last value, and whether one fell."""

    def __init__(self) -> None:
        self._first: dict[str, Reading] = {}
        self._last: dict[str, Reading] = {}
        self._fell: dict[str, str] = {}

    def feed(self, readings: Mapping[str, Reading]) -> None:
        """Take what was read; counters that are not in `readings` are as before."""
        for name, reading in readings.items():
            before = self._last.get(name)
            if isinstance(before, int) and isinstance(reading, int) and reading < before:
                self._fell[name] = f"fell from {before} to {reading}"
            self._first.setdefault(name, reading)
            self._last[name] = reading

    def result(self, gpu: str, complete: bool) -> tuple[Counter, ...]:
        """All counters in the order of UNITS, those of single links only where they changed.

        `complete`: the last readings were taken at the end of the run.
        """
        order = {name: number for number, name in enumerate(UNITS)}
        names = sorted(self._first, key=lambda name: (order.get(base_name(name), len(order)), name))
        counters = (self._counter(gpu, name, complete) for name in names)
        return tuple(
            c for c in counters if c.name == base_name(c.name) or c.delta or (c.before is None) != (c.after is None)
        )

    def _counter(self, gpu: str, name: str, complete: bool) -> Counter:
        first, last = self._first[name], self._last[name]
        early = "" if complete else "the sampler ended early: this is its last reading"
        whys = [reading for reading in (first, last) if isinstance(reading, str)] or [self._fell.get(name, early)]
        return Counter(
            gpu=gpu,
            name=name,
            unit=UNITS.get(base_name(name), ""),
            before=first if isinstance(first, int) else None,
            after=last if isinstance(last, int) else None,
            why=whys[-1],
        )
