"""What the nvlink check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.nvlink import SPEC
from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.system.quantities import size
from gpu_burnin.types import JSON


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """How many pairs of GPUs the nvlink check will copy between."""
    gpus, copy = len(plan.gpus), plan.shapes["transfer_bytes"]
    pairs = gpus * (gpus - 1)
    facts: dict[str, JSON] = {"pairs": pairs, "transfer_bytes": copy}
    if not pairs:
        return Covers(facts, "nothing: a pair takes two GPUs")
    # In turns one other GPU and direction after the other, then all other GPUs at once.
    least_share = SPEC.in_turns / gpus / (2 * (gpus - 1)) + (1 - SPEC.in_turns) / 2
    return Covers(
        facts,
        f"{pairs // 2} pair{'s' * (pairs > 2)} in each direction, then all at once; each copy compared ({size(copy)})",
        least_share=least_share,
    )
