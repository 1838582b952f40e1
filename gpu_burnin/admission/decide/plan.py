"""Which way a node goes: a person's word, then its own facts, then a test where one is wanted. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_burnin.admission.decide import retest
from gpu_burnin.admission.decide.judge import LEDGER_RESTORED, Facts, Judged
from gpu_burnin.admission.decide.maintenance import BEGUN, OVER, Windows
from gpu_burnin.admission.decide.nodes import gated
from gpu_burnin.admission.decide.offered import GPUS_MISSING, missing_gpus
from gpu_burnin.admission.decide.outlook import next_of
from gpu_burnin.admission.decide.phase import ASKED_CODES, Phase, phase_of
from gpu_burnin.admission.decide.restored import doubted, shut_by_restore
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.decide.words import active, brief, sentence
from gpu_burnin.admission.view import Budget
from gpu_burnin.api.record import Next, State


@dataclass(frozen=True)
class Plan:
    """Where the node stands, whether it may take work (`open`), its test, which budget it needs, what comes next."""

    phase: Phase
    open: bool
    test_request: retest.TestRequest
    next: Next
    needs: Budget | None = None


def plan_of(
    facts: Facts, judged: Judged, test_request: retest.TestRequest, calendar: Windows, denied: Budget | None
) -> Plan:
    """The plan, without tests of our own where `denied` says that they have no grant.

    Where it has no grant to keep the node from work, what people ask is still done, and all else stays as it is.
    """
    was_open = not gated(facts.node, facts.rules.names)
    test_request, begun, planned = _with_test(facts, judged, test_request, calendar, denied)
    phase = phase_of(facts.view.name, facts.spec, judged, facts.now)
    if not judged.fit or phase.who:
        if denied is Budget.GATE and was_open and not phase.who and doubted(facts.spec, facts.status) is None:
            return _plan(judged, _braked(facts, judged, test_request), True, test_request, planned, None)
        needs = _budget_to_gate(facts, judged, phase, was_open)
        if needs is None and begun is not None and begun.mine and judged.code == LEDGER_RESTORED:
            needs = Budget.TEST  # a whole fleet may be in this doubt at once
        if denied is Budget.GATE and needs is denied and not was_open:
            return _plan(judged, _braked(facts, judged, test_request), False, test_request, planned, None)
        return _plan(judged, phase, False, test_request, planned, needs)
    if test_request.request is None:
        phase = _ready(facts, judged, calendar)
        planned = planned or _after(facts, phase, calendar)
        free = was_open or _released(facts)
        return _plan(judged, phase, True, test_request, planned, None if free else Budget.JOIN)
    if judged.due and _keeps_out(facts, judged, begun, denied):
        # Old proof of an idle node: it is kept from new work, as one that was never tested.
        return _plan(judged, phase, False, test_request, planned, Budget.EXPIRE)
    if begun is not None:
        phase = Phase(State.TESTING, begun.code, f"{facts.view.name}: {begun.why}")
    elif facts.status.state is State.TESTING:
        phase = Phase(State.TESTING, facts.status.code, facts.status.message)
    else:
        phase = Phase(State.TESTING, "TEST_DUE", f"{facts.view.name}: {test_request.request.why}")
    budget = Budget.TEST if was_open and begun is not None and begun.mine else None
    return _plan(judged, phase, was_open, test_request, planned, budget)


def _budget_to_gate(facts: Facts, judged: Judged, phase: Phase, was_open: bool) -> Budget | None:
    """The budget to keep it from work: none for a boot, the doubt after a restore of etcd, nor for what a person asks.

    A hold, and that doubt, keep new work away and no more, and the budget counts neither. What follows them is the
    admitter's own step: to ask the work on it to leave, and to keep it closed when they are over.
    """
    asked = phase.who or active(facts.spec.quarantine, facts.now) is not None
    was_let_in = facts.status.accepted is not None
    own_step = was_open or (_closed_without_grant(facts) and (judged.fault or was_let_in))
    in_doubt = doubted(facts.spec, facts.status) is not None and not judged.fault
    return Budget.GATE if own_step and not (asked or judged.rebooted or in_doubt) else None


def _closed_without_grant(facts: Facts) -> bool:
    """Whether a hold or a restore of etcd closed it, whatever is said of it now."""
    record = facts.view.record
    return record is not None and (record.status.state is State.HELD or shut_by_restore(record.spec, record.status))


def _braked(facts: Facts, judged: Judged, test_request: retest.TestRequest) -> Phase:
    """A node that should be out and stays as it is, since no budget granted it; the test that was asked for is had."""
    if gated(facts.node, facts.rules.names):  # its state says that it was closed without a grant
        over = f"{brief(judged.message)}; the hold that closed it is over"
        return Phase(facts.status.state, judged.code, sentence(over))
    ask, request = retest.retest_asked(facts), test_request.request
    if ask is not None and request is not None and request.why == retest.why_asked(ask) and not test_request.unanswered:
        return Phase(State.TESTING, "RETEST_ASKED", sentence(f"{brief(judged.message)}; {request.why}"))
    return Phase(facts.status.state, judged.code, sentence(judged.message))


def _released(facts: Facts) -> bool:
    """Whether nothing but a person kept it from work, who has let it go."""
    asked = facts.spec.hold or facts.spec.quarantine
    return asked is None and facts.status.code in ASKED_CODES


def _keeps_out(facts: Facts, judged: Judged, begun: retest.TestTrigger | None, denied: Budget | None) -> bool:
    """Whether the test under way is one for old proof: begun now, or in the record but not on the Node yet."""
    return begun.mine if begun is not None else facts.status.state is judged.state and denied is None


def _plan(
    judged: Judged,
    phase: Phase,
    is_open: bool,
    test_request: retest.TestRequest,
    planned: Next | None,
    needs: Budget | None,
) -> Plan:
    planned = planned or next_of(phase, test_request.request, judged, unanswered=bool(test_request.unanswered))
    return Plan(phase, is_open, test_request, planned, needs)


def _with_test(
    facts: Facts, judged: Judged, test_request: retest.TestRequest, calendar: Windows, denied: Budget | None
) -> tuple[retest.TestRequest, retest.TestTrigger | None, Next | None]:
    """The request that is under way or is begun now, what triggers it, and what comes next where one waits."""
    wanted = retest.test_trigger(facts, judged, calendar, test_request)
    if wanted is None and retest.needless(facts, judged):
        return retest.TestRequest(), None, None
    if wanted is None or (test_request.request is not None and (wanted.mine or not test_request.unanswered)):
        return test_request, None, None
    if retest.kept(facts, wanted):
        return test_request, None, None
    if test_request.gave_up:
        again = stamp(later(facts.now, facts.rules.retry_s))
        return test_request, None, Next(retest.AGAIN, test_request.gave_up, again)
    why, until = retest.obstacle(facts, judged, wanted, calendar)
    if not why and wanted.mine and denied is not None and (judged.fit or judged.code == LEDGER_RESTORED):
        why = "the admitter begins no test of its own before a budget has room for it"
    if why:
        old = facts.status.next
        if judged.awaited and until is None:
            return test_request, None, None
        if old is not None and (old.what, old.why) == (retest.AGAIN, why):
            return test_request, None, old
        return test_request, None, Next("tested", why, stamp(until) if until is not None else "")
    request = retest.request_of(facts, wanted)
    begun = retest.test_request_of(replace(facts, status=replace(facts.status, request=request)), calendar)
    return begun, wanted, None


def _after(facts: Facts, phase: Phase, calendar: Windows) -> Next | None:
    """What ends that a node at work is not as it should be."""
    if phase.code == GPUS_MISSING:
        since = when(facts.status.since) if facts.status.code == GPUS_MISSING else None
        at = later(since or facts.now, facts.rules.gpus_grace_s)
        return Next("kept from new work", "unless kubelet offers all its GPUs by then", stamp(at))
    if phase.code == BEGUN:
        at_end = stamp(calendar.changes_at) if calendar.changes_at is not None else ""
        return Next("open to new work and tested", "when the maintenance is over", at_end)
    return None


def _ready(facts: Facts, judged: Judged, calendar: Windows) -> Phase:
    """A node that may take work, with what is known to come: the first of these is what people ask about."""
    name = facts.view.name
    if short := missing_gpus(facts.node, facts.spec.hardware, facts.tested):
        return Phase(State.READY, GPUS_MISSING, f"{name}: {short}")
    if calendar.why:
        return Phase(State.READY, BEGUN, f"{name}: {calendar.why}")
    if judged.due:
        return Phase(State.READY, judged.code, f"{judged.message}; it is tested in its turn, when it is idle")
    if warned := retest.warning(facts):
        return Phase(State.READY, "AGENT_WARNED", f"{name}: {warned}")
    if retest.after_maintenance(facts):
        return Phase(State.READY, OVER, f"{name}: it was not tested since its maintenance")
    return Phase(State.READY, judged.code, judged.message)
