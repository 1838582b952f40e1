"""How much a PASS may claim: what the checks covered against what they must have covered on real hardware. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.types import CheckResult, Reason, Shortfall, Verdict

# With no fault in a time t, a rate above 3 / t would have shown with 95 % confidence: the rule of three,
# Hanley and Lippman-Hand, JAMA 249 (1983) 1743.
RULE_OF_THREE = 3.0


def missed_fault_rate(result: CheckResult) -> float | None:
    """Upper 95 % bound, per second of verified work, of a fault rate with which this result would still be clean.

    It holds for a fault of any part (a direction, a precision) that the check tells apart: the part with the least
    verified time counts. None for a check of the node (a snapshot, no time on the hardware), where a fault was seen,
    and where nothing was verified.
    """
    if result.gpu is None or result.verdict is not Verdict.PASS:
        return None
    least_s = min([verified_s(result), *result.coverage.verified_parts_s.values()])
    return RULE_OF_THREE / least_s if least_s > 0 else None


def verified_s(result: CheckResult) -> float:
    """Seconds of the check's work of which every result was verified; 0 where the check does not say.

    Never more than the time in which it had its GPU: in a check of all together it waits for the turns of others, and
    power waves wait for their grant (`waited_s`).
    """
    active_s = result.seconds - (result.coverage.waited_s or 0.0)
    return max(0.0, min(result.coverage.verified_s, active_s))


def missed_fault_rate_of_gpu(gpu: str, results: Iterable[CheckResult]) -> float | None:
    """The same bound for a GPU (UUID) over the whole run: for faults that come and go whatever the check.

    None where any of its checks did not pass, or none ran.
    """
    own = [result for result in results if result.gpu == gpu]
    seconds = sum(verified_s(result) for result in own)
    if any(result.verdict is not Verdict.PASS for result in own) or seconds <= 0:
        return None
    return RULE_OF_THREE / seconds


def judge_coverage(seen: Observations) -> Findings:
    """COVERAGE_LOW for each passing result that covers less than it must; simulated hardware has nothing to cover."""
    return Findings(() if seen.simulated else tuple(_too_little(seen)))


def _too_little(seen: Observations) -> Iterator[Reason]:
    models, skus = seen.models, seen.rules.skus.skus
    for result in seen.results:
        if result.verdict is not Verdict.PASS:
            continue
        sku = skus.get(models.get(result.gpu or "", ""))
        for short in (*result.coverage.shortfalls(sku.precisions if sku else ()), *_no_time(result)):
            yield make_reason("COVERAGE_LOW", result.name, short.message, gpu=result.gpu, details=short.details)


def _no_time(result: CheckResult) -> Iterator[Shortfall]:
    """A check of a GPU that verified nothing for any time has tested nothing, whatever it says of the rest."""
    if result.gpu is not None and not result.coverage.nothing_to_test and verified_s(result) <= 0:
        message = "the check verified no work of this GPU, so its result says nothing"
        yield Shortfall(message, {"seconds": result.seconds, "verified_s": result.coverage.verified_s})
