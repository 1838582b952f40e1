"""What the dcgm check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.hardware.skus import SkuTable


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """What the dcgm check will ask for."""
    return Covers({}, "NVIDIA's own diagnostics (dcgmi diag), as one more opinion")
