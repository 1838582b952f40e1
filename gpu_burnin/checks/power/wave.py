"""Square waves of load: which frequencies for how long, when each edge is due, and what became of the waves.

A wave of frequency f has f edges up and f edges down a second. From an edge up on the GPU works for half a period,
then it rests for the other half. Edge number k of a wave is due at start + k / (2 f) on CLOCK_MONOTONIC: it is
computed from the start each time, so late work moves no later edge. All GPUs of a node have the same start, and so
the same edges, without another word between them.

What is told of the edges is the host's clock just before the first launch and just after the last result; how long
the GPU worked is by events of the device. NVML's power is an average over a second on most models, so it is no
evidence of waves and is never used as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpu_burnin.checks.power.result import Frequency
from gpu_burnin.settings.config import NEVER

# 0.5 to 50 Hz, where voltage regulators (fast) and a site's supply and cooling (slow) answer.
FREQUENCIES_HZ: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
# A sweep: what resonates between the seven above is met too.
SWEEP_HZ: tuple[float, ...] = (0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0, 30.0, 50.0)
# Without a GPU: a few edges, slow enough for many simulated GPUs on few cores.
SIMULATED: tuple[tuple[float, int], ...] = ((2.0, 1), (5.0, 2), (10.0, 3))
# The part of the check's budget that goes to waves where there are any; the rest is mixed load.
WAVE_SHARE = 0.6
# Part of a wave's periods that must have been made for the frequency to count as exercised.
LEAST_MADE = 0.9


@dataclass(frozen=True)
class Limits:
    """What a wave has to be, in parts of a half period.

    `fill` is filled with work, so that the GPU rests before the next edge. An edge up may be late by `late`, and work
    may last as much beyond the edge down. A half period in which the GPU worked less than `least_load` was no load.
    """

    fill: float
    late: float
    least_load: float


ON_DEVICE = Limits(fill=0.9, late=0.1, least_load=0.5)
# Many simulated GPUs on few cores are slow and late for reasons of their own: little work, long patience.
WITHOUT_DEVICE = Limits(fill=0.2, late=0.9, least_load=0.0)


@dataclass(frozen=True)
class Wave:
    """`periods` periods of one frequency."""

    frequency_hz: float
    periods: int

    @property
    def half_s(self) -> float:
        """Seconds from an edge to the next."""
        return 0.5 / self.frequency_hz

    @property
    def seconds(self) -> float:
        """From the first edge up to the end of the last rest."""
        return self.periods / self.frequency_hz


@dataclass(frozen=True)
class Period:
    """One period: number within its wave, the edge up and the edge down, in seconds of CLOCK_MONOTONIC."""

    wave: Wave
    number: int
    rise_s: float
    fall_s: float


def may_wave(mode: str) -> bool:
    """Whether a run swings its power at all where this says when (power_waves: always, granted or never)."""
    return mode != NEVER


def waves_for(level: str, seconds: float, simulated: bool = False) -> tuple[Wave, ...]:
    """The waves of a level within about `seconds`, at least one period of each; none in a quick run."""
    if level == "quick":
        return ()
    if simulated:
        return tuple(Wave(frequency, periods) for frequency, periods in SIMULATED)
    frequencies = SWEEP_HZ if level == "extended" else FREQUENCIES_HZ
    each_s = max(0.0, seconds) / len(frequencies)
    return tuple(Wave(frequency, max(1, round(each_s * frequency))) for frequency in frequencies)


def total_s(waves: Sequence[Wave]) -> float:
    """Seconds of all waves, one after the other."""
    return sum(wave.seconds for wave in waves)


def periods_of(wave: Wave, start_s: float) -> Iterator[Period]:
    """The periods of a wave whose first edge is due at `start_s`."""
    for number in range(wave.periods):
        rise_s = start_s + 2 * number * wave.half_s
        yield Period(wave, number, rise_s, rise_s + wave.half_s)


def starts(waves: Sequence[Wave], start_s: float) -> tuple[float, ...]:
    """When the first edge of each wave is due."""
    return tuple(start_s + total_s(waves[:index]) for index in range(len(waves)))


@dataclass
class WaveRecord:
    """What became of one wave. Times in seconds; `first_edge_s` is on CLOCK_MONOTONIC, None if no edge was made."""

    wave: Wave
    start_s: float
    limits: Limits = ON_DEVICE
    made: int = 0
    edges_missed: int = 0
    not_idle: int = 0
    too_little: int = 0
    products: int = 0
    edges_verified: int = 0
    wrong: int = 0
    load_s: float = 0.0
    worst_late_s: float = 0.0
    worst_overrun_s: float = 0.0
    first_edge_s: float | None = None
    bursts: int = 0
    stopped: bool = False
    edges: list[tuple[float, float]] = field(default_factory=list)

    def missed(self, now_s: float, period: Period) -> bool:
        """Whether it is too late for a period, which is then left out: a late edge would be no common edge."""
        late_s = now_s - period.rise_s
        if late_s <= self.limits.late * self.wave.half_s:
            return False
        self.edges_missed += 2
        self.worst_late_s = max(self.worst_late_s, late_s)
        return True

    def add(self, period: Period, began_s: float, ended_s: float, load_s: float, products: int) -> None:
        """Count the load of a period: host times of its begin and end, and the device's seconds of work."""
        half_s, late_s, over_s = self.wave.half_s, began_s - period.rise_s, ended_s - period.fall_s
        self.bursts += 1
        self.products += products
        self.load_s += load_s
        self.worst_late_s = max(self.worst_late_s, late_s)
        self.worst_overrun_s = max(self.worst_overrun_s, over_s)
        if self.first_edge_s is None:
            self.first_edge_s = began_s
        late, not_idle = late_s > self.limits.late * half_s, over_s > self.limits.late * half_s
        little = load_s < self.limits.least_load * half_s
        self.edges_missed += int(late) + int(not_idle)
        self.not_idle += int(not_idle)
        self.too_little += int(little)
        self.made += int(not (late or not_idle or little))

    @property
    def share_made(self) -> float:
        """Part of the planned periods that were made as planned."""
        return self.made / self.wave.periods

    @property
    def why_not(self) -> str:
        """In words, why periods are missing; empty when all were made."""
        periods = self.wave.periods
        if self.made == periods:
            return ""
        whys = (
            (self.stopped, "the waves were ended after a wrong product"),
            (self.not_idle > 0, f"the GPU was still at work {self.worst_overrun_s * 1e3:.3g} ms after an edge down"),
            (self.too_little > 0, f"the GPU worked too little in {self.too_little} of {self.bursts} half periods"),
            (self.edges_missed > 0, f"edges were up to {self.worst_late_s * 1e3:.3g} ms late on the host"),
        )
        return "; ".join(text for applies, text in whys if applies) or "not all periods ran"

    @property
    def result(self) -> Frequency:
        """The wave as the report has it."""
        half_s = self.wave.half_s
        return Frequency(
            frequency_hz=self.wave.frequency_hz,
            started_s=round(self.start_s, 4),
            ended_s=round(self.start_s + self.wave.seconds, 4),
            periods_planned=self.wave.periods,
            periods_made=self.made,
            edges_missed=self.edges_missed,
            worst_lateness_s=round(self.worst_late_s, 6),
            worst_overrun_s=round(self.worst_overrun_s, 6),
            load_share=round(self.load_s / (self.bursts * half_s), 4) if self.bursts else 0.0,
            products=self.products,
            edges_verified=self.edges_verified,
            wrong_products=self.wrong,
        )
