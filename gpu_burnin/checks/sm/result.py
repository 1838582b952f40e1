"""What the sm check covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_burnin.checks.least import too_small_share
from gpu_burnin.types import Coverage, Shortfall

# Every SM.
LEAST_SHARE = 1.0


@dataclass(frozen=True, kw_only=True)
class SmCoverage(Coverage):
    """`sms_covered` of `sms_total` SMs ran every kernel, `sms_by_kernel` those of one. `runs` counts blocks by kernel,
    each compared; `functions` are the special functions of the kernels."""

    sms_total: int
    sms_covered: int
    sms_by_kernel: Mapping[str, int]
    runs: Mapping[str, int]
    launches: int
    seeds: int
    functions: tuple[str, ...]
    wrong_blocks: int
    verified_s: float
    verified_parts_s: Mapping[str, float]
    bytes_moved: int
    simulated: bool

    def shortfalls(self, precisions: tuple[str, ...]) -> Iterator[Shortfall]:
        """Every SM must have run every kernel."""
        return too_small_share(self, "sms_covered", "sms_total", LEAST_SHARE)

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        kernels = self.sms_by_kernel
        return [
            f"{self.sms_covered:,} of {self.sms_total:,} SMs",
            *([f"each with {', '.join(kernels)}"] if set(kernels.values()) == {self.sms_covered} else []),
        ]
