"""What telemetry saw over one run, as data. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_burnin.telemetry.kmsg import XidEvent


@dataclass(frozen=True)
class Counter:
    """One counter of one GPU before and after the run. None: it could not be read, and `why` says so.

    With both readings there, `why` says what else is wrong with them: the counter fell during the run, or `after`
    is the last reading of a sampler that ended early.
    """

    gpu: str
    name: str
    unit: str
    before: int | None
    after: int | None
    why: str = ""

    @property
    def delta(self) -> int | None:
        """The change over the run, None when one of the readings is missing."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class GpuSeries:
    """Samples of one GPU in buckets: `t_s` in seconds of CLOCK_MONOTONIC, each column as long; None: nothing read.

    Columns carry their unit in the name: temperature_c, temperature_margin_c, temperature_memory_c, power_w (of most
    models an average over a second), energy_mj (a sum that only rises), clock_sm_mhz, clock_memory_mhz,
    clocks_event_reasons (NVML's bits), utilization_percent, pcie_generation.
    `columns` are means over a bucket (the bits: those set at any time in it), `lowest` and `highest` the extremes,
    without the bits.

    `samples` were taken, each `interval_s` seconds; `reason_samples` counts for each bit those in which it was
    set. `limits` are the GPU's own, as far as it tells them: slowdown_c and memory_max_c in degrees Celsius,
    tlimit_slowdown_c as an offset from the temperature margin's zero, pcie_generation the highest that GPU and slot
    have in common, power_limit_w the limit in force, clock_sm_max_mhz the highest SM clock. `lost` is NVML's word
    when the GPU no longer answered. `watched_share` is the part of the time from the first to the last sample that is
    not in holes between samples.
    """

    gpu: str
    t_s: tuple[float, ...]
    columns: Mapping[str, tuple[float | None, ...]]
    lowest: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    highest: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    samples: int = 0
    interval_s: float = 0.1
    reason_samples: Mapping[int, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    lost: str = ""
    watched_share: float = 1.0


@dataclass(frozen=True)
class GpuEvent:
    """An event NVML reported: `kind` such as xid or ecc_double_bit, `data` the code of an XID.

    It came `count` times, the first time at `t_s` (CLOCK_MONOTONIC, seconds).
    """

    gpu: str
    kind: str
    data: int
    count: int
    t_s: float


@dataclass(frozen=True)
class Source:
    """A place telemetry was read from, such as nvml_samples, nvml_events, journal, kmsg. `gpu` None: the node."""

    name: str
    gpu: str | None
    alive: bool
    detail: str = ""


@dataclass(frozen=True)
class TelemetryFindings:
    """Everything the samplers saw. `xids` are those of `events`, in the form of the kernel log's.

    `simulated`: a sampler read no real GPU.
    """

    counters: tuple[Counter, ...] = ()
    series: tuple[GpuSeries, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    sources: tuple[Source, ...] = ()
    events: tuple[GpuEvent, ...] = ()
    simulated: bool = False
