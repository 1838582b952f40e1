"""The verdict: what was found, and what was not looked at, against the policy. Pure; the policy is data.

PASS needs everything: each planned check with a passing result on each GPU, enough covered, every self-test
seen by its detector, a kernel log that was read to the end without a gap. FAIL beats INCONCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_burnin.checks import CHECK_NAMES, SELFTESTED
from gpu_burnin.checks.state.node import persistence_notices
from gpu_burnin.engine.plan import Plan
from gpu_burnin.hardware import SkuTable, XidTable, load_skus, load_xids, make_reason
from gpu_burnin.hardware.floors import at_lowered_power, judge_floors, with_floors
from gpu_burnin.hardware.policy import TelemetryPolicy, load_policy
from gpu_burnin.judge.attribution import attributed
from gpu_burnin.judge.coverage import coverage_reasons
from gpu_burnin.judge.gemm_agreement import disagreements
from gpu_burnin.judge.ladder import escalated, worst_action
from gpu_burnin.judge.pcie_outliers import pcie_notices
from gpu_burnin.judge.plausible import believable
from gpu_burnin.judge.power import judge_power
from gpu_burnin.judge.telemetry import judge_telemetry
from gpu_burnin.judge.xid import XidFindings, is_own, judge_xids
from gpu_burnin.settings.expectations import expectations_of
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.sampling_record import EVENTS
from gpu_burnin.types import (
    JSON,
    Action,
    CheckResult,
    Gpu,
    Notice,
    Reason,
    SelftestResult,
    Verdict,
    worst,
)

# What a run says of itself; the other codes say why.
_CONSEQUENCES = frozenset({"COVERAGE_LOW", "SIMULATED", "INJECTED"})


@dataclass(frozen=True)
class KernelLogFindings:
    """What the kernel log gave since boot. `alive`: it was there to be read, to the end of the run.

    `before` are the events it held just before the first check started: the run did not cause them.
    """

    source: str
    alive: bool
    gaps: int = 0
    events: tuple[XidEvent, ...] = ()
    before: tuple[XidEvent, ...] = ()


@dataclass(frozen=True)
class Observations:
    """Everything one run saw.

    `gpus` are all GPUs of the node, tested or not. `killed_pids` are processes the executor killed itself.
    `extra` are reasons found outside the checks (a host that died during the run before). `left_out` are checks
    and `shortfalls` sentences on where the run was asked to do less than this host's configuration wants. `notices`
    are warnings that do not come of the checks.
    `passed_this_boot`: a run of this boot had passed before, so that users' work may have run since.
    `last_reasons` are those of the run before, and `restarted` says that the host was restarted since then.
    `opens_gate`: a PASS is signed, and must know of what happened since boot.
    """

    plan: Plan
    gpus: tuple[Gpu, ...]
    results: tuple[CheckResult, ...]
    selftests: tuple[SelftestResult, ...]
    kernel_log: KernelLogFindings
    simulated: bool
    allow_simulated: bool
    killed_pids: frozenset[int] = frozenset()
    telemetry: TelemetryFindings = field(default_factory=TelemetryFindings)
    extra: tuple[Reason, ...] = ()
    left_out: tuple[str, ...] = ()
    shortfalls: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    interrupted: bool = False
    passed_this_boot: bool = False
    last_reasons: tuple[Reason, ...] = ()
    restarted: bool = False
    opens_gate: bool = True


@dataclass(frozen=True)
class Gap:
    """A part of the plan that has no result. `gpu` None: the node."""

    check: str
    gpu: str | None


@dataclass(frozen=True)
class Judgement:
    """The outcome of a run. `gpus` has the verdict on each GPU (UUID) by its own results and reasons.

    `notices` are what a person should know though it does not keep the node out. `results` are those of the
    run, with the model's floors written into their measurements.
    """

    verdict: Verdict
    action: Action
    reasons: tuple[Reason, ...]
    gpus: Mapping[str, Verdict] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    notices: tuple[Notice, ...] = ()
    results: tuple[CheckResult, ...] = ()


def judge(
    seen: Observations, xids: XidTable, skus: SkuTable | None = None, policy: TelemetryPolicy | None = None
) -> Judgement:
    """The verdict, the worst action on the ladder, the reasons, worst first, and the notices.

    `skus` and `policy` are the shipped ones unless given.
    """
    models, rules = skus or load_skus(), policy or load_policy()
    gaps = tuple(missing_results(seen.plan, seen.results))
    limits = {series.gpu: series.limits for series in seen.telemetry.series}
    tested, lowered_notices = at_lowered_power(seen.results, limits, expectations_of(seen.plan.options).power_limit_w)
    results = with_floors(tested, seen.gpus, simulated=seen.simulated, skus=models)
    power = judge_power(results, believable(seen.telemetry, rules), seen.plan.gpus, rules)
    results = power.results
    slow, slow_notices = judge_floors(results)
    links, link_notices = attributed(results, seen.gpus, simulated=seen.simulated)
    telemetry, telemetry_notices = judge_telemetry(seen.telemetry, _watched(seen), results, rules)
    logged = _logged(seen, xids)
    reasons = _in_order(
        escalated(reason, seen.last_reasons, seen.restarted)
        for reason in (
            *seen.extra,
            *_run_reasons(seen),
            *(reason for result in results for reason in result.reasons),
            # Those of a check that came to its result are among its reasons already: an interrupted one has none.
            *(test.real for test in seen.selftests if test.real is not None),
            *_unexplained(results),
            *_gap_reasons(gaps, seen.interrupted),
            *coverage_reasons(results, seen.gpus, models, simulated=seen.simulated),
            *disagreements(results, seen.gpus),
            *links,
            *power.reasons,
            *slow,
            *_selftest_reasons(seen),
            *telemetry,
            *logged.reasons,
        )
    )
    return Judgement(
        verdict=worst([Verdict.PASS, *(reason.severity for reason in reasons)]),
        action=worst_action(reasons),
        reasons=reasons,
        gpus={gpu.uuid: _of_gpu(gpu.uuid, results, reasons, gaps) for gpu in seen.plan.gpus},
        gaps=gaps,
        notices=(
            *seen.notices,
            *lowered_notices,
            *slow_notices,
            *link_notices,
            *pcie_notices(results, seen.gpus),
            *persistence_notices(results),
            *power.notices,
            *telemetry_notices,
            *logged.notices,
        ),
        results=results,
    )


def _logged(seen: Observations, xids: XidTable) -> XidFindings:
    log = seen.kernel_log
    return judge_xids(
        log.events,
        seen.gpus,
        log.gaps,
        log.source if log.alive else "",
        xids,
        seen.killed_pids,
        before=log.before,
        users_ran=seen.passed_this_boot,
        reported=seen.telemetry.xids,
        driver_told=not seen.opens_gate and _told_by_driver(seen),
    )


def _told_by_driver(seen: Observations) -> bool:
    """Whether NVML would have reported each XID of each GPU under test, from the begin of the run to its end."""
    alive = {source.gpu for source in seen.telemetry.sources if source.name == EVENTS and source.alive}
    watched = _watched(seen)
    return bool(watched) and all(gpu.uuid in alive for gpu in watched)


def _watched(seen: Observations) -> tuple[Gpu, ...]:
    """The GPUs that samplers had to watch: none where nothing was started on any GPU, as when one is busy."""
    return seen.plan.gpus if any(check.per_gpu for check in seen.plan.checks) else ()


def missing_results(plan: Plan, results: Iterable[CheckResult]) -> Iterator[Gap]:
    """The planned checks, per GPU, that gave no result."""
    have = {(result.name, result.gpu) for result in results}
    for check in plan.checks:
        for gpu in [gpu.uuid for gpu in plan.gpus] if check.per_gpu else [None]:
            if (check.name, gpu) not in have:
                yield Gap(check.name, gpu)


def killed_by_run(event: XidEvent, killed_pids: frozenset[int]) -> bool:
    """Whether a code is one that follows a kill, and the driver blames a process that the executor killed itself."""
    return is_own(event, load_xids(), killed_pids)


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


def _selftest_reasons(seen: Observations) -> Iterator[Reason]:
    """Every detector that ran must have seen every fault injected for it; none injected proves nothing.

    A self-test that met a real fault blames the GPU (the check's reasons have it), not the detector. A worker that
    died or hung says nothing about a detector.
    """
    judged = {(test.check, test.gpu) for test in seen.selftests}
    ran = {(result.name, result.gpu) for result in seen.results if result.verdict is not Verdict.INCONCLUSIVE}
    passed = {(result.name, result.gpu) for result in seen.results if result.verdict is Verdict.PASS}
    for check, gpu in sorted(passed - judged, key=str):
        if check in SELFTESTED:
            message = f"no fault was injected into the check {check}, so its detector is not proven"
            yield make_reason("SELFTEST_BLIND", check, message, gpu=gpu, details={"faults": []})
    # Telemetry proves its detectors too, without a check of its name.
    for check, gpu in sorted(judged, key=str):
        if check in CHECK_NAMES and (check, gpu) not in ran:
            continue
        tests = [test for test in seen.selftests if (test.check, test.gpu) == (check, gpu)]
        blind: list[JSON] = [test.fault for test in tests if not (test.real or (test.injected and test.detected))]
        if blind:
            message = f"the {check} detector did not see injected faults: {', '.join(map(str, blind))}"
            yield make_reason("SELFTEST_BLIND", check, message, gpu=gpu, details={"faults": blind})


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
        message = "the run was on simulated hardware, which says nothing about real GPUs"
        yield make_reason("SIMULATED", "run", message)


def _in_order(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """FAIL first, then the harder action, then causes; otherwise as they came. A repeated reason is reported once."""
    unique = {(reason.code, reason.check, reason.gpu, reason.message): reason for reason in reasons}

    def weight(reason: Reason) -> tuple[bool, int, bool]:
        return reason.severity is not Verdict.FAIL, -reason.action.rank, reason.code in _CONSEQUENCES

    return tuple(sorted(unique.values(), key=weight))


def _of_gpu(uuid: str, results: Iterable[CheckResult], reasons: Iterable[Reason], gaps: Iterable[Gap]) -> Verdict:
    """A check that gave no result leaves the GPU untested, whatever the others say."""
    own = [result.verdict for result in results if result.gpu == uuid]
    missing = [Verdict.INCONCLUSIVE for gap in gaps if gap.gpu == uuid]
    return worst([*own, *missing, *(reason.severity for reason in reasons if reason.gpu == uuid)])
