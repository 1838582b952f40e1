"""What telemetry saw over one run, as data. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_burnin.telemetry.kmsg import XidEvent


@dataclass(frozen=True)
class Counter:
    """One counter of one GPU before and after the run. None: it could not be read, and `why` says so."""

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
    """Samples of one GPU: `t_s` in seconds of CLOCK_MONOTONIC, each column as long; None is an unread value.

    Columns carry their unit in the name: temperature_c, temperature_memory_c, power_w, clock_sm_mhz,
    clock_memory_mhz, clocks_event_reasons (NVML's bits), utilization_percent.
    """

    gpu: str
    t_s: tuple[float, ...]
    columns: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True)
class Source:
    """A place telemetry was read from, such as nvml_samples, nvml_events, journal, kmsg. `gpu` None: the node."""

    name: str
    gpu: str | None
    alive: bool
    detail: str = ""


@dataclass(frozen=True)
class TelemetryFindings:
    """Everything the samplers saw. `xids` are those NVML reported as events, with monotonic times."""

    counters: tuple[Counter, ...] = ()
    series: tuple[GpuSeries, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    sources: tuple[Source, ...] = ()
