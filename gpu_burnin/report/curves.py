"""The collective operations on the page: bus bandwidth by message size beside its floor, and the way the data took."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from gpu_burnin.checks.nccl.result import NcclCoverage
from gpu_burnin.report.model import Report
from gpu_burnin.report.svg import Dot, Frame, Level, Line, key_of, nice_range, nice_step, plot
from gpu_burnin.report.units import coverages_of, results_of
from gpu_burnin.system.quantities import GB, number, rate, size
from gpu_burnin.types import CheckResult

_SIZE = (440, 200)
# What NCCL calls the ways, by how its own names begin (transport sources of NCCL: P2P, SHM, NET, COLLNET, NVLS).
_TRANSPORTS: tuple[tuple[str, str], ...] = (
    ("NVLS", "added up inside the NVSwitches"),
    ("P2P", "directly from GPU to GPU"),
    ("SHM", "through host memory"),
    ("COLLNET", "through the network's own reduction"),
    ("NET", "through the network"),
)
# Powers of two between two texts below a plot.
_STRIDES = (1, 2, 3, 4, 5, 6, 8, 10, 20)


@dataclass(frozen=True)
class CurvePlot:
    """The plot of one collective operation: its name, the number to remember, the picture."""

    title: str
    note: str
    svg: Markup


@dataclass(frozen=True)
class Curves:
    """The section: what is measured, versions and ranks in words, plots, legend (style class, mark, name), ways, gaps.

    `floors`: some plot has a floor.
    """

    quantity: str
    about: str
    plots: tuple[CurvePlot, ...]
    legend: tuple[tuple[str, Markup, str], ...]
    ways: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    latest: str
    floors: bool


# By collective and algorithm: bytes per second by message size in bytes.
_Points = dict[tuple[str, str], dict[float, float]]


def busbw(report: Report) -> _Points:
    """Bus bandwidth by (collective, algorithm) and message size: the lowest that any GPU measured."""
    found: _Points = {}
    for coverage in coverages_of(report, NcclCoverage):
        for curve in coverage.curves:
            points = found.setdefault((curve.collective, curve.algorithm), {})
            for point in curve.points:
                size_bytes, value = float(point.size_bytes), point.bytes_per_s
                if size_bytes > 0 and value is not None and math.isfinite(value):
                    points[size_bytes] = min(value, points.get(size_bytes, math.inf))
    return found


def curves(report: Report) -> Curves | None:
    """The section, None where the nccl check gave no result."""
    checks = results_of(report, "nccl")
    if not checks:
        return None
    found = {key: points for key, points in busbw(report).items() if points}
    algorithms = list(dict.fromkeys(algorithm for _, algorithm in found))
    sizes = sorted({size_bytes for points in found.values() for size_bytes in points})
    plots = tuple(
        _plot(report, collective, {name: found[collective, name] for name in algorithms if (collective, name) in found},
              algorithms, sizes)
        for collective in dict.fromkeys(collective for collective, _ in found)
    )  # fmt: skip
    legend = tuple((f"line{index % 6} dash{index % 6}", key_of(index), name) for index, name in enumerate(algorithms))
    floors = any(_floor(checks, collective) is not None for collective, _ in found)
    covered = list(coverages_of(report, NcclCoverage))
    return Curves(
        _quantity(report),
        _about(covered),
        plots,
        legend,
        tuple(_ways(covered)),
        tuple(_missing(covered)),
        _latest(report, covered),
        floors,
    )


def _floor(checks: Iterable[CheckResult], collective: str) -> float | None:
    """What the bus bandwidth of a collective is judged by, None where there is no floor."""
    floors = (item.floor for check in checks for item in check.measurements if item.name == f"{collective}_busbw")
    return next((floor for floor in floors if floor is not None), None)


def _plot(
    report: Report, collective: str, found: Mapping[str, dict[float, float]], algorithms: list[str], sizes: list[float]
) -> CurvePlot:
    floor = _floor(results_of(report, "nccl"), collective)
    lines, dots = [], []
    for name, points in found.items():
        group, ordered = algorithms.index(name), sorted(points.items())
        places, values = [math.log2(x) for x, _ in ordered], [y / GB for _, y in ordered]
        lines.append(Line(f"line{group % 6} dash{group % 6}", f"{collective} {name}", places, values))
        dots += [Dot(math.log2(x), y / GB, f"{name}: {rate(y, 'B/s')} with {size(x)}", group) for x, y in ordered]
    highest = max((y, x, name) for name, points in found.items() for x, y in points.items())
    top = nice_range([0.0, highest[0] / GB, (floor or 0.0) / GB * 1.05], 0.001)[1]
    frame = Frame(
        *_SIZE, (math.log2(sizes[0]), math.log2(sizes[-1])), (0.0, top), 1.0, 1.0, "", nice_step(top, 4), _below(sizes)
    )  # fmt: skip
    levels = [Level(floor / GB, f"floor {rate(floor, 'B/s')}")] if floor else []
    best = _best(report, collective)
    note = f"best size {number((highest[0] if best is None else best) / GB)} GB/s"
    spoken = (
        f"{collective}: {_quantity(report)} in GB/s over the message size, {note} ({highest[2]}, {size(highest[1])})"
    )
    return CurvePlot(collective, note, plot(frame, spoken, lines, levels=levels, dots=dots))


def _best(report: Report, collective: str) -> float | None:
    """The figure of Measurements for the slowest GPU: the best size with the library's own algorithm, bytes/s."""
    names = (f"{collective}_busbw", f"{collective}_one_rank")
    measured = (item for check in results_of(report, "nccl") for item in check.measurements if item.name in names)
    return min((item.value for item in measured if math.isfinite(item.value)), default=None)


