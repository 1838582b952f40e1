"""The verdict: what was found, and what was not looked at, against the policy. Pure; the policy is data.

PASS needs everything: each planned check with a passing result on each GPU, enough covered, every self-test
seen by its detector, a kernel log that was read to the end without a gap. FAIL beats INCONCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_burnin.hardware import XidTable, make_reason
from gpu_burnin.plan import Plan
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.xids import judge_xids
from gpu_burnin.types import (
    JSON,
    Action,
    CheckResult,
    Gpu,
    Reason,
    SelftestResult,
    Verdict,
    worst,
)

# With no fault in a time t, a rate above 3 / t would have shown with 95 % confidence: the rule of three,
# Hanley and Lippman-Hand, JAMA 249 (1983) 1743.
RULE_OF_THREE = 3.0
# Checks whose detectors are on the device and have to prove themselves in each run.
SELFTESTED = frozenset({"gemm", "hbm"})
# Least share of a GPU that a check must have covered on real hardware: covered, of, share (design, section 6).
LEAST_SHARE: Mapping[str, tuple[str, str, float]] = {"hbm": ("covered_bytes", "gpu_memory_bytes", 0.95)}


@dataclass(frozen=True)
class KernelLogFindings:
    """What the kernel log gave since boot. `alive`: it was there to be read, to the end of the run."""

    source: str
    alive: bool
    gaps: int = 0
    events: tuple[XidEvent, ...] = ()


@dataclass(frozen=True)
class Observations:
    """Everything one run saw.

    `gpus` are all GPUs of the node, tested or not. `killed_pids` are processes the executor killed itself.
    `extra` are reasons found outside the checks (a host that died during the run before). `left_out` are checks
    and `shortfalls` sentences on where the run was asked to do less than this host's configuration wants.
    """

    plan: Plan
    gpus: tuple[Gpu, ...]
    results: tuple[CheckResult, ...]
    selftests: tuple[SelftestResult, ...]
    kernel_log: KernelLogFindings
    simulated: bool
    allow_simulated: bool
    killed_pids: frozenset[int] = frozenset()
    extra: tuple[Reason, ...] = ()
    left_out: tuple[str, ...] = ()
    shortfalls: tuple[str, ...] = ()
    interrupted: bool = False


@dataclass(frozen=True)
class Gap:
    """A part of the plan that has no result. `gpu` None: the node."""

    check: str
    gpu: str | None


@dataclass(frozen=True)
class Judgement:
    """The outcome of a run. `gpus` has the verdict on each GPU (UUID) by its own results and reasons."""

    verdict: Verdict
    action: Action
    reasons: tuple[Reason, ...]
    gpus: Mapping[str, Verdict] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()


def judge(seen: Observations, xids: XidTable) -> Judgement:
    """The verdict, the worst action on the ladder, and the reasons, worst first."""
    gaps, log = tuple(missing_results(seen.plan, seen.results)), seen.kernel_log
    reasons = _in_order(
        (
            *seen.extra,
            *_run_reasons(seen),
            *(reason for result in seen.results for reason in result.reasons),
            *_unexplained(seen.results),
            *_gap_reasons(gaps, seen.interrupted),
            *_share_reasons(seen),
            *_selftest_reasons(seen),
            *judge_xids(log.events, seen.gpus, log.gaps, log.source if log.alive else "", xids, seen.killed_pids),
        )
    )
    return Judgement(
        verdict=worst([Verdict.PASS, *(reason.severity for reason in reasons)]),
        action=max((reason.action for reason in reasons), key=lambda action: action.rank, default=Action.NONE),
        reasons=reasons,
        gpus={gpu.uuid: _of_gpu(gpu.uuid, seen.results, reasons) for gpu in seen.plan.gpus},
        gaps=gaps,
    )


def missed_fault_rate(result: CheckResult) -> float | None:
    """Upper 95 % bound, per second, of a fault rate with which this result would still have been clean.

    None for a check of the node (a snapshot, no time on the hardware) and where a fault was seen.
    """
    if result.gpu is None or result.verdict is not Verdict.PASS or result.seconds <= 0:
        return None
    return RULE_OF_THREE / result.seconds


def missing_results(plan: Plan, results: Iterable[CheckResult]) -> Iterator[Gap]:
    """The planned checks, per GPU, that gave no result."""
    have = {(result.name, result.gpu) for result in results}
    for check in plan.checks:
        for gpu in [gpu.uuid for gpu in plan.gpus] if check.per_gpu else [None]:
            if (check.name, gpu) not in have:
                yield Gap(check.name, gpu)


def killed_by_run(event: XidEvent, killed_pids: frozenset[int]) -> bool:
    """Whether the driver blames a process that the executor killed itself."""
    return event.pid is not None and event.pid in killed_pids


def _unexplained(results: Iterable[CheckResult]) -> Iterator[Reason]:
    """A result that is not a PASS and does not say why must not be lost."""
    for result in results:
        if result.verdict is not Verdict.PASS and not result.reasons:
            yield make_reason(
                "COVERAGE_LOW",
                result.name,
                f"the check {result.name} gave {result.verdict} without a reason",
                gpu=result.gpu,
                severity=result.verdict,
            )


def _gap_reasons(gaps: tuple[Gap, ...], interrupted: bool) -> Iterator[Reason]:
    # An interrupted run says so once; the report's coverage lists what is missing.
    for gap in () if interrupted else gaps:
        message = f"the check {gap.check} is in the plan but has no result"
        yield make_reason("COVERAGE_LOW", gap.check, message, gpu=gap.gpu)


def _share_reasons(seen: Observations) -> Iterator[Reason]:
    for result in () if seen.simulated else seen.results:
        if result.name not in LEAST_SHARE or result.verdict is not Verdict.PASS:
            continue
        part, whole, least = LEAST_SHARE[result.name]
        covered, total = result.coverage.get(part), result.coverage.get(whole)
        known = isinstance(covered, int | float) and isinstance(total, int | float) and total > 0
        share = float(covered) / float(total) if known else 0.0  # type: ignore[arg-type]
        if share < least:
            yield make_reason(
                "COVERAGE_LOW",
                result.name,
                f"{share:.1%} was covered, at least {least:.0%} must be",
                gpu=result.gpu,
                evidence={part: covered, whole: total, "least_share": least},
            )


def _selftest_reasons(seen: Observations) -> Iterator[Reason]:
    """Every detector that ran must have seen every fault injected for it; none injected proves nothing."""
    for result in seen.results:
        if result.name not in SELFTESTED or result.verdict is Verdict.INCONCLUSIVE:
            continue
        tests = [test for test in seen.selftests if (test.check, test.gpu) == (result.name, result.gpu)]
        blind = [test.fault for test in tests if not (test.injected and test.detected)]
        if not tests:
            message = f"no fault was injected into the check {result.name}, so its detector is not proven"
        elif blind:
            message = f"the {result.name} detector did not see injected faults: {', '.join(blind)}"
        else:
            continue
        faults: list[JSON] = list(blind)
        yield make_reason("SELFTEST_BLIND", result.name, message, gpu=result.gpu, evidence={"faults": faults})


def _run_reasons(seen: Observations) -> Iterator[Reason]:
    if not seen.plan.gpus:
        yield make_reason("COVERAGE_LOW", "plan", "no GPU was tested")
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
        message = "the run was on simulated hardware, which says nothing of real GPUs"
        yield make_reason("SIMULATED", "run", message)


def _in_order(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """FAIL first, then the harder action; otherwise as they came. The same reason twice is told once."""
    unique = {(reason.code, reason.check, reason.gpu, reason.message): reason for reason in reasons}
    return tuple(sorted(unique.values(), key=lambda reason: (reason.severity is not Verdict.FAIL, -reason.action.rank)))


def _of_gpu(uuid: str, results: Iterable[CheckResult], reasons: Iterable[Reason]) -> Verdict:
    own = [result.verdict for result in results if result.gpu == uuid]
    return worst([*own, *(reason.severity for reason in reasons if reason.gpu == uuid)])
