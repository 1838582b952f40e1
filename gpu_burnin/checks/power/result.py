"""What the power check covered on one GPU, with what the samplers saw of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpu_burnin.system.quantities import count, duration, number
from gpu_burnin.types import OMIT_DEFAULT, CheckResult, Coverage, optional


@dataclass(frozen=True, kw_only=True)
class Frequency:
    """One wave; `started_s` and `ended_s` are when it was due, in seconds of CLOCK_MONOTONIC."""

    frequency_hz: float
    started_s: float
    ended_s: float
    periods_planned: int = 0
    periods_made: int = 0
    edges_missed: int = 0
    worst_lateness_s: float = 0.0
    worst_overrun_s: float = 0.0
    load_share: float = 0.0
    products: int = 0
    edges_verified: int = 0
    wrong_products: int = 0


@dataclass(frozen=True, kw_only=True)
class NoWaves:
    """No waves were made, and why not; `wanted`: the level has some."""

    wanted: bool
    run: Literal[False] = False
    why: str | None


@dataclass(frozen=True, kw_only=True)
class WavesMade:
    """The waves of one GPU. `frequencies_hz` are those of which most periods were made, `start_skew_s` and `skew_s` the
    differences between the GPUs' first edges. Times are seconds of CLOCK_MONOTONIC."""

    wanted: bool = True
    run: Literal[True] = True
    why: str | None = None
    frequencies_hz: tuple[float, ...] = ()
    frequencies: tuple[Frequency, ...] = ()
    edges: int = 0
    edges_missed: int = 0
    products: int = 0
    products_verified: int = 0
    start_skew_s: float | None = None
    skew_s: Mapping[str, float] = field(default_factory=dict)
    worst_lateness_s: float = 0.0
    started_s: float
    ended_s: float


@dataclass(frozen=True, kw_only=True)
class GrantTimes:
    """When the site was asked for waves or told of them, and when it granted them and heard of their end (RFC 3339)."""

    asked_at: str
    granted_at: str | None
    over_at: str | None


@dataclass(frozen=True, kw_only=True)
class GrantedWaves(WavesMade, GrantTimes):
    """Waves of which the site was told, or asked before."""


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Copies of one kind under the mixed load: why there were none, and how many of them were looked at."""

    run: bool
    why: str | None = None
    bytes_moved: int = 0
    bytes_per_s: float | None = None
    copies_moved: int = 0
    copies_verified: int = 0
    copies_wrong: int = 0


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The mixed load of one GPU; times are seconds of CLOCK_MONOTONIC."""

    run: bool
    started_s: float
    ended_s: float
    seconds: float = 0.0
    rounds: int = 0
    products_verified: int = 0
    product_seconds: float = 0.0
    pcie: Copies = field(default_factory=lambda: Copies(run=False))
    peer: Copies = field(default_factory=lambda: Copies(run=False))


@dataclass(frozen=True, kw_only=True)
class PhasePower:
    """What a GPU drew and did in one phase. `clocks_event_reasons_s` are seconds by bit ("0x4")."""

    seconds: float
    energy_j: float | None = None
    energy_why: str | None = None
    mean_power_w: float | None = None
    power_source: str | None = None
    share_of_limit: float | None = None
    clock_lowest_mhz: float | None = None
    clock_median_mhz: float | None = None
    clock_share_at_maximum: float | None = None
    temperature_highest_c: float | None = None
    clocks_event_reasons_s: Mapping[str, float] = field(default_factory=dict)

    def reason_s(self, bit: int) -> float:
        """Seconds in which a bit of the clocks event reasons was seen."""
        return self.clocks_event_reasons_s.get(f"{bit:#x}", 0.0)


@dataclass(frozen=True, kw_only=True)
class PowerSeen:
    """What the samplers saw of the check, by phase ("waves", "mixed"). `temperature_rank` is 1 for the hottest GPU."""

    phases: Mapping[str, PhasePower]
    clock_max_mhz: float | None = None
    temperature_rank: int | None = optional(lambda: None)
    temperature_rank_of: int | None = optional(lambda: None)


@dataclass(frozen=True, kw_only=True)
class PowerCoverage(Coverage):
    """What the power check covered on one GPU; the judge adds `power` and `power_limit_w` out of the samples."""

    waves: GrantedWaves | WavesMade | NoWaves
    mixed: Mixture
    precision: str = ""
    shape: tuple[int, int, int] = (0, 0, 0)
    products: int = 0
    wrong_products: int = 0
    bytes_moved: int = 0
    pcie_bytes_moved: int = 0
    peer_bytes_moved: int = 0
    simulated: bool = False
    verified_s: float = 0.0
    verified_parts_s: Mapping[str, float] = optional(dict)
    waited_s: float | None = optional(lambda: None)
    power: PowerSeen | None = field(default=None, metadata={OMIT_DEFAULT: True})
    power_limit_w: float | None = optional(lambda: None)

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        waves, mixed, copies = self.waves, self.mixed, self.mixed.pcie
        made = waves if isinstance(waves, WavesMade) else None
        hertz = [f"{value:g}" for value in made.frequencies_hz] if made else []
        under_load = self.power.phases.get("mixed") if self.power else None
        reached = under_load.share_of_limit if under_load else None
        return [
            *([f"waves of {', '.join(hertz)} Hz together"] if hertz else []),
            *([] if made else [f"no waves ({waves.why})"]),
            *([f"{count(made.edges, 'edge')} with exact products"] if made and made.edges else []),
            *([f"mixed load for {duration(mixed.seconds)}"] if mixed.seconds else []),
            *(
                [f"its copies are load, {copies.copies_verified:,} of {copies.copies_moved:,} with the host verified"]
                if copies.copies_moved
                else []
            ),
            *([f"at {reached:.0%} of the power limit"] if reached is not None else []),
        ]

    @classmethod
    def stands_out(cls, results: Sequence[CheckResult], gpu_names: Mapping[str, str]) -> str:
        """Which waves were made."""
        found = [result.coverage.waves for result in results if isinstance(result.coverage, PowerCoverage)]
        made = [waves for waves in found if isinstance(waves, WavesMade)]
        hertz = list(dict.fromkeys(number(value) for waves in made for value in waves.frequencies_hz))
        return f"waves of {', '.join(hertz)} Hz" if hertz else "no waves" if found else ""
