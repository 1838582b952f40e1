"""What the nccl check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.nccl.operations import COLLECTIVES
from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.system.quantities import size


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """Which collective operations the nccl check will make."""
    names, largest = [*COLLECTIVES], plan.shapes["collective_bytes"]
    ranks = len(plan.gpus)
    text = f"{', '.join(names)} over {ranks} rank{'s' * (ranks != 1)}, up to {size(largest)}, each result exact"
    return Covers({"ranks": ranks, "collectives": names, "collective_bytes": largest}, text)
