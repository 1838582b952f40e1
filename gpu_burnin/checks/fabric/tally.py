"""What one member has compared, measured and found wrong so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_burnin.checks.fabric.audit import Culprit
from gpu_burnin.checks.fabric.result import WrongElement
from gpu_burnin.checks.nccl.operations import Operation, bus_factor


@dataclass
class Rates:
    """Operations of the largest size so far: bytes on the bus, and seconds."""

    size_bytes: int = 0
    bus_bytes: float = 0.0
    seconds: float = 0.0

    def add(self, op: Operation, seconds: float) -> None:
        """One more; those of smaller sizes are forgotten."""
        if op.size_bytes > self.size_bytes:
            self.size_bytes, self.bus_bytes, self.seconds = op.size_bytes, 0.0, 0.0
        if op.size_bytes == self.size_bytes:
            self.bus_bytes += op.size_bytes * bus_factor(op.collective, op.ranks)
            self.seconds += seconds

    @property
    def bytes_per_s(self) -> float | None:
        """Bus bandwidth as nccl-tests has it; None before the first one."""
        return self.bus_bytes / self.seconds if self.seconds > 0 else None


@dataclass
class Tally:
    """`culprits`: this member's wrong elements by where they first were, `first` the first of each, `where` in what."""

    operations: int = 0
    elements: int = 0
    wrong: int = 0
    culprits: dict[Culprit, int] = field(default_factory=dict)
    first: dict[Culprit, WrongElement] = field(default_factory=dict)
    where: dict[Culprit, str] = field(default_factory=dict)
    together: Rates = field(default_factory=Rates)
    by_rail: dict[int, Rates] = field(default_factory=dict)
    wrong_rails: set[int] = field(default_factory=set)
    tested: set[int] = field(default_factory=set)  # rails that were tested alone to the end
    peer_rates: dict[int, float] = field(default_factory=dict)
    done: bool = False

    def note(self, culprit: Culprit, count: int, first: WrongElement | None, where: str = "the first messages") -> None:
        """So many of this member's elements were wrong because of it."""
        self.culprits[culprit] = self.culprits.get(culprit, 0) + count
        self.where.setdefault(culprit, where)
        if first is not None:
            self.first.setdefault(culprit, first)
