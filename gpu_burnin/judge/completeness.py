"""Does each part of the plan have a result that says why, and each result a proven detector? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_burnin.checks import CHECK_NAMES, SELFTESTED
from gpu_burnin.engine.plan import Plan
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.types import JSON, CheckResult, Reason, Verdict


@dataclass(frozen=True)
class Gap:
    """A part of the plan that has no result. `gpu` None: the node."""

    check: str
    gpu: str | None


def missing_results(plan: Plan, results: Iterable[CheckResult]) -> Iterator[Gap]:
    """The planned checks, per GPU, that gave no result."""
    have = {(result.name, result.gpu) for result in results}
    for check in plan.checks:
        for gpu in [unit.uuid for unit in plan.units] if check.per_gpu else [None]:
            if (check.name, gpu) not in have:
                yield Gap(check.name, gpu)


def judge_completeness(seen: Observations) -> Findings:
    """COVERAGE_LOW for each result that is no PASS and does not say why, and for each that is missing."""
    return Findings((*_unexplained(seen.results), *_missing(seen)))


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


def _missing(seen: Observations) -> Iterator[Reason]:
    # An interrupted run says so once; the report's coverage lists what is missing.
    for gap in () if seen.interrupted else missing_results(seen.plan, seen.results):
        message = f"the check {gap.check} is in the plan but has no result"
        yield make_reason("COVERAGE_LOW", gap.check, message, gpu=gap.gpu)


def judge_selftests(seen: Observations) -> Findings:
    """SELFTEST_BLIND: every detector that ran must have seen every fault injected for it; none injected proves nothing.

    A self-test that met a real fault blames the GPU (the check's reasons have it), not the detector. A worker that
    died or hung says nothing about a detector.
    """
    return Findings(tuple(_blind(seen)))


def _blind(seen: Observations) -> Iterator[Reason]:
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
