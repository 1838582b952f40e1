"""What the hbm check covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_burnin.checks.least import too_small_share
from gpu_burnin.system.quantities import count, duration, size
from gpu_burnin.types import CheckResult, Coverage, Shortfall, optional

# All memory but for what the driver keeps.
LEAST_SHARE = 0.95
# Memory faults hide from single patterns: stuck cells show in their complement, joined address lines only where words
# differ, coupled neighbours only beside their opposite.
LEAST_PATTERNS = 4
# Of a MIG instance, which may have 5 GB: what CUDA keeps for a process and what is left free (port.RESERVE_BYTES) take
# more of it than the share leaves. Derived from some 0.5 GB for the first and 0.125 GiB for the second.
INSTANCE_OVERHEAD_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class HbmCoverage(Coverage):
    """`covered_bytes` of the GPU's memory were tested in `pieces`, `unreachable_bytes` could not be had.

    `patterns` are the tests that went over all of it, `passes` how often each test did. `sweep_seconds` is the device's
    time for the first round, `retention_s` the longest wait between writing and reading. `wrong_words_at_least`: there
    were more than could be told apart. `shape_words` says in words how the wrong words lie. `of_instance`: the memory
    is that of a MIG instance.
    """

    memory: str
    covered_bytes: int
    gpu_memory_bytes: int | None
    unreachable_bytes: int | None
    reserve_bytes: int
    pieces: int
    bytes_written: int
    bytes_read_back: int
    bytes_moved: int
    rounds: int
    patterns: tuple[str, ...]
    passes: Mapping[str, int]
    sweep_seconds: float
    verified_s: float
    retention_s: float
    wrong_words: int
    wrong_words_at_least: bool
    wrong_reads: int
    wrong_words_by_pattern: Mapping[str, int]
    wrong_reads_by_lane: Mapping[str, int]
    shape_words: str
    word_bytes: int
    ecc: str
    simulated: bool
    of_instance: bool = optional(bool)

    @classmethod
    def stands_out(cls, results: Sequence[CheckResult], gpu_names: Mapping[str, str]) -> str:
        """How the wrong words of each GPU lie."""
        wrong = ((gpu_names.get(result.gpu or "", "node"), wrong_text(result)) for result in results)
        return ", ".join(f"{gpu}: {text}" for gpu, text in wrong if text)

    def shortfalls(self, precisions: tuple[str, ...]) -> Iterator[Shortfall]:
        """Enough of the memory must have gone through enough patterns."""
        yield from too_small_share(
            self, "covered_bytes", "gpu_memory_bytes", least_share(self.gpu_memory_bytes or 0, self.of_instance)
        )
        if len(self.patterns) < LEAST_PATTERNS:
            message = f"the memory went through {len(self.patterns)} patterns, at least {LEAST_PATTERNS} are required"
            yield Shortfall(message, {"patterns": [*self.patterns], "least_patterns": LEAST_PATTERNS})

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        covered, memory = self.covered_bytes, self.gpu_memory_bytes
        if self.simulated:
            where = f"{size(covered)} of host memory, no GPU memory"
        elif memory:
            where = f"{size(covered)} of {size(memory)} ({covered / memory:.1%})"
        else:
            where = size(covered)
        return [
            where,
            *([f"{size(self.unreachable_bytes)} out of reach"] if self.unreachable_bytes else []),
            *([count(len(self.patterns), "pattern")] if self.patterns else []),
            count(self.rounds, "round"),
            *([f"kept for {duration(self.retention_s)}"] if self.retention_s else []),
        ]


def least_share(memory_bytes: int, of_instance: bool) -> float:
    """The share of a memory that must be tested; of a small MIG instance less than of a GPU."""
    if not (of_instance and memory_bytes):
        return LEAST_SHARE
    return max(0.0, min(LEAST_SHARE, 1 - INSTANCE_OVERHEAD_BYTES / memory_bytes))


def wrong_text(result: CheckResult) -> str:
    """How the wrong words of a GPU lie, or how many there are; "" without any."""
    found = result.coverage if isinstance(result.coverage, HbmCoverage) else None
    if found and found.wrong_words and not found.shape_words:
        return f"{found.wrong_words:,} wrong words"
    return (found.shape_words if found else "") or ("wrong words" if result.errors else "")
