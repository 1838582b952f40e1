"""A power cycle, or a repair, that a FAIL asked for and that is owed until it is confirmed. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime

from gpu_burnin.admission.decide.times import LONG_AGO, stamp, when
from gpu_burnin.admission.decide.words import fault
from gpu_burnin.admission.view import Evidence
from gpu_burnin.api.levels import LEVELS
from gpu_burnin.api.record import PowerCycle, Spec
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.types import Action, Verdict

GPU_COUNT = "GPU_COUNT"
# What no reboot does, and no PASS shows to be done: what gave a wrong result once may give right ones for days.
_OWING = (Action.POWER_CYCLE, Action.REPAIR)


def owed(before: PowerCycle | None, evidence: Evidence, now: datetime) -> PowerCycle | None:
    """What is owed once this evidence, which is new, was seen."""
    statement = evidence.statement
    if statement is None or statement.verdict is not Verdict.FAIL or statement.action not in _OWING:
        return before
    code, gpus, action = fault(statement), "", Action(statement.action)
    if before is not None and before.action.rank > action.rank:
        code, action = before.code, before.action
    elif code == GPU_COUNT and statement.level in LEVELS:
        if before is not None and not before.gpus_sha256:
            code = before.code  # a number that is corrected would end what a fault has asked for
        else:
            gpus = _gpus_sha256(evidence)
    return PowerCycle(code, statement.boot_id, stamp(now), gpus, action)


def settled(debt: PowerCycle, spec: Spec, evidence: Evidence) -> bool:
    """Whether it is owed no more: somebody says that the power was off since, or the number of GPUs was wrong.

    That it was is known when the very GPUs pass that were too few or too many, now that the inventory names their
    number. Both runs have signed which GPUs they saw. Without a number in the inventory a run expects as many as the
    PCI bus shows, of which one may have fallen off since.
    """
    since, statement = when(debt.since), evidence.statement
    # The repair ladder powers a machine off and on, and repairs nothing.
    who = (spec.retest,) if debt.action is Action.REPAIR else (spec.retest, spec.repair)
    asks = (ask for ask in who if ask is not None and ask.power_cycled)
    if since is not None and any((when(ask.since) or LONG_AGO) >= since for ask in asks):
        return True
    if not debt.gpus_sha256 or statement is None or evidence.code is not None:
        return False
    proven = statement.verdict is Verdict.PASS and (spec.identity.allow_simulated or not statement.simulated)
    number = len(_gpus(evidence))
    return proven and 0 < number == spec.hardware.gpus and _gpus_sha256(evidence) == debt.gpus_sha256


def _gpus(evidence: Evidence) -> list[object]:
    found = evidence.hardware.get("gpus")
    return list(found) if isinstance(found, list) else []


def _gpus_sha256(evidence: Evidence) -> str:
    """Of the GPUs alone: driver and kernel may change with the boot."""
    return hashlib.sha256(canonical_json({"gpus": _gpus(evidence)})).hexdigest()
