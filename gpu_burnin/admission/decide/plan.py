"""Which way a node goes: a person's word, then its own facts, then a test where one is wanted. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_burnin.admission.decide.facts import Facts, TestRequest, is_shut
from gpu_burnin.admission.decide.finding import ASKED_CODES, LEDGER_RESTORED, Finding
from gpu_burnin.admission.decide.order import Judged
from gpu_burnin.admission.decide.outlook import next_of
from gpu_burnin.admission.decide.retest import begun_test, why_asked
from gpu_burnin.admission.decide.unproven import AT_WORK, left_at_work, observes
from gpu_burnin.admission.decide.words import active, brief, sentence
from gpu_burnin.admission.view import Budget
from gpu_burnin.api.record import Next, State


@dataclass(frozen=True)
class Plan:
    """Where the node stands, whether it may take work (`open`), its test, which budget it needs, what comes next."""

    shown: Finding
    open: bool
    test: TestRequest
    next: Next
    needs: Budget | None = None


def plan_of(facts: Facts, judged: Judged) -> Plan:
    """The plan, without tests of our own where `denied` says that they have no grant.

    Where it has no grant to keep the node from work, what people ask is still done, and all else stays as it is.
    """
    was_open, own, shown, needs = not facts.gated, judged.own, judged.shown, None
    test, begun, planned = begun_test(facts, judged)
    is_open = was_open
    if not own.fit or shown.who:
        needs, left = _budget_to_gate(facts, own, shown), left_at_work(facts, fit=own.fit and not shown.who)
        if left:
            mine = begun is not None and begun.mine
            shown, needs = _left(shown if shown.who else own, test), Budget.TEST if mine else None
            if test.request is None and planned is None:
                planned = Next("tested" if left == AT_WORK else "nothing is done", left)
        elif needs is Budget.GATE and facts.denied is needs:
            shown, needs = _braked(facts, own, test), None
        else:
            shown, is_open = replace(shown, message=sentence(shown.message)), False
            if needs is None and begun is not None and begun.mine and own.code == LEDGER_RESTORED:
                needs = Budget.TEST  # a whole fleet may be in this doubt at once
    elif test.request is None:
        is_open = True
        words = f"{shown.message}; it is tested in its turn, when it is idle" if shown.due else shown.message
        shown = replace(shown, state=State.READY, message=words)
        # Where nothing but a person kept it from work, who has let it go, it needs no turn.
        asked = facts.spec.hold or facts.spec.quarantine
        free = was_open or (asked is None and facts.status.code in ASKED_CODES)
        needs = None if free else Budget.JOIN
    elif (
        own.due
        and not observes(facts)
        and (begun.mine if begun else facts.status.state is own.state and facts.denied is None)
    ):
        # Old proof of an idle node: it is kept from new work, as one that was never tested. Its test begins now, or is
        # in the record but not on the Node yet.
        shown, is_open, needs = replace(own, message=sentence(own.message)), False, Budget.EXPIRE
    else:
        name = facts.view.name
        if begun is not None:
            shown = Finding(State.TESTING, begun.code, f"{name}: {begun.why}")
            needs = Budget.TEST if was_open and begun.mine else None
        elif facts.status.state is State.TESTING:
            shown = Finding(State.TESTING, facts.status.code, facts.status.message)
        else:
            shown = Finding(State.TESTING, "TEST_DUE", f"{name}: {test.request.why}")
    return Plan(shown, is_open, test, planned or next_of(facts, shown, test, own), needs)


def _budget_to_gate(facts: Facts, own: Finding, shown: Finding) -> Budget | None:
    """The budget to keep it from work: none for a boot, the doubt after a restore of etcd, nor for what a person asks.

    A hold, and that doubt, keep new work away and no more, and the budget counts neither. What follows them is the
    admitter's own step: to ask the work on it to leave, and to keep it closed when they are over.
    """
    asked = shown.who or active(facts.spec.quarantine, facts.now) is not None
    if asked or facts.rebooted or (facts.restored is not None and not own.fault):
        return None
    before, restored = facts.before, facts.spec.restored
    closed_without_grant = before.state is State.HELD or is_shut(
        restored.since if restored is not None else "", before.confirmed, before.state
    )
    was_let_in = facts.status.accepted is not None
    own_step = not facts.gated or (closed_without_grant and (own.fault or was_let_in))
    return Budget.GATE if own_step else None


def _left(found: Finding, test: TestRequest) -> Finding:
    """A node of an attached cluster that would be closed and is not: nothing on it is asked to leave either."""
    state = State.SUSPECT if found.state is State.QUARANTINED else found.state
    if test.request is not None and not test.unanswered:
        state = State.TESTING
    return Finding(state, found.code, sentence(found.message), who=found.who, until=found.until)


def _braked(facts: Facts, own: Finding, test: TestRequest) -> Finding:
    """A node that should be out and stays as it is, since no budget granted it; the test that was asked for is had."""
    ask, request, state, code = facts.retest, test.request, facts.status.state, own.code
    if facts.gated:  # its state says that it was closed without a grant
        message = f"{brief(own.message)}; the hold that closed it is over"
    elif ask is not None and request is not None and request.why == why_asked(ask) and not test.unanswered:
        state, code, message = State.TESTING, "RETEST_ASKED", f"{brief(own.message)}; {request.why}"
    else:
        message = own.message
    return Finding(state, code, sentence(message))
