"""A ledger that went back: etcd was restored, so the record may know less than was known of the node. Pure.

The provisioner names the restore in the spec. The node takes no new work until its agent has named that restore on the
Node, in one write with its newest evidence, or until a test that was asked for since is answered.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_burnin.admission.decide.judge import LEDGER_RESTORED, Facts, Judged, VerdictLabel
from gpu_burnin.admission.decide.remember import EVIDENCE_REPLAYED
from gpu_burnin.admission.decide.retest import TestRequest
from gpu_burnin.admission.decide.watched import AGENT_BOOT, unwatched
from gpu_burnin.admission.decide.words import brief, sentence
from gpu_burnin.api.record import Ask, Spec, State, Status


def doubted(spec: Spec, status: Status) -> Ask | None:
    """The restore after which nothing has confirmed the node yet, None where there is none."""
    restored = spec.restored
    return restored if restored is not None and restored.since != status.confirmed else None


def shut_by_restore(spec: Spec, status: Status) -> bool:
    """Whether the restore keeps it closed, and no grant: that is given for a fault alone."""
    since = spec.restored.since if spec.restored is not None else ""
    return is_shut(since, status.confirmed, status.state)


def is_shut(restored_since: str, confirmed: str, state: State) -> bool:
    """The same of the three values that decide it, for who has no whole record; "" for no restore and for none yet."""
    return bool(restored_since) and restored_since != confirmed and state is not State.QUARANTINED


def confirmed(facts: Facts, test_request: TestRequest) -> Status:
    """The status that knows whether agent or test have spoken since the restore."""
    restored, request = doubted(facts.spec, facts.status), facts.status.request
    if restored is None:
        return facts.status
    spoken = _named(facts, restored) and not _unheard(facts)
    tested = test_request.answered and request is not None and request.since >= restored.since
    return replace(facts.status, confirmed=restored.since) if spoken or tested else facts.status


def after_restore(facts: Facts, judged: Judged) -> Judged:
    """What is true of a node in this doubt: what speaks against it counts, what speaks for it is of the snapshot.

    A fault without a grant leaves it in the doubt, which needs none: closed, and its work on it.
    """
    restored = doubted(facts.spec, facts.status)
    braked = judged.verdict is VerdictLabel.FAIL and not judged.fault
    awaits = judged.code in (EVIDENCE_REPLAYED, AGENT_BOOT)
    if restored is None or not (judged.fit or judged.due or awaits or braked):
        return judged
    late = f"; {facts.unanswered}" if facts.unanswered else ""
    message = f"{_before_it(facts, judged, restored, braked=braked)}{late}"
    return Judged(
        State.SUSPECT, LEDGER_RESTORED, sentence(message), rebooted=judged.rebooted, retest=True, awaited=True
    )


def _before_it(facts: Facts, judged: Judged, restored: Ask, *, braked: bool) -> str:
    """What the node waits for; where that is a grant to act on what was found, the finding comes first."""
    etcd, agent = f"etcd was restored to an older state ({restored.why})", facts.view.agent
    if braked or (_named(facts, restored) and judged.code != AGENT_BOOT):
        return f"{brief(judged.message)}; {etcd}"
    if _named(facts, restored):
        return f"{facts.view.name}: {etcd}, no heartbeat of its agent has come since"
    if agent is not None and not agent.heartbeat:
        return f"{facts.view.name}: {etcd}, and its agent is too old to confirm the node: a test has to"
    return f"{facts.view.name}: {etcd}, its agent has not spoken since"


def _named(facts: Facts, restored: Ask) -> bool:
    return facts.view.agent is not None and facts.view.agent.restored == restored.since


def _unheard(facts: Facts) -> bool:
    """Whether a heartbeat is yet to come: to a leader that has just begun none is fresh, so that all would be out."""
    silence = unwatched(facts.view, facts.node, facts.status, facts.rules)
    return silence is not None and silence[1] == AGENT_BOOT
