"""The verdict: what was found, and what was not looked at, against the policy. Pure; the policy is data.

PASS needs everything: each planned check with a passing result on each GPU, enough covered, every self-test
seen by its detector, a kernel log that was read to the end without a gap. FAIL beats INCONCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gpu_burnin.judge.attribution import judge_links
from gpu_burnin.judge.completeness import Gap, judge_completeness, judge_selftests, missing_results
from gpu_burnin.judge.corrected import judge_corrected
from gpu_burnin.judge.coverage import judge_coverage
from gpu_burnin.judge.floors import judge_floors, judge_power_limit
from gpu_burnin.judge.gemm_agreement import judge_gemm_agreement
from gpu_burnin.judge.ladder import escalated, worst_action
from gpu_burnin.judge.measured import measured
from gpu_burnin.judge.mig import judge_mig, of_gpus
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.judge.pcie_outliers import judge_pcie_outliers
from gpu_burnin.judge.persistence import judge_persistence
from gpu_burnin.judge.power import judge_power
from gpu_burnin.judge.run import judge_run
from gpu_burnin.judge.telemetry import judge_telemetry
from gpu_burnin.judge.xid import judge_xids
from gpu_burnin.types import Action, CheckResult, Notice, Reason, Verdict, worst

Judge: TypeAlias = Callable[[Observations], Findings]
# Reasons of one weight come in this order.
JUDGES: tuple[Judge, ...] = (
    judge_run,
    judge_completeness,
    judge_mig,
    judge_coverage,
    judge_gemm_agreement,
    judge_power_limit,
    judge_links,
    judge_pcie_outliers,
    judge_persistence,
    judge_corrected,
    judge_power,
    judge_floors,
    judge_selftests,
    judge_telemetry,
    judge_xids,
)
# Their notices come before all others: what holds for the whole run, then the rates.
_NOTICES_FIRST: frozenset[Judge] = frozenset({judge_run, judge_power_limit, judge_floors})
# What a run says of itself, and how many GPUs there are; the other codes say why. So evidence, which names the first
# code alone, names GPU_COUNT only where nothing else asks for as much.
_CONSEQUENCES = frozenset({"COVERAGE_LOW", "SIMULATED", "INJECTED", "GPU_COUNT"})


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


def judge(seen: Observations) -> Judgement:
    """The verdict, the worst action on the ladder, the reasons, worst first, and the notices."""
    seen = measured(seen)
    found = {of: of_gpus(seen.plan, of(seen)) for of in JUDGES}
    reasons = in_order(
        escalated(reason, seen.last_reasons, seen.restarted) for one in found.values() for reason in one.reasons
    )
    gaps = tuple(missing_results(seen.plan, seen.results))
    return Judgement(
        verdict=worst([Verdict.PASS, *(reason.severity for reason in reasons)]),
        action=worst_action(reasons),
        reasons=reasons,
        gpus={gpu.uuid: _of_gpu(gpu.uuids, seen.results, reasons, gaps) for gpu in seen.plan.gpus},
        gaps=gaps,
        notices=tuple(
            notice for of in sorted(JUDGES, key=lambda of: of not in _NOTICES_FIRST) for notice in found[of].notices
        ),
        results=seen.results,
    )


def in_order(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """FAIL first, then the harder action, then causes; otherwise as they came. A repeated reason is reported once."""
    unique = {(reason.code, reason.check, reason.gpu, reason.message): reason for reason in reasons}

    def weight(reason: Reason) -> tuple[bool, int, bool]:
        return reason.severity is not Verdict.FAIL, -reason.action.rank, reason.code in _CONSEQUENCES

    return tuple(sorted(unique.values(), key=weight))


def _of_gpu(
    uuids: Collection[str], results: Iterable[CheckResult], reasons: Iterable[Reason], gaps: Iterable[Gap]
) -> Verdict:
    """A check that gave no result leaves the GPU untested, whatever the others say; `uuids` has those of instances."""
    own = [result.verdict for result in results if result.gpu in uuids]
    missing = [Verdict.INCONCLUSIVE for gap in gaps if gap.gpu in uuids]
    return worst([*own, *missing, *(reason.severity for reason in reasons if reason.gpu in uuids)])
