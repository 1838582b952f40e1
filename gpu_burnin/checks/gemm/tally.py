"""What one run of the gemm check has seen: counts, rates over time, errors, reasons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_burnin.checks.verified import VerifiedTime
from gpu_burnin.exact.product import Outcome, ProductUnit, Shape
from gpu_burnin.types import JSON, Measurement, Reason, Series

# Points of a series that go into the report; beyond, neighbours are joined.
_MAX_POINTS = 2000


@dataclass
class Rate:
    """Products of one precision over time: (seconds on the monotonic clock, operations, device seconds)."""

    points: list[tuple[float, float, float]] = field(default_factory=list)

    def add(self, operations: float, seconds: float) -> None:
        """Count a batch that has just ended."""
        self.points.append((time.monotonic(), operations, max(seconds, 1e-9)))
        if len(self.points) > _MAX_POINTS:
            pairs = zip(self.points[0::2], self.points[1::2], strict=False)
            joined = [(second[0], first[1] + second[1], first[2] + second[2]) for first, second in pairs]
            self.points = joined + self.points[len(joined) * 2 :]

    @property
    def mean(self) -> float:
        """All operations by all device seconds, in 10^12 per second."""
        return sum(p[1] for p in self.points) / sum(p[2] for p in self.points) / 1e12

    @property
    def last(self) -> float:
        """The newest batch, in 10^12 per second."""
        _, operations, seconds = self.points[-1]
        return operations / seconds / 1e12

    @property
    def best(self) -> float:
        """The best batch, in 10^12 per second."""
        return max(operations / seconds for _, operations, seconds in self.points) / 1e12


def rate_unit(precision: str) -> str:
    """The unit of a precision's rate."""
    return "TOP/s" if precision == "int8" else "TFLOP/s"


@dataclass
class Tally:
    """Counts of a run. `phases` counts products by phase, `products` by precision, `kinds` by what verified them.

    `plain` has the best rates of products that nothing verified, which are in no other count, in 10^12 per second.
    `time` is that of verified products, by precision.
    """

    phases: Counter[str] = field(default_factory=Counter)
    products: Counter[str] = field(default_factory=Counter)
    ranges: dict[str, set[str]] = field(default_factory=dict)
    scaled: set[str] = field(default_factory=set)
    rates: dict[str, Rate] = field(default_factory=dict)
    random_digests: dict[str, dict[int, int]] = field(default_factory=dict)
    algorithms: dict[str, str] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    plain: dict[str, float] = field(default_factory=dict)
    time: VerifiedTime = field(default_factory=VerifiedTime)
    wrong: int = 0
    located: int = 0
    bytes_moved: int = 0
    errors: list[dict[str, JSON]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)

    def made(self, phase: str, unit: ProductUnit, count: int) -> None:
        """Count products of one unit."""
        self.phases[phase] += count
        self.products[unit.precision] += count
        self.bytes_moved += count * unit.shape.traffic_bytes(unit.precision)

    def verified(self, outcome: Outcome, kind: str) -> None:
        """Count by what a product was verified ("golden", "host", "freivalds", "repeated"), and what it covered."""
        self.kinds[kind] += 1
        self.ranges.setdefault(outcome.case.precision, set()).add(outcome.case.operands.name)
        if outcome.case.scaled:
            self.scaled.add(outcome.case.precision)

    def timed(self, precision: str, shape: Shape, count: int, seconds: float) -> None:
        """Count a batch of products for the rates."""
        self.rates.setdefault(precision, Rate()).add(float(shape.operations) * count, seconds)

    def timed_plain(self, unit: ProductUnit, count: int, seconds: float) -> None:
        """Count a batch of plain products."""
        rate = unit.shape.operations * count / max(seconds, 1e-9) / 1e12
        self.plain[unit.precision] = max(rate, self.plain.get(unit.precision, 0.0))
        self.bytes_moved += count * unit.shape.traffic_bytes(unit.precision)

    def best_rates(self) -> dict[str, float]:
        """The best rate of each precision, verified or plain, in 10^12 per second."""
        best = {precision: rate.best for precision, rate in self.rates.items()}
        return best | {precision: max(rate, best.get(precision, 0.0)) for precision, rate in self.plain.items()}

    def measurements(self) -> Iterator[Measurement]:
        """The mean rate of each precision."""
        for precision, rate in self.rates.items():
            yield Measurement(f"gemm_{precision}_throughput", rate.mean, rate_unit(precision))

    def series(self) -> Iterator[Series]:
        """The rate of each precision over time."""
        for precision, rate in self.rates.items():
            values = tuple(operations / seconds / 1e12 for _, operations, seconds in rate.points)
            times = tuple(at for at, _, _ in rate.points)
            yield Series(f"gemm_{precision}_throughput", rate_unit(precision), times, values)
