"""Checks of several GPUs together: contexts of made-up GPUs for run_together (tests/support/exchange_barrier.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpu_burnin.checks import CheckContext
from gpu_burnin.device.cpu import CpuDevice
from gpu_burnin.types import CheckResult
from tests.support.engine_helpers import SHAPES, gpu
from tests.support.exchange_barrier import run_together

__all__ = ["contexts", "results_together", "run_together"]


def results_together(run: Callable[[CheckContext], CheckResult], made: list[CheckContext]) -> dict[str, CheckResult]:
    """run_together for checks that must not raise: the first error is raised here."""
    found: dict[str, CheckResult] = {}
    for uuid, result in run_together(run, made).items():
        if isinstance(result, Exception):
            raise result
        found[uuid] = result
    return found


def contexts(count: int, budget_s: float = 0.0, **changes: object) -> list[CheckContext]:
    """Contexts of `count` made-up GPUs on CPU devices of their own; the exchange is set by run_together."""
    gpus = tuple(gpu(index) for index in range(count))
    found = []
    for one in gpus:
        device = CpuDevice()
        device.open(one)
        ctx = CheckContext(seed=7, level="quick", budget_s=budget_s, gpus=gpus, gpu=one, device=device, shapes=SHAPES)
        found.append(replace(ctx, **changes))  # type: ignore[arg-type]
    return found
