"""Rates against the floors of the model: who may FAIL a node is data (skus.yaml, confidence)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.hardware.skus import RATE_UNITS, Confidence, Floor, Sku, SkuTable, load_skus
from gpu_burnin.types import JSON, CheckResult, Gpu, Measurement, Notice, Reason

SLOW = "SLOW"
# Somebody saw a good GPU reach these; a floor worked out from other figures only warns.
FAILING = frozenset({Confidence.MEASURED, Confidence.VENDOR})


def with_floors(
    results: Iterable[CheckResult], gpus: Iterable[Gpu], *, simulated: bool = False, skus: SkuTable | None = None
) -> tuple[CheckResult, ...]:
    """The results with the model's floors written into their measurements.

    A floor NAME goes with the measurement NAME or NAME_throughput, and is turned into its unit. Simulated
    hardware has no floors: it is as fast as the computer it runs on. Raises ValueError for a rate in a unit that
    cannot be compared with its floor.
    """
    found = tuple(results)
    if simulated:
        return found
    models = _models(gpus, skus or load_skus())
    return tuple(_filled(result, models.get(result.gpu or "")) for result in found)


def judge_floors(results: Iterable[CheckResult]) -> tuple[tuple[Reason, ...], tuple[Notice, ...]]:
    """What the measurements that carry a floor say: SLOW under a measured or vendor's, a notice under a derived.

    A value that is no number is under every floor.
    """
    reasons: list[Reason] = []
    notices: list[Notice] = []
    for result, measurement in _slow(results):
        message = (
            f"{measurement.name} is {_told(float(measurement.value), measurement.unit)}, under the floor of "
            f"{_told(measurement.floor or 0.0, measurement.unit)} "
            f"({measurement.floor_confidence}: {measurement.floor_source})"
        )
        evidence: dict[str, JSON] = {
            "measurement": measurement.name,
            "value": float(measurement.value),
            "unit": measurement.unit,
            "floor": measurement.floor,
            "confidence": measurement.floor_confidence,
        }
        if measurement.floor_confidence in FAILING:
            reasons.append(make_reason(SLOW, result.name, message, gpu=result.gpu, evidence=evidence))
        else:
            notices.append(Notice(SLOW, result.name, message, result.gpu, evidence))
    return tuple(reasons), tuple(notices)


def _told(value: float, unit: str) -> str:
    """A rate as people say it: bytes per second in GB/s."""
    return f"{value / 1e9:.4g} GB/s" if unit == "B/s" else f"{value:.4g} {unit}"


def _models(gpus: Iterable[Gpu], table: SkuTable) -> dict[str, Sku]:
    return {gpu.uuid: table.skus[gpu.sku] for gpu in gpus if gpu.sku in table.skus}


def _filled(result: CheckResult, sku: Sku | None) -> CheckResult:
    # A check may say that its measurements were not made as those of the floors.
    if sku is None or result.coverage.get("simulated") is True or result.coverage.get("no_floor_why"):
        return result
    return replace(result, measurements=tuple(_with_floor(item, sku) for item in result.measurements))


def _with_floor(measurement: Measurement, sku: Sku) -> Measurement:
    floor = sku.floors.get(measurement.name.removesuffix("_throughput"))
    if floor is None:
        return measurement
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
    for result in results:
        for measurement in result.measurements:
            # Written so that NaN, which no comparison holds for, is slow.
            if measurement.floor is not None and not float(measurement.value) >= measurement.floor:
                yield result, measurement
