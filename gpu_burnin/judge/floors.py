"""Rates against the floors of the model: who may FAIL a node is data (skus.yaml, confidence)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.pcie.result import PcieCoverage
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.hardware.skus import (
    POWER_LIMIT_TOLERANCE_W,
    RATE_UNITS,
    Confidence,
    Floor,
    Sku,
    SkuTable,
    load_skus,
)
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.settings.expectations import expectations_of
from gpu_burnin.types import JSON, CheckResult, Coverage, Gpu, Measurement, Notice, Reason, Verdict

SLOW = "SLOW"
_BY_POWER = frozenset(name for name, check in CHECKS.items() if check.slower_at_less_power)
# Somebody saw a good GPU reach these; a floor worked out from other figures only warns.
FAILING = frozenset({Confidence.MEASURED, Confidence.VENDOR})
# Floors that depend on the host as much as on the GPU.
_OF_THE_HOST = frozenset({"h2d", "d2h"})


def with_floors(
    results: Iterable[CheckResult], gpus: Iterable[Gpu], *, simulated: bool = False, skus: SkuTable | None = None
) -> tuple[CheckResult, ...]:
    """The results with the model's floors written into their measurements.

    A floor NAME goes with the measurement NAME or NAME_throughput, and is turned into its unit. Floors of copies
    between host and GPU are lowered to what the host's slot can do, and only warn where they are not the model's own
    any more. Simulated hardware has no floors: it is as fast as the computer it runs on. Raises ValueError for a rate
    in a unit that cannot be compared with its floor.
    """
    found = tuple(results)
    if simulated:
        return found
    models = _models(gpus, skus or load_skus())
    return tuple(_filled(result, models.get(result.gpu or "")) for result in found)


def at_lowered_power(seen: Observations) -> tuple[CheckResult, ...]:
    """The results without floors for what power decides, on GPUs whose power limit was lowered as expected.

    Floors are those of GPUs at their own limit.
    """
    expected_w, lowered = _lowered(seen)
    why = f"the power limit is {expected_w:g} W as expected, and the floors are those of the GPU's own limit"
    return tuple(
        replace(result, coverage=replace(result.coverage, no_floor_why=why))
        if result.name in _BY_POWER and result.gpu in lowered
        else result
        for result in seen.results
    )


def judge_power_limit(seen: Observations) -> Findings:
    """A notice of the GPUs whose rates no floor judged, because their power limit was lowered as expected."""
    expected_w, lowered = _lowered(seen)
    if not lowered:
        return Findings()
    listed: dict[str, JSON] = {**lowered}
    own_w = "/".join(sorted({f"{default_w:g}" for default_w in lowered.values()}))
    message = (
        f"{len(lowered)} of {len(seen.telemetry.series)} GPUs run at a power limit of {expected_w:g} W as expected, "
        f"and their own is {own_w} W: no floor judges their rates in {' and '.join(sorted(_BY_POWER))}"
    )
    details: dict[str, JSON] = {"expected_w": expected_w, "default_w": listed}
    return Findings(notices=(Notice("POWER_LIMIT", "telemetry", message, details=details),))


def _lowered(seen: Observations) -> tuple[float, dict[str, int]]:
    """The limit that the operator says (0: none), and the own limits, in watts, of the GPUs that were lowered to it."""
    expected_w = expectations_of(seen.plan.options).power_limit_w
    if expected_w is None:
        return 0.0, {}
    limits = {series.gpu: series.limits for series in seen.telemetry.series}
    return expected_w, {
        uuid: own["power_default_w"]
        for uuid, own in limits.items()
        if own.get("power_limit_w", 0) - expected_w <= POWER_LIMIT_TOLERANCE_W
        and own.get("power_default_w", 0) - expected_w > POWER_LIMIT_TOLERANCE_W
    }


def judge_floors(seen: Observations) -> Findings:
    """What the measurements that carry a floor say: SLOW under a measured or vendor's, a notice under a derived."""
    reasons: list[Reason] = []
    notices: list[Notice] = []
    for result, measurement in _slow(seen.results):
        message = (
            f"{measurement.name} is {_rate_text(float(measurement.value), measurement.unit)}, under the floor of "
            f"{_rate_text(measurement.floor or 0.0, measurement.unit)} "
            f"({measurement.floor_confidence}: {measurement.floor_source})"
        )
        details: dict[str, JSON] = {
            "measurement": measurement.name,
            "value": float(measurement.value),
            "unit": measurement.unit,
            "floor": measurement.floor,
            "confidence": measurement.floor_confidence,
        }
        if measurement.floor_confidence in FAILING:
            reasons.append(make_reason(SLOW, result.name, message, gpu=result.gpu, details=details))
        else:
            notices.append(Notice(SLOW, result.name, message, result.gpu, details))
    return Findings(tuple(reasons), tuple(notices))


