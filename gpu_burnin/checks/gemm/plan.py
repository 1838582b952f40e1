"""What the gemm check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.exact.operands import PRECISIONS
from gpu_burnin.hardware.skus import SkuTable


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """Which products the gemm check will make."""
    names = _precisions(plan, skus)
    sides = [plan.shapes[key] for key in ("gemm_m", "gemm_n", "gemm_k")]
    text = f"exact products of {' x '.join(map(str, sides))} in {', '.join(names)}"
    return Covers({"precisions": names, "gemm_m": sides[0], "gemm_n": sides[1], "gemm_k": sides[2]}, text, len(names))


def _precisions(plan: PlannedRun, skus: SkuTable) -> list[str]:
    """Those that all models here have; the CPU backend does them all."""
    found = [skus.skus[gpu.sku].precisions for gpu in plan.gpus if gpu.sku in skus.skus]
    return [name for name in PRECISIONS if plan.backend == "cpu" or all(name in has for has in found)]
