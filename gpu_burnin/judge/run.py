"""What a run says of itself and its checks of what they found. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.types import Reason


def judge_run(seen: Observations) -> Findings:
    """How the run was meant and ended, and the reasons that its checks and their self-tests gave themselves."""
    return Findings(
        (
            *seen.extra,
            *_of_the_run(seen),
            *(reason for result in seen.results for reason in result.reasons),
            # Those of a check that came to its result are among its reasons already: an interrupted one has none.
            *(test.real for test in seen.selftests if test.real is not None),
        ),
        seen.notices,
    )


def _of_the_run(seen: Observations) -> Iterator[Reason]:
    if not seen.plan.gpus:
        demo = "; `gpu-burnin demo` shows the program without a GPU" if seen.no_real_gpu else ""
        yield make_reason("COVERAGE_LOW", "plan", f"no GPU was tested{demo}")
    if seen.plan.inject:
        message = f"faults were injected on purpose: {', '.join(seen.plan.inject)}"
        yield make_reason("INJECTED", "run", message)
    if seen.left_out:
        message = f"checks were left out: {', '.join(seen.left_out)}"
        yield make_reason("COVERAGE_LOW", "plan", message)
    for shortfall in seen.shortfalls:
        yield make_reason("COVERAGE_LOW", "plan", shortfall)
    if seen.interrupted:
        yield make_reason("INTERRUPTED", "run", "the run was stopped by a signal before it was complete")
    if seen.simulated and not seen.allow_simulated:
        message = "the run was on simulated hardware, which says nothing about real GPUs"
        yield make_reason("SIMULATED", "run", message)
