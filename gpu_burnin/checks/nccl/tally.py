"""What one rank of the nccl check has measured, found and covered, and the sizes that it goes through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_burnin.checks.nccl.port import Transports
from gpu_burnin.checks.nccl.result import Curve
from gpu_burnin.checks.verified import VerifiedTime
from gpu_burnin.types import JSON

# The first size of a curve, and how many times as large the next is.
SMALLEST_BYTES = 4096
_STEP = 8


@dataclass
class Tally:
    """What this rank has found and covered."""

    curves: list[Curve] = field(default_factory=list)
    transports: dict[str, Transports] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    durations: list[Mapping[str, float]] = field(default_factory=list)
    errors: list[Mapping[str, JSON]] = field(default_factory=list)
    sources: dict[str, None] = field(default_factory=dict)
    kinds: dict[str, None] = field(default_factory=dict)
    time: VerifiedTime = field(default_factory=VerifiedTime)
    operations: int = 0  # with a result that was compared
    launched: int = 0  # all
    elements: int = 0
    wrong: int = 0
    memory_bytes: int = 0
    wire_bytes: float = 0.0


def sizes(largest_bytes: int) -> tuple[int, ...]:
    """Sizes of a curve in bytes, from small to the largest."""
    found, size = [], SMALLEST_BYTES
    while size < largest_bytes:
        found.append(size)
        size *= _STEP
    return (*found, largest_bytes)
