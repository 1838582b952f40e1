"""What the hbm check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.hbm.result import LEAST_PATTERNS, LEAST_SHARE
from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.system.quantities import size
from gpu_burnin.types import JSON


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """How much memory the hbm check will go over, and how."""
    asked, least = plan.shapes["hbm_bytes"], LEAST_SHARE
    if plan.backend == "cpu":
        return Covers({"host_memory_bytes": asked}, f"{size(asked)} of host memory, no GPU memory")
    if asked:
        return Covers({"memory_bytes": asked}, f"{size(asked)} of memory, by the configuration")
    memory = [gpu.memory_bytes for gpu in plan.gpus]
    smallest = min(memory, default=0)
    of = f" of {size(smallest)}" if smallest else ""
    reached: list[JSON] = [int(least * whole) for whole in memory]
    facts: dict[str, JSON] = {"memory_bytes": reached, "least_share": least, "least_patterns": LEAST_PATTERNS}
    retention = ", retention" if plan.level == "extended" else ""
    return Covers(facts, f"at least {least * 100:.0f} %{of}: address, inversions, walking bits, modulo 20{retention}")
