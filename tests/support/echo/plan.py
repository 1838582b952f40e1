"""What the echo check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.hardware.skus import SkuTable


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """How many words will come back."""
    return Covers({"echo_words": 4096}, "4,096 words, there and back")
