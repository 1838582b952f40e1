"""What the nccl check covered on one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_burnin.checks.least import too_small_share
from gpu_burnin.system.quantities import count
from gpu_burnin.types import Coverage, Shortfall, optional


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size of a curve: seconds of one operation, and its bus bandwidth. One rank has no bus: of it the algorithm
    bandwidth is told."""

    size_bytes: int
    seconds: float = 0.0
    busbw_bytes_per_s: float | None = optional(lambda: None)
    algbw_bytes_per_s: float | None = optional(lambda: None)

    @property
    def bytes_per_s(self) -> float | None:
        """The bandwidth, of whichever kind."""
        return self.algbw_bytes_per_s if self.busbw_bytes_per_s is None else self.busbw_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Bandwidth by size of one collective with one algorithm. `transport` are the kinds in use, such as "P2P/CUMEM";
    `why` it could not run, None where it did."""

    collective: str
    algorithm: str
    transport: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    why: str | None = optional(lambda: None)


@dataclass(frozen=True, kw_only=True)
class NcclCoverage(Coverage):
    """What the nccl check covered on one rank.

    `algorithms_used` are those that the library said it used by operation, `nvls_multicast` whether switches can add
    (None: it does not say), `latest_gpu` the one that comes late to most operations, `lost` those that went missing.
    """

    ranks: int
    gpus_in_plan: int
    curves: tuple[Curve, ...] = ()
    algorithms_used: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nvls_multicast: bool | None = None
    types: tuple[str, ...] = ()
    operations: int
    operations_verified: int
    elements_verified: int = 0
    wrong_elements: int = 0
    verified_s: float = 0.0
    verified_parts_s: Mapping[str, float] = optional(dict)
    latest_gpu: str | None = None
    bytes_moved: int = 0
    nvlink_bytes_moved: int | None = optional(lambda: None)
    pcie_bytes_moved: int | None = optional(lambda: None)
    why_no_busbw: str | None = optional(lambda: None)
    no_floor_why: str | None = None
    version: str = ""
    lost: tuple[str, ...] = ()
    simulated: bool = False

    def shortfalls(self, precisions: tuple[str, ...]) -> Iterator[Shortfall]:
        """The result of every operation must have been compared: a PASS covers no others."""
        return too_small_share(self, "operations_verified", "operations", 1.0, "verified")

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        ranks, verified, curves = self.ranks, self.operations_verified, self.curves
        algorithms = [*dict.fromkeys(curve.algorithm for curve in curves if curve.points)]
        ways = [*dict.fromkeys(way for curve in curves for way in curve.transport)]
        together = f"{ranks:,} of {count(self.gpus_in_plan or ranks, 'GPU')} together"
        return [
            together if ranks > 1 else "one GPU alone, so nothing between GPUs",
            *([f"{count(verified, 'collective')} compared on every GPU"] if verified else []),
            *([f"types {', '.join(self.types)}"] if self.types else []),
            *([f"algorithms {', '.join(algorithms)}"] if algorithms else []),
            *([f"over {', '.join(ways)}"] if ways else []),
        ]
