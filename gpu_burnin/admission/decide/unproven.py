"""What attaching leaves at work: every node while it observes, and one that works and was never tested. Pure."""

from __future__ import annotations

from gpu_burnin.admission.decide.facts import Facts
from gpu_burnin.admission.decide.words import active
from gpu_burnin.api.attached import Mode

OBSERVES = "Muster only observes here, and keeps no node from work until `muster attach --enforce`"
AT_WORK = "it was at work when Muster came and was never tested: its test waits until it is idle"


def left_at_work(facts: Facts, *, fit: bool) -> str:
    """Why a node that would be closed is left open, "" for one that is fit, closed already, or is to be closed."""
    mode = facts.rules.mode
    if fit or mode is Mode.BUILT or not facts.there or facts.gated:
        return ""
    if mode is Mode.OBSERVING:
        return OBSERVES
    spec, now = facts.spec, facts.now
    asked = any(active(ask, now) is not None for ask in (spec.hold, spec.quarantine, spec.repair, spec.retest))
    never = facts.before.accepted is None and facts.statement is None
    busy = any(pod.gpus and not pod.ended for pod in facts.view.pods)
    return AT_WORK if never and busy and not asked else ""


def observes(facts: Facts) -> bool:
    """Whether no taint of ours may keep work away, but that of a test of an idle node."""
    return facts.rules.mode is Mode.OBSERVING
