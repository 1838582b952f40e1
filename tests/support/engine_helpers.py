"""Things the engine's tests share: made-up GPUs, small plans, a check context on the CPU device."""

from __future__ import annotations

from dataclasses import replace

from gpu_burnin.checks import CheckContext
from gpu_burnin.device.cpu import CpuDevice
from gpu_burnin.engine.plan import Plan, make_plan
from gpu_burnin.types import Gpu

SHAPES = {
    "gemm_m": 64, "gemm_n": 64, "gemm_k": 64, "hbm_bytes": 1 << 16, "transfer_bytes": 1 << 16,
    "collective_bytes": 1 << 16,
}  # fmt: skip


def gpu(index: int = 0) -> Gpu:
    """A made-up GPU."""
    return Gpu(index, f"GPU-{index}", f"S{index}", f"0000:{index + 1:02x}:00.0", "Test", "test", 1 << 30, "1.0")


def context(inject: tuple[str, ...] = (), budget_s: float = 0.0, **shapes: int) -> CheckContext:
    """A context for one GPU on the CPU device; budget 0 means exactly one round."""
    device = CpuDevice()
    device.open(gpu())
    return CheckContext(
        seed=7, level="quick", budget_s=budget_s, gpus=(gpu(),), gpu=gpu(), device=device,
        shapes={**SHAPES, **shapes}, inject=inject, exchange=lambda data: {gpu().uuid: data},
    )  # fmt: skip


def plan(
    *checks: str, gpus: int = 1, inject: tuple[str, ...] = (), deadline_s: float = 60.0, selftest: bool = False
) -> Plan:
    """A quick plan with tiny shapes and budgets."""
    made = make_plan(
        "quick", backend="cpu", gpus=[gpu(i) for i in range(gpus)], seed=1, checks=checks, shapes=SHAPES,
        inject=inject, selftest=selftest,
    )  # fmt: skip
    quick = tuple(replace(check, weight=0.0, least_s=0.0) for check in made.checks)
    return limited(replace(made, checks=quick), slack_s=deadline_s, late_s=deadline_s)


def limited(made: Plan, **times_s: float) -> Plan:
    """The plan with other deadlines, by name."""
    return replace(made, deadlines=replace(made.deadlines, **times_s))
