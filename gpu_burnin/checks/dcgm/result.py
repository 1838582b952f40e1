"""What NVIDIA's diagnostic covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_burnin.types import CheckResult, Coverage, optional


@dataclass(frozen=True)
class DiagnosticRow:
    """A test, one of its results and where it had it: UUIDs, DCGM's number of a GPU it gives no serial of, below 0 the
    node."""

    name: str
    result: str
    gpus: tuple[str | int, ...]
    message: str = optional(str)


@dataclass(frozen=True, kw_only=True)
class DcgmCoverage(Coverage):
    """`release` is None where DCGM gave no answer; `skipped` counts the tests that it did not run."""

    release: str | None
    level: int
    tests: tuple[DiagnosticRow, ...]
    skipped: int | None = optional(lambda: None)

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        counts = Counter(row.result for row in self.tests)
        if not counts:
            return []
        return [
            f"DCGM {self.release} at its level {self.level}, an opinion of its own",
            ", ".join(f"{count} {result}" for result, count in counts.items()),
        ]

    @classmethod
    def stands_out(cls, results: Sequence[CheckResult], gpu_names: Mapping[str, str]) -> str:
        """Which DCGM it was, and how many tests had which result."""
        found = results[0].coverage
        counts = Counter(row.result for row in found.tests) if isinstance(found, DcgmCoverage) else {}
        return f"{release_text(results[0])}: {', '.join(f'{count} {result}' for result, count in counts.items())}"


def release_text(result: CheckResult) -> str:
    """Which DCGM was asked, and at which level."""
    found = result.coverage if isinstance(result.coverage, DcgmCoverage) else None
    release = f"DCGM {found.release}" if found and found.release else "DCGM of an unknown release"
    return ", ".join([release, *([f"level {found.level}"] if found else [])])
