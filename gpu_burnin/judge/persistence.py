"""Persistence mode: a setting of the machine that changes nothing while a run holds the GPUs. Pure."""

from __future__ import annotations

from gpu_burnin.checks.state.result import StateCoverage
from gpu_burnin.checks.state.rules import NAME
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.types import JSON, Notice


def judge_persistence(seen: Observations) -> Findings:
    """A notice that persistence mode is off, and of which GPUs."""
    covered = (result.coverage for result in seen.results)
    off = [uuid for one in covered if isinstance(one, StateCoverage) for uuid in one.persistence_off]
    if not off:
        return Findings()
    message = (
        f"persistence mode is off on {len(off)} GPUs: without a process the driver forgets settings and counts of "
        "errors, so those from before this run may be lost"
    )
    gpus: list[JSON] = [*off]
    gpu = off[0] if len(off) == 1 else None
    return Findings(notices=(Notice("PERSISTENCE_OFF", NAME, message, gpu, {"gpus": gpus}),))
