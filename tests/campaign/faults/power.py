"""What NVML says of a GPU while the power check loads it, as data. Times are seconds after the load's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_burnin.types import Verdict

FAIL, INCONCLUSIVE, PASS = Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS
# Watts of a limit of 700 over the time of a case, on top of the sum that the library starts with, in millijoules.
_START_MJ, _LIMIT_W, _SECONDS = 123_456_789, 700, 60
# All GPUs: full clock, no reason to hold it, warm, and an energy counter that rises at the limit.
WORKING: Mapping[str, object] = {
    "clock_graphics_mhz": 1900,
    "clocks_event_reasons": "0x0",
    "temperature_c": 55,
    "energy_mj@0.01s": f"{_START_MJ + _LIMIT_W * _SECONDS * 1000} over {_SECONDS}s",
}


@dataclass(frozen=True)
class PowerFault:
    """Lines of the faulty GPU, which replace those of WORKING by key. `codes` are reasons on it, `notices` what is only
    told of it; with `waves` the GPUs swing, otherwise they only have the mixed load. `without` are keys of WORKING
    that it does not have, `also` codes that may come with it."""

    name: str
    lines: Mapping[str, object]
    verdict: Verdict
    codes: frozenset[str] = frozenset()
    notices: frozenset[str] = frozenset()
    waves: bool = False
    without: frozenset[str] = frozenset()
    also: frozenset[str] = frozenset()

    def scenario(self, gpus: int, faulty: int) -> str:
        """The lines of all GPUs."""
        out = []
        for index in range(gpus):
            own = {key: value for key, value in WORKING.items() if index != faulty or key not in self.without}
            own |= self.lines if index == faulty else {}
            out += [f"gpu{index}.{key} = {value}\n" for key, value in own.items()]
        return "".join(out)


def _ramp(watts: float) -> str:
    return f"{_START_MJ + int(watts * _SECONDS * 1000)} over {_SECONDS}s"


_ENERGY = frozenset({"energy_mj@0.01s"})
_BRAKE = frozenset({"POWER_BRAKE", "THROTTLED"})
POWER_FAULTS: dict[str, PowerFault] = {
    fault.name: fault
    for fault in (
        PowerFault("power brake in waves", {"clocks_event_reasons@0.8s": "0x84"}, FAIL, _BRAKE, waves=True),
        PowerFault("power brake under mixed load", {"clocks_event_reasons@0.8s": "0x80"}, FAIL, _BRAKE),
        PowerFault(
            "hardware slowdown in waves", {"clocks_event_reasons@0.8s": "0x8"}, FAIL, frozenset({"THROTTLED"}),
            frozenset({"POWER_BRAKE"}), waves=True,
        ),
        PowerFault(
            "thermal slowdown under mixed load", {"clocks_event_reasons@0.8s": "0x40"}, FAIL, frozenset({"THROTTLED"}),
            frozenset({"THROTTLED"}),
        ),
        PowerFault("clock capped", {"clock_graphics_mhz": 1200}, PASS, notices=frozenset({"CLOCK_CAPPED"})),
        PowerFault("one hot gpu", {"temperature_c": 72}, PASS, notices=frozenset({"TEMPERATURE_HIGH"})),
        PowerFault(
            "draws half of its limit", {"energy_mj@0.01s": _ramp(350)}, PASS, notices=frozenset({"POWER_LOW"})
        ),
        PowerFault(
            "energy counter falls", {"energy_mj": _START_MJ, "energy_mj@1.2s": 5}, INCONCLUSIVE,
            frozenset({"COUNTER_LOST"}), frozenset({"COUNTER_LOST"}), without=_ENERGY,
        ),
        PowerFault(
            "energy counter jumps", {"energy_mj": _START_MJ, "energy_mj@1.2s": _START_MJ * 1000}, PASS,
            notices=frozenset({"COUNTER_LOST"}), without=_ENERGY,
        ),
        PowerFault("energy counter stands still", {"energy_mj": _START_MJ}, PASS, without=_ENERGY),
        PowerFault(
            "energy counter not supported", {"error.nvmlDeviceGetTotalEnergyConsumption": "not_supported"}, PASS
        ),
        PowerFault(
            "energy counter vanishes", {"error.nvmlDeviceGetTotalEnergyConsumption@1.2s": "not_supported"},
            INCONCLUSIVE, frozenset({"COUNTER_LOST"}),
        ),
        PowerFault(
            "falls off the bus under load", {"lost@1.0s": "calls"}, FAIL, frozenset({"GPU_LOST"}),
            also=frozenset({"TELEMETRY_LOST", "COUNTER_LOST"}),
        ),
    )
}  # fmt: skip
