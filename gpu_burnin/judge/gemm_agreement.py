"""Do the GPUs of a node agree on random products? Pure.

Random products are not exact: their bits depend on the order of the sums. Two GPUs owe each other the same
bits only where model, number of SMs and the library's algorithm are the same, and a difference alone does
not say which of them is wrong: it is INCONCLUSIVE.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

from gpu_burnin.checks.gemm.result import GemmCoverage
from gpu_burnin.checks.sm.result import SmCoverage
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.types import JSON, Reason, Verdict

# Precision, model, number of SMs, serialised algorithm: what has to be equal for equal bits.
_Group: TypeAlias = tuple[str, str, int | None, str]
# Random products of a precision.
_BOTH = 2


def judge_gemm_agreement(seen: Observations) -> Findings:
    """GEMM_DISAGREE for each precision in which comparable GPUs gave different bits.

    The reason is about the GPU that stands alone against two or more that agree, else about the node.
    """
    models = seen.models
    sms = {r.gpu: r.coverage.sms_total for r in seen.results if isinstance(r.coverage, SmCoverage)}
    groups: dict[_Group, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for result in seen.results:
        covered = result.coverage
        if not isinstance(covered, GemmCoverage) or result.gpu is None or result.verdict is not Verdict.PASS:
            continue
        for precision, digests in covered.random_digests.items():
            if len(digests) != _BOTH:
                continue  # a precision that did not come to both of its products
            algorithm = covered.algorithms.get(precision, "")
            groups[precision, models.get(result.gpu, ""), sms.get(result.gpu), algorithm][digests].append(result.gpu)
    return Findings(tuple(_reason(precision, found) for (precision, *_), found in groups.items() if len(found) > 1))


def _reason(precision: str, found: Mapping[tuple[str, ...], list[str]]) -> Reason:
    odd = [holders[0] for holders in found.values() if len(holders) == 1]
    several = [holders for holders in found.values() if len(holders) > 1]
    alone = odd[0] if len(odd) == 1 and len(several) == 1 else None
    details: dict[str, JSON] = {
        "digests": [{"digests": [*digests], "gpus": [*holders]} for digests, holders in found.items()]
    }
    what = f"bits for the same random {precision} products"
    if alone is None:
        message = f"{sum(map(len, found.values()))} GPUs of one model gave {len(found)} different {what}"
    else:
        message = f"other {what} than {len(several[0])} GPUs of the same model, which agree"
    return make_reason("GEMM_DISAGREE", "gemm", message, gpu=alone, details=details)
