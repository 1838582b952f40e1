"""What telemetry saw of a sample's node: made once for all samples that have it in common."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu_burnin.judge.observations import Observations
from gpu_burnin.report.series import RunSeries, Samples, build_series
from gpu_burnin.telemetry.findings import Counter, GpuSeries, Source, TelemetryFindings
from gpu_burnin.types import Gpu
from tests.support.sample_parts import LIMIT_W, STARTED_S, wave_loads


@dataclass(frozen=True)
class Course:
    """What telemetry depends on: samples whose nodes differ in other things have it in common."""

    gpus: tuple[Gpu, ...]
    seconds: float
    hz: float
    hot: frozenset[tuple[int, float]]
    brakes: frozenset[tuple[int, tuple[float, float]]]


def _times(seconds: float, hz: float) -> list[float]:
    return [STARTED_S + step / hz for step in range(int(seconds * hz))]


def _samples(
    gpu: Gpu, seconds: float, loads: list[tuple[float, float, float]], hz: float, hot: float, brake: tuple[float, float]
) -> GpuSeries:
    """Samples of a GPU under `loads`: (start, end, share of full power), seconds since the run began.

    From the start to the end of `brake` the power brake is on.
    """
    rng = random.Random(gpu.index)
    temperature, energy_mj, rows = 31.0 + gpu.index * 0.4, 9e9, []
    for moment in _times(seconds, hz):
        load = max((share for start, end, share in loads if start <= moment - STARTED_S < end), default=0.0)
        target = 33.0 + load * (36.0 + hot + gpu.index % 3)
        temperature += (target - temperature) * (1 - math.exp(-1 / (hz * 7)))
        power = 78 + load * 610 + rng.uniform(-9, 9)
        slowed = 0x20 if hot and temperature > 84 else 0
        if brake[0] <= moment - STARTED_S < brake[1]:
            slowed, power = slowed | 0x80, min(power, 330.0)
        energy_mj += power / hz * 1e3
        clock = (345 if not load else 1980 - 225 * load * load - (330 if slowed else 0)) + rng.choice((0, 0, -15))
        rows.append(
            (round(temperature), power, clock, 2619, slowed | (4 if load > 0.9 else 0), 100.0 * bool(load), energy_mj)
        )
    names = (
        "temperature_c",
        "power_w",
        "clock_sm_mhz",
        "clock_memory_mhz",
        "clocks_event_reasons",
        "utilization_percent",
        "energy_mj",
    )
    columns = {name: tuple(row[index] for row in rows) for index, name in enumerate(names)}
    columns["temperature_memory_c"] = tuple(row[0] + 6 for row in rows)
    limits = {"power_limit_w": int(LIMIT_W), "clock_sm_max_mhz": 1980}
    return GpuSeries(gpu.uuid, tuple(_times(seconds, hz)), columns, columns, columns, limits=limits)


@functools.cache
def telemetry_of(course: Course) -> TelemetryFindings:
    seconds, hz, hot, brakes = course.seconds, course.hz, dict(course.hot), dict(course.brakes)
    loads = [
        (4, 4 + 0.04 * seconds, 0.5),
        (5 + 0.04 * seconds, 5 + 0.56 * seconds, 1.0),
        (8 + 0.56 * seconds, 8 + 0.74 * seconds, 0.62),
        *wave_loads(seconds),
    ]
    counters, sources = [], [Source("journal", None, True, "since boot"), Source("kmsg", None, True)]
    for gpu in course.gpus:
        counters += [
            Counter(gpu.uuid, "total_energy", "mJ", 10_000_000, 10_000_000 + int(seconds * 560_000)),
            Counter(gpu.uuid, "ecc_uncorrected_dram", "1", 0, 0),
            Counter(gpu.uuid, "pcie_replays", "1", 2, 2),
            Counter(gpu.uuid, "nvlink_recovery_failed", "1", None, None, "unsupported by this driver"),
        ]
        sources += [
            Source("nvml_samples", gpu.uuid, True, "10 Hz"),
            Source("nvml_events", gpu.uuid, True),
        ]
    series = tuple(
        _samples(gpu, seconds, loads, hz, hot.get(gpu.index, 0.0), brakes.get(gpu.index, (0.0, 0.0)))
        for gpu in course.gpus
    )
    return TelemetryFindings(tuple(counters), series, (), tuple(sources))


@functools.cache
def _curves(course: Course) -> Mapping[str, Samples]:
    """What the series have of the GPUs, half of the work of a sample."""
    return build_series((), telemetry_of(course), STARTED_S).gpus


def series_of(seen: Observations, course: Course) -> RunSeries:
    """The series of what was observed; curves of GPUs are made once for all nodes that have them in common."""
    shared = seen.telemetry.series is telemetry_of(course).series
    series = build_series(seen.results, replace(seen.telemetry, series=()) if shared else seen.telemetry, STARTED_S)
    return replace(series, gpus=_curves(course)) if shared else series
