"""A check on all GPUs of a made-up node, as the executor would run it: a thread for each worker, real exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpu_burnin.checks import CHECKS, REGISTRY, CheckContext
from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import JSON, CheckResult, Gpu, SelftestResult
from tests.campaign.model import case_random
from tests.campaign.node import SHAPES, context_of, made_up_gpus, observe, plan_of, verdict
from tests.support.exchange_barrier import run_together


def node_of(*case: object, least: int = 2, most: int = 4) -> tuple[tuple[Gpu, ...], int]:
    """The GPUs of a case and the index of the faulty one."""
    source = case_random("place", *case)
    gpus = made_up_gpus(source.randint(least, most))
    return gpus, source.randrange(len(gpus))


def run_group(
    check: str,
    gpus: tuple[Gpu, ...],
    seed: int,
    *,
    devices: Mapping[int, Device] | None = None,
    inject: Mapping[int, tuple[str, ...]] | None = None,
    shapes: Mapping[str, int] = SHAPES,
    level: str = "quick",
    options: Mapping[str, JSON] | None = None,
    budget_s: float = 0.0,
    run: Callable[[CheckContext], CheckResult] | None = None,
) -> list[CheckResult]:
    """The results of one check on all GPUs. `devices` and `inject` are of single GPUs, by index.

    An error of a device becomes what the executor makes of it. `run` replaces the check's own.
    """
    made = [
        context_of(
            gpus, gpu.index, seed=seed, device=(devices or {}).get(gpu.index),
            inject=(inject or {}).get(gpu.index, ()), shapes=shapes, level=level, options=options, budget_s=budget_s,
        )
        for gpu in gpus
    ]  # fmt: skip
    outcome = run_together(run or REGISTRY[check].run, made)
    return [_as_result(check, gpu, outcome[gpu.uuid]) for gpu in gpus]


def _as_result(check: str, gpu: Gpu, outcome: CheckResult | Exception) -> CheckResult:
    if isinstance(outcome, CheckResult):
        return outcome
    if not isinstance(outcome, DeviceError):
        raise outcome
    reason = make_reason("CHECK_ERROR", check, f"{check} could not run: {outcome}", gpu=gpu.uuid)
    return CheckResult(check, gpu.uuid, reason.severity, 0.0, reasons=(reason,))


def selftests(check: str, gpus: Sequence[Gpu], seed: int) -> list[SelftestResult]:
    """What the self-test of each GPU gave, on healthy devices; none where the check has no detector of its own."""
    if not CHECKS[check].selftested:
        return []
    return [
        test
        for gpu in gpus
        for test in REGISTRY[check].selftest(context_of(tuple(gpus), gpu.index, seed=seed))
    ]  # fmt: skip


def judge_group(
    check: str, gpus: tuple[Gpu, ...], seed: int, results: Sequence[CheckResult], **changes: object
) -> Judgement:
    """The real verdict on the results of one check, with its self-tests."""
    return verdict(observe(plan_of(gpus, check), results, selftests(check, gpus, seed), **changes))
