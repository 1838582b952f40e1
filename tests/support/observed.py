"""A run that saw nothing but what a test puts into it, for the tests of single judges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpu_burnin.engine.plan import make_plan
from gpu_burnin.judge.observations import KernelLogFindings, Observations
from gpu_burnin.types import CheckResult, Gpu


def observed(
    results: Iterable[CheckResult] = (),
    gpus: Sequence[Gpu] = (),
    *,
    checks: Sequence[str] | None = None,
    **changes: Any,
) -> Observations:
    """These results on these GPUs, planned at the level quick without self-tests; the kernel log was silent."""
    seen = Observations(
        plan=make_plan("quick", backend="cuda", gpus=gpus, seed=1, checks=checks, selftest=False),
        gpus=tuple(gpus),
        results=tuple(results),
        selftests=(),
        kernel_log=KernelLogFindings("made up", alive=True),
        simulated=False,
        allow_simulated=False,
    )
    return replace(seen, **changes)
