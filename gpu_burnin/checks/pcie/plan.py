"""What the pcie check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.pcie.port import MOST_COPY_BYTES, WAYS
from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.system.quantities import size


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """Which copies the pcie check will make."""
    copy = min(plan.shapes["transfer_bytes"], MOST_COPY_BYTES)
    text = f"host to GPU, back, both at once, in peace and all GPUs together; copies of {size(copy)}, each compared"
    return Covers({"directions": ["h2d", "d2h", "duplex"], "transfer_bytes": copy}, text, len(WAYS["duplex"]))