def _rate_text(value: float, unit: str) -> str:
    """A rate as people say it: bytes per second in GB/s."""
    return f"{value / 1e9:.4g} GB/s" if unit == "B/s" else f"{value:.4g} {unit}"


def _models(gpus: Iterable[Gpu], table: SkuTable) -> dict[str, Sku]:
    return {gpu.uuid: table.skus[gpu.sku] for gpu in gpus if gpu.sku in table.skus}


def _filled(result: CheckResult, sku: Sku | None) -> CheckResult:
    # A check may say that its measurements were not made as those of the floors.
    if sku is None or result.coverage.simulated or result.coverage.no_floor_why:
        return result
    share, doubt = _host(sku, result.coverage)
    return replace(result, measurements=tuple(_with_floor(item, sku, share, doubt) for item in result.measurements))


def _host(sku: Sku, coverage: Coverage) -> tuple[float, str]:
    """The share of the model's own link that the host's slot offers, and why the floors of copies only warn ("": they
    hold).

    Each PCIe generation doubles the rate of a lane. Copies out of memory that may be far from the GPU are slower on
    machines with several NUMA nodes, and a virtual machine may hide how many it has.
    """
    if not isinstance(coverage, PcieCoverage):
        return 1.0, ""
    generation = (coverage.link.host_max_generation if coverage.link else None) or sku.pcie_generation
    width = (coverage.link.host_max_width if coverage.link else None) or sku.pcie_width
    share = min(1.0, 2.0 ** (generation - sku.pcie_generation)) * min(1.0, width / sku.pcie_width)
    if share < 1:
        return share, f"the host's slot is PCIe generation {generation:g} x{width:g}"
    if coverage.numa_node is None and coverage.host and (coverage.host.virtual or coverage.host.numa_nodes > 1):
        return share, "it is not known which of the host's memory is near the GPU"
    return share, ""


def _with_floor(measurement: Measurement, sku: Sku, share: float, doubt: str) -> Measurement:
    floor = sku.floors.get(measurement.name.removesuffix("_throughput"))
    if floor is None:
        return measurement
    if doubt and floor.name in _OF_THE_HOST:
        source = f"{doubt}; the model's own floor is {floor.value:g} {floor.unit}: {floor.source}"
        floor = replace(floor, value=floor.value * share, source=source, confidence=Confidence.DERIVED)
    value = floor.value * _factor(floor, measurement)
    return replace(measurement, floor=value, floor_source=floor.source, floor_confidence=str(floor.confidence))


def _factor(floor: Floor, measurement: Measurement) -> float:
    # Equal units need no factor, so that 680 TFLOP/s stays 680 to the last digit.
    if floor.unit == measurement.unit:
        return 1.0
    if measurement.unit not in RATE_UNITS or (floor.unit[-3:] == "B/s") != (measurement.unit[-3:] == "B/s"):
        raise ValueError(f"{measurement.name} in {measurement.unit} cannot be compared with a floor in {floor.unit}")
    return RATE_UNITS[floor.unit] / RATE_UNITS[measurement.unit]


def _slow(results: Iterable[CheckResult]) -> Iterator[tuple[CheckResult, Measurement]]:
    """Of checks that found no fault: one that did ends early, and its rates hold the time it took to locate it."""
    for result in (result for result in results if result.verdict is not Verdict.FAIL):
        for measurement in result.measurements:
            if measurement.below_floor:
                yield result, measurement
