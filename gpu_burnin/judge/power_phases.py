"""The phases of the power check on one GPU, out of what the samplers saw while they lasted: pure, no I/O.

Power over a phase is the rise of the GPU's energy counter by the time it took. NVML's own power is an average over a
second on most models: under the steady mixed load it may stand in for a sum that cannot be had, but it is never
taken for evidence of waves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from gpu_burnin.checks.power.result import PhasePower, PowerCoverage, WavesMade
from gpu_burnin.telemetry.findings import GpuSeries
from gpu_burnin.types import Coverage

WAVES, MIXED = "waves", "mixed"
ENERGY_SOURCE = "energy counter (NVML)"
POWER_SOURCE = "NVML power, on most models an average over a second"
# Bits of the clocks event reasons (nvml.h).
IDLE, POWER_CAP, SLOWDOWN, SW_THERMAL, HW_THERMAL, BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
# What holds a clock down for a reason; a GPU that NVML calls idle is not under load in its eyes.
_EXPLAINS = IDLE | POWER_CAP | SLOWDOWN | SW_THERMAL | HW_THERMAL | BRAKE
# A GPU does not draw more than some twice its limit, not even for a moment: a sum that says so has jumped.
_MOST_OVER_LIMIT = 3.0
# Stands in for a limit that the GPU does not tell: our own figure.
_NO_LIMIT_W = 1000.0


@dataclass(frozen=True)
class Energy:
    """Joules over `seconds`; None with `why` where the sum could not be used. `jumped`: it is not to be trusted."""

    joules: float | None
    seconds: float
    why: str = ""
    jumped: bool = False


@dataclass(frozen=True)
class Phase:
    """One phase on one GPU. `clock_mhz` are the means of whole seconds, `bits` the seconds in which each was seen."""

    name: str
    started_s: float
    ended_s: float
    energy: Energy
    power_w: float | None
    source: str | None
    clock_mhz: tuple[float, ...]
    clock_lowest_mhz: float | None
    explained: bool
    temperature_c: float | None
    bits: Mapping[int, float]

    def seconds_of(self, bits: int) -> float:
        """The longest time for which one of some bits was seen, in seconds."""
        return max((seconds for bit, seconds in self.bits.items() if bit & bits), default=0.0)

    def result(self, limit_w: float | None, clock_max_mhz: float | None) -> PhasePower:
        """For the report."""
        at_most = [mhz for mhz in self.clock_mhz if clock_max_mhz and mhz >= clock_max_mhz]
        return PhasePower(
            seconds=round(self.energy.seconds, 3),
            energy_j=None if self.energy.joules is None else round(self.energy.joules, 1),
            energy_why=self.energy.why or None,
            mean_power_w=None if self.power_w is None else round(self.power_w, 1),
            power_source=self.source,
            share_of_limit=round(self.power_w / limit_w, 3) if self.power_w and limit_w else None,
            clock_lowest_mhz=self.clock_lowest_mhz,
            clock_median_mhz=median(self.clock_mhz) if self.clock_mhz else None,
            clock_share_at_maximum=round(len(at_most) / len(self.clock_mhz), 3) if self.clock_mhz else None,
            temperature_highest_c=self.temperature_c,
            clocks_event_reasons_s={f"{bit:#x}": round(seconds, 2) for bit, seconds in self.bits.items()},
        )


def phases_of(series: GpuSeries, coverage: Coverage) -> dict[str, Phase]:
    """The phases that a power check says it had; times in its coverage are seconds of CLOCK_MONOTONIC."""
    if not isinstance(coverage, PowerCoverage):
        return {}
    limit_w = float(series.limits.get("power_limit_w", 0)) or _NO_LIMIT_W
    found: dict[str, Phase] = {}
    if isinstance(coverage.waves, WavesMade):
        found[WAVES] = _phase(WAVES, series, coverage.waves.started_s, coverage.waves.ended_s, limit_w, stand_in=False)
    if coverage.mixed.run:
        # The host's own load moves no GPU: what NVML says of power then is not of this check.
        real = not coverage.simulated
        found[MIXED] = _phase(MIXED, series, coverage.mixed.started_s, coverage.mixed.ended_s, limit_w, stand_in=real)
    return found


def _phase(name: str, series: GpuSeries, start_s: float, end_s: float, limit_w: float, *, stand_in: bool) -> Phase:
    begins = _begins(series)
    whole = [n for n, at in enumerate(series.t_s) if begins[n] >= start_s and at <= end_s]
    touched = [n for n, at in enumerate(series.t_s) if at > start_s and begins[n] < end_s]
    energy = energy_over(series, start_s, end_s, limit_w)
    power_w, source = (None, None) if energy.joules is None else (energy.joules / energy.seconds, ENERGY_SOURCE)
    powers = _known(series.columns, "power_w", whole[1:])  # the first second still has rest in its average
    if power_w is None and stand_in and powers:
        power_w, source = sum(powers) / len(powers), POWER_SOURCE
    clocks = _known(series.columns, "clock_sm_mhz", whole)
    bits = series.columns.get("clocks_event_reasons", ())
    explained = [n for n in whole if n < len(bits) and int(bits[n] or 0) & _EXPLAINS]
    return Phase(
        name,
        start_s,
        end_s,
        energy,
        power_w,
        source,
        tuple(clocks),
        min(_known(series.lowest, "clock_sm_mhz", whole), default=None),
        2 * len(explained) > len(whole),
        max(_known(series.highest, "temperature_c", touched), default=None),
        _bit_seconds(series, begins, touched, start_s, end_s),
    )


def _begins(series: GpuSeries) -> list[float]:
    """When each bucket began: the end of the one before; the first is as long as its samples took."""
    first = series.t_s[0] - (series.t_s[1] - series.t_s[0] if len(series.t_s) > 1 else 1.0) if series.t_s else 0.0
    return [first, *series.t_s[:-1]]


def _known(columns: Mapping[str, tuple[float | None, ...]], name: str, buckets: Sequence[int]) -> list[float]:
    values = columns.get(name, ())
    return [value for n in buckets if n < len(values) and (value := values[n]) is not None]


def _bit_seconds(
    series: GpuSeries, begins: Sequence[float], touched: Sequence[int], start_s: float, end_s: float
) -> dict[int, float]:
    """For each bit the seconds of the phase that lie in buckets in which it was set: no less than it was."""
    found: dict[int, float] = {}
    values = series.columns.get("clocks_event_reasons", ())
    for n in touched:
        bits = int(values[n] or 0) if n < len(values) else 0
        seconds = min(series.t_s[n], end_s) - max(begins[n], start_s)
        while bits:
            lowest = bits & -bits
            found[lowest] = found.get(lowest, 0.0) + seconds
            bits ^= lowest
    return found


def outside(series: GpuSeries, phase: Phase, bit: int) -> int:
    """In how many samples a bit was set outside a phase, at the least: a bucket does not say which of its were."""
    values = series.columns.get("clocks_event_reasons", ())
    buckets = [
        (begin, end)
        for begin, end, bits in zip(_begins(series), series.t_s, values, strict=False)
        if int(bits or 0) & bit
    ]
    within = [end - begin for begin, end in buckets if end > phase.started_s and begin < phase.ended_s]
    apart = series.reason_samples.get(bit, 0) - round(sum(within) / series.interval_s)
    return max(len(buckets) - len(within), apart)


def energy_over(series: GpuSeries, start_s: float, end_s: float, limit_w: float) -> Energy:
    """The rise of the energy counter between the first and the last bucket that end within the phase.

    A sum that fell, rose faster than a GPU can draw, or stood still says nothing.
    """
    sums = series.highest.get("energy_mj", ())  # the highest of a bucket of a rising sum is its last
    points = [(at, sums[n]) for n, at in enumerate(series.t_s) if start_s <= at <= end_s and n < len(sums) and sums[n]]
    known = [(at, value / 1000) for at, value in points if value is not None]
    if not sums:
        return Energy(None, 0.0, "the GPU has no energy counter")
    if len(known) < 2:
        return Energy(None, 0.0, "the phase was too short for two readings of the energy counter")
    for (before_s, before), (at_s, after) in pairwise(known):
        drawn_w = (after - before) / (at_s - before_s) if at_s > before_s else 0.0
        if not 0 <= drawn_w <= _MOST_OVER_LIMIT * limit_w:
            return Energy(None, 0.0, f"the energy counter jumped: {drawn_w:.0f} W for {at_s - before_s:.1f} s", True)
    joules, seconds = known[-1][1] - known[0][1], known[-1][0] - known[0][0]
    if joules == 0:
        return Energy(None, seconds, "the energy counter stood still")
    return Energy(joules, seconds)
