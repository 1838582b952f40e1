"""What the hbm check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.hbm.result import LEAST_PATTERNS, LEAST_SHARE, least_share
from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.system.quantities import size
from gpu_burnin.types import JSON


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """How much memory the hbm check will go over, and how."""
    asked = plan.shapes["hbm_bytes"]
    if plan.backend == "cpu":
        return Covers({"host_memory_bytes": asked}, f"{size(asked)} of host memory, no GPU memory")
    if asked:
        return Covers({"memory_bytes": asked}, f"{size(asked)} of memory, by the configuration")
    memory = [(unit.memory_bytes, least_share(unit.memory_bytes, unit.instance is not None)) for unit in plan.units]
    smallest, least = min(memory, default=(0, LEAST_SHARE))
    of = f" of {size(smallest)}" if smallest else ""
    reached: list[JSON] = [int(share * whole) for whole, share in memory]
    facts: dict[str, JSON] = {"memory_bytes": reached, "least_share": least, "least_patterns": LEAST_PATTERNS}
    retention = ", retention" if plan.level == "extended" else ""
    return Covers(facts, f"at least {least * 100:.0f} %{of}: address, inversions, walking bits, modulo 20{retention}")
