"""How much a PASS may claim: what the checks covered against what they must have covered on real hardware. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpu_burnin.checks.gemm.result import GemmCoverage
from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.system.values import number_of
from gpu_burnin.types import JSON, CheckResult, Reason, Untyped, Verdict

# With no fault in a time t, a rate above 3 / t would have shown with 95 % confidence: the rule of three,
# Hanley and Lippman-Hand, JAMA 249 (1983) 1743.
RULE_OF_THREE = 3.0


@dataclass(frozen=True)
class Share:
    """The part of a whole that a check must have covered, by the names of both in its coverage.

    `none_ok`: the whole may be 0, as counted by the check; elsewhere that is no coverage.
    """

    covered: str
    whole: str
    least: float
    none_ok: bool = False


# Design, section 6: memory but for what the driver keeps, every SM.
LEAST_SHARE: Mapping[str, Share] = {
    "hbm": Share("covered_bytes", "gpu_memory_bytes", 0.95),
    "sm": Share("sms_covered", "sms_total", 1.0),
    # One GPU has no pair, and pairs that cannot and need not reach each other are none.
    "nvlink": Share("pairs_covered", "pairs_total", 1.0, none_ok=True),
}
# Copies and collectives that were made, and those of them whose data was compared: a PASS covers no others.
ALL_VERIFIED: Mapping[str, Share] = {
    "pcie": Share("copies_verified", "copies_moved", 1.0),
    "nvlink": Share("copies_verified", "copies_moved", 1.0, none_ok=True),
    "nccl": Share("operations_verified", "operations", 1.0),
}
# Memory faults hide from single patterns: stuck cells show in their complement, joined address lines only where words
# differ, coupled neighbours only beside their opposite.
LEAST_PATTERNS = 4


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
    models, skus = seen.models, seen.rules.skus
    for result in seen.results:
        if result.verdict is not Verdict.PASS:
            continue
        yield from _share(result, LEAST_SHARE.get(result.name), "covered")
        yield from _share(result, ALL_VERIFIED.get(result.name), "verified")
        yield from _time(result)
        if result.name == "hbm":
            yield from _patterns(result)
        if result.name == "gemm":
            sku = skus.skus.get(models.get(result.gpu or "", ""))
            yield from _precisions(result, sku.precisions if sku else ())


def _time(result: CheckResult) -> Iterator[Reason]:
    """A check of a GPU that verified nothing for any time has tested nothing, whatever it says of the rest."""
    whole = LEAST_SHARE.get(result.name)
    nothing_to_test = whole is not None and whole.none_ok and _told(result, whole.whole) == 0
    if result.gpu is not None and not nothing_to_test and verified_s(result) <= 0:
        message = "the check verified no work of this GPU, so its result says nothing"
        details: dict[str, JSON] = {"seconds": result.seconds, "verified_s": result.coverage.verified_s}
        yield make_reason("COVERAGE_LOW", result.name, message, gpu=result.gpu, details=details)


def _share(result: CheckResult, wanted: Share | None, what: str) -> Iterator[Reason]:
    if wanted is None:
        return
    told = {key: _told(result, key) for key in (wanted.covered, wanted.whole)}
    if wanted.none_ok and told[wanted.whole] == 0:
        return
    # What was not counted was not covered.
    covered, whole = told[wanted.covered] or 0, told[wanted.whole] or 0
    share = covered / whole if whole > 0 else 0.0
    if share < wanted.least:
        message = f"{share:.1%} was {what}, at least {wanted.least:.0%} is required"
        details: dict[str, JSON] = {**told, "least_share": wanted.least}
        yield make_reason("COVERAGE_LOW", result.name, message, gpu=result.gpu, details=details)


def _told(result: CheckResult, field: str) -> int | None:
    """What the check counted; None where it has no such coverage."""
    if isinstance(result.coverage, Untyped):
        told = number_of(result.coverage, field)
        return None if told is None else int(told)
    return getattr(result.coverage, field, None)


def _patterns(result: CheckResult) -> Iterator[Reason]:
    """Memory must have gone through enough patterns; the check names those that went over all of it."""
    patterns = result.coverage.patterns if isinstance(result.coverage, HbmCoverage) else ()
    if len(patterns) < LEAST_PATTERNS:
        message = f"the memory went through {len(patterns)} patterns, at least {LEAST_PATTERNS} are required"
        details: dict[str, JSON] = {"patterns": patterns, "least_patterns": LEAST_PATTERNS}
        yield make_reason("COVERAGE_LOW", result.name, message, gpu=result.gpu, details=details)


def _precisions(result: CheckResult, wanted: tuple[str, ...]) -> Iterator[Reason]:
    """Each precision that the model has must have run, and on its own data path; of an unknown model, all that ran."""
    covered = result.coverage if isinstance(result.coverage, GemmCoverage) else None
    paths = covered.data_path if covered else {}
    # What the check itself says it left out counts only where the model has hardware for it.
    left = covered.precisions_not_covered if covered else ()
    missing = sorted((set(wanted) - set(paths)) | (set(left) & set(wanted)))
    if missing or not paths:
        message = f"the precisions {', '.join(missing)} were not tested" if missing else "no precision was tested"
        missed: dict[str, JSON] = {"precisions_missing": missing}
        yield make_reason("COVERAGE_LOW", result.name, message, gpu=result.gpu, details=missed)
    judged = [name for name in sorted(paths) if name in wanted or not wanted]
    unproven = {name: paths[name].why or "no proof" for name in judged if not paths[name].proven}
    if unproven:
        listed = "; ".join(f"{name}: {why}" for name, why in unproven.items())
        message = f"it is not proven that the products ran on the unit they were meant for ({listed})"
        yield make_reason(
            "COVERAGE_LOW", result.name, message, gpu=result.gpu, details={"data_path_unproven": unproven}
        )