def _quantity(report: Report) -> str:
    """One GPU has no bus: what it measures is size over time."""
    ranks = next((coverage.ranks for coverage in coverages_of(report, NcclCoverage)), 0)
    return "algorithm bandwidth" if ranks == 1 else "bus bandwidth"


def _below(sizes: list[float]) -> tuple[tuple[float, str], ...]:
    """Sizes in words at powers of two, at most six of them."""
    low, high = math.ceil(math.log2(sizes[0]) - 1e-9), math.floor(math.log2(sizes[-1]) + 1e-9)
    stride = next((step for step in _STRIDES if (high - low) / step <= 5), _STRIDES[-1])
    return tuple((float(power), size(2.0**power)) for power in range(high, low - 1, -stride))[::-1]


def _about(covered: list[NcclCoverage]) -> str:
    version = next((coverage.version for coverage in covered if coverage.version), "")
    ranks = next((coverage.ranks for coverage in covered), 0)
    simulated = any(coverage.simulated for coverage in covered)
    library = "simulated over host memory, without NCCL" if simulated else f"NCCL {version}" if version else ""
    parts = [*([library] if library else []), *([f"{ranks} GPUs"] if ranks > 1 else [])]
    if ranks == 1:
        parts.append("one GPU, so nothing went from one GPU to another: these are no bus bandwidths and have no floor")
    return ", ".join(parts)


def _ways(covered: list[NcclCoverage]) -> list[tuple[str, str]]:
    """Algorithm with the collectives that took the same way, and that way in words."""
    found: dict[tuple[str, str], list[str]] = {}
    for curve in (curve for coverage in covered for curve in coverage.curves if curve.transport):
        way = ", ".join(_way(name) for name in dict.fromkeys(curve.transport))
        collectives = found.setdefault((curve.algorithm, way), [])
        if curve.collective not in collectives:
            collectives.append(curve.collective)
    return [(f"{algorithm} ({', '.join(collectives)})", way) for (algorithm, way), collectives in found.items()]


def _way(transport: str) -> str:
    meaning = next((text for start, text in _TRANSPORTS if transport.upper().startswith(start)), "")
    return f"{transport}: {meaning}" if meaning else transport


def _latest(report: Report, covered: list[NcclCoverage]) -> str:
    """The GPU that all others wait for, where one is known."""
    found = list(dict.fromkeys(coverage.latest_gpu for coverage in covered if coverage.latest_gpu))
    if len(found) != 1:
        return ""
    return f"The others wait for {report.name(found[0])}, which reaches the operations last."


def _missing(covered: list[NcclCoverage]) -> list[str]:
    """What could not run, and why."""
    return list(
        dict.fromkeys(
            f"{curve.collective} {curve.algorithm}: {curve.why}"
            for coverage in covered
            for curve in coverage.curves
            if not curve.points and curve.why
        )
    )
