"""Corrected memory errors from before the run, which a person should know of: a run judges what it adds."""

from __future__ import annotations

from gpu_burnin.checks.state.result import StateCoverage
from gpu_burnin.checks.state.rules import NAME
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import Notice


def judge_corrected(seen: Observations) -> Findings:
    """A notice for each GPU that has corrected far more errors than a good one, or has remapped rows for them."""
    labels = {gpu.uuid: gpu.label for gpu in seen.gpus}
    covered = (result.coverage for result in seen.results)
    found = {uuid: one for each in covered if isinstance(each, StateCoverage) for uuid, one in each.corrected.items()}
    return Findings(
        notices=tuple(
            Notice("ECC_CORRECTED", NAME, f"{labels.get(uuid, uuid)}: {one.words}", uuid, to_json(one))
            for uuid, one in found.items()
        )
    )
