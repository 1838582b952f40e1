"""What the echo check covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_burnin.types import CheckResult, Coverage


@dataclass(frozen=True, kw_only=True)
class EchoCoverage(Coverage):
    """`echoed` words came back, `wrong` of them as others."""

    echoed: int
    wrong: int
    verified_s: float
    simulated: bool

    def summary(self) -> list[str]:
        """How many words came back."""
        return [f"{self.echoed:,} words echoed"]

    @classmethod
    def stands_out(cls, results: Sequence[CheckResult], gpu_names: Mapping[str, str]) -> str:
        """Which GPUs brought back other words."""
        bad = [result for result in results if isinstance(result.coverage, cls) and result.coverage.wrong]
        return ", ".join(f"{gpu_names[result.gpu or '']}: other words" for result in bad)
