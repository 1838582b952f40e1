"""From all that is known of a node to what has to change. Pure: no I/O, no clock of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpu_burnin.admission.decide.desired import condition_of, desired_state, maintenance_patch, shut
from gpu_burnin.admission.decide.draining import draining
from gpu_burnin.admission.decide.judge import Facts, Judged, judge
from gpu_burnin.admission.decide.maintenance import BEGUN, OVER, Windows, began, windows
from gpu_burnin.admission.decide.nodes import gated, labelled_ready
from gpu_burnin.admission.decide.offered import GPUS_MISSING
from gpu_burnin.admission.decide.outlook import next_of
from gpu_burnin.admission.decide.patches import condition_patch, node_patch, our_taints
from gpu_burnin.admission.decide.phase import Phase, without_node
from gpu_burnin.admission.decide.plan import Plan, plan_of
from gpu_burnin.admission.decide.remember import examined, remembered
from gpu_burnin.admission.decide.restored import after_restore, confirmed
from gpu_burnin.admission.decide.retest import TestRequest, retest_asked, test_request_of, why_asked
from gpu_burnin.admission.decide.times import earliest, later, stamp, when
from gpu_burnin.admission.decide.waits import waits_for
from gpu_burnin.admission.decide.words import PAUSED, sentence
from gpu_burnin.admission.view import Budget, Decision, Rules, View
from gpu_burnin.api.names import ADMITTER_USER
from gpu_burnin.api.record import (
    MOST_TRANSITIONS,
    Accepted,
    BootTests,
    DrainRequest,
    Next,
    Request,
    Spec,
    Status,
    Transition,
)
from gpu_burnin.system.hardware_identity import UNNAMED, bounded, difference

_SINCE = "since it was let in last"


def decide(view: View, rules: Rules, now: datetime) -> Decision:
    """Everything that has to change for one node. Deciding again on the result changes nothing.

    A pause holds back what lets a node in and all tests, never what takes one from work.
    """
    decision = _decide(view, rules, now, None)
    if view.paused and decision.opens and view.record is not None and _acts(decision, view.record.status):
        return withheld(view, decision, f"{PAUSED}: {view.paused}", None, rules, now)
    return decision


def withheld(view: View, decision: Decision, why: str, until: datetime | None, rules: Rules, now: datetime) -> Decision:
    """What is left of a decision that gets no grant: what was seen is kept, and `status.next` says what waits for what.

    What needs no grant, such as what a person asks or the taint of a maintenance window, is still done. Said again,
    nothing changes, though `until` moves: it is told where it is this node's turn, and else when it is looked at again.
    """
    record = view.record
    if record is None:
        return Decision(decision.status)
    if decision.needs is None or (view.paused and decision.opens):
        rest = _stay(view, record.spec, record.status, rules, now)
    else:
        rest = _decide(view, rules, now, decision.needs)
    what, why = waits_for(view.name, decision, rest, why)
    its_turn = until is not None and decision.needs is Budget.JOIN
    planned, old = Next(what, why, stamp(until) if until is not None and its_turn else ""), record.status.next
    if old is not None and its_turn and (old.what, old.why) == (what, why):
        at = when(old.at)
        planned = old if at is not None and at > now else planned
    status = replace(rest.status, next=planned)
    if decision.opens and view.node is not None and gated(view.node, rules.names):
        status = replace(status, message=sentence(f"{decision.status.message}; it waits to be let in"))
    return replace(rest, status=status, needs=None, wake_at=earliest(until, rest.wake_at))


def _decide(view: View, rules: Rules, now: datetime, denied: Budget | None) -> Decision:
    if view.record is None:
        return _unprovisioned(view, rules, now)
    spec, before = view.record.spec, view.record.status
    evidence, calendar = examined(view, spec, before), windows(view, before, rules, now)
    status = _with_maintenance(remembered(view, before, spec, evidence, now, rules), calendar, now)
    if view.node is None:
        phase = without_node(view, spec, status, now)
        return Decision(_moved(status, phase, next_of(phase, None), now, accepted=status.accepted))
    facts = Facts(view, view.node, spec, status, evidence, rules, now)
    test_request = test_request_of(facts, calendar)
    under_test = test_request.sent and not test_request.unanswered
    if denied is not Budget.GATE:  # without a grant to act on what its agent said, the doubt is what keeps it closed
        facts = replace(facts, status=confirmed(facts, test_request))
    facts = replace(
        facts,
        status=_retest_done(facts, test_request),
        unanswered=test_request.unanswered,
        under_test=under_test,
        asked=test_request.request is not None,
    )
    judged = _judged(facts, denied)
    plan = plan_of(facts, judged, test_request, calendar, denied)
    if test_request.unanswered and plan.test_request.request != facts.status.request:
        # A person has asked anew: the doubt ends with the request that it was about.
        facts = replace(facts, status=replace(facts.status, request=plan.test_request.request), unanswered="")
        judged = _judged(facts, denied)
        plan = plan_of(facts, judged, test_request_of(facts, calendar), calendar, denied)
    if denied is not None and plan.needs is not None:
        return _stay(view, spec, before, rules, now)
    return _carried_out(facts, judged, calendar, plan)


def _judged(facts: Facts, denied: Budget | None) -> Judged:
    """What is true of it, without the fault where no budget granted to act on one."""
    judged = judge(facts)
    return after_restore(facts, replace(judged, fault="") if denied is Budget.GATE else judged)


def _carried_out(facts: Facts, judged: Judged, calendar: Windows, plan: Plan) -> Decision:
    """The status and the patches of a plan."""
    names, now, phase = facts.rules.names, facts.now, plan.phase
    leaving = draining(facts, judged, calendar)
    let_in = plan.open and judged.fit and not judged.due and facts.statement is not None
    status = _moved(
        facts.status,
        phase,
        leaving.next or plan.next,
        now,
        _changed_since(facts) if let_in else "",
        request=plan.test_request.request,
        boot_tests=_boot_tests(facts, plan.test_request.request),
        leave=leaving.leave,
        accepted=_accepted(facts, judged) if let_in else facts.status.accepted,
    )
    desired = desired_state(facts, judged, plan, calendar, leaving, status)
    verified, reason = condition_of(judged, plan)
    return Decision(
        status=status,
        node_patch=node_patch(facts.node, desired, our_taints(names)),
        node_status_patch=condition_patch(facts.node, verified, reason, status.message, now),
        needs=plan.needs,
        evict=leaving.evict,
        pod_events=leaving.pod_events,
        wake_at=_wake(facts, status, judged, calendar, plan, leaving.wake_at),
        opens=plan.open,
    )


def _retest_done(facts: Facts, test_request: TestRequest) -> Status:
    """The status that knows of a person's ask for a test that it was done."""
    ask, request = retest_asked(facts), facts.status.request
    if not test_request.answered or ask is None or request is None or request.why != why_asked(ask):
        return facts.status
    return replace(facts.status, retested=ask.since)


def _boot_tests(facts: Facts, request: Request | None) -> BootTests | None:
    """The count of an undecided boot, with a new request of ours; None once kubelet reports, which ends the doubt."""
    if not facts.undecided_boot:
        return facts.status.boot_tests if facts.agent_boot != facts.boot else None
    ask = retest_asked(facts)
    new = request is not None and request != facts.status.request
    ours = request is not None and (ask is None or request.why != why_asked(ask))
    asked = facts.boot_tests + (new and ours)
    return BootTests(facts.agent_boot, asked) if asked else None


def _stay(view: View, spec: Spec, before: Status, rules: Rules, now: datetime) -> Decision:
    """The node stays as it is, but for what was seen and for the taint of a maintenance window.

    A pause holds back the end of a window, and not its begin.
    """
    evidence = examined(view, spec, before)
    calendar = windows(view, before, rules, now)
    status = _with_maintenance(remembered(view, before, spec, evidence, now, rules), calendar, now)
    stays = view.node is None or (view.paused and not calendar.why)
    patch = maintenance_patch(view.node, calendar, rules.names) if view.node is not None and not stays else None
    return Decision(status, patch, wake_at=calendar.changes_at)


def _unprovisioned(view: View, rules: Rules, now: datetime) -> Decision:
    """A Node without NodeAdmission: left gated, never admitted; gated if it was let in. Control planes are neither."""
    message = f"{view.name}: it has no NodeAdmission; add it to the inventory and run site.yml, or delete its Node"
    status = Status(code="NOT_PROVISIONED", message=message)
    node, names = view.node, rules.names
    if node is None or not (gated(node, names) or labelled_ready(node)):
        return Decision(status)
    was_open = not gated(node, names)
    patch = node_patch(node, shut(node, names), (names.preflight,))
    said_patch = condition_patch(node, "Unknown", status.code, message, now)
    return Decision(status, patch, said_patch, Budget.GATE if was_open else None)


def _moved(
    status: Status,
    phase: Phase,
    planned: Next,
    now: datetime,
    more: str = "",
    *,
    accepted: Accepted | None,
    request: Request | None = None,
    boot_tests: BootTests | None = None,
    leave: DrainRequest | None = None,
) -> Status:
    """The status at another place, with the transition where there is one; `more` is what that one tells besides."""
    # What has changed of the hardware is said as long as this admission holds, not in the first look alone.
    kept = status.message.startswith(f"{phase.message}; {_SINCE}") and not more
    moved = replace(
        status,
        message=status.message if kept else phase.message,
        next=planned,
        request=request,
        boot_tests=boot_tests,
        leave=leave,
        accepted=accepted,
    )
    if (status.state, status.code) == (phase.state, phase.code) and status.since:
        return moved
    time = stamp(now)
    who, message = phase.who or ADMITTER_USER, sentence(f"{phase.message}; {more}" if more else phase.message)
    step = Transition(time, str(status.state), str(phase.state), phase.code, message, who)
    moved = replace(moved, state=phase.state, code=phase.code, since=time, message=message)
    newest = status.transitions[-1] if status.transitions else None
    if newest is not None and (newest.at, newest.after, newest.code) == (step.at, step.after, step.code):
        return moved  # the begin of a maintenance window, which is told already
    return _with_transition(moved, step)


def _with_transition(status: Status, step: Transition) -> Status:
    return replace(status, transitions=(*status.transitions, step)[-MOST_TRANSITIONS:])


def _with_maintenance(status: Status, calendar: Windows, now: datetime) -> Status:
    """The begin and the end of a window stand among the transitions, whatever state the node is in."""
    here = str(status.state)
    if calendar.why and not began(status):
        return _with_transition(status, Transition(stamp(now), here, here, BEGUN, calendar.why, ADMITTER_USER))
    if not calendar.why and not calendar.unknown and began(status):
        return _with_transition(status, Transition(stamp(now), here, here, OVER, "the window is over", ADMITTER_USER))
    return status


def _changed_since(facts: Facts) -> str:
    """What of the hardware is not as it was when the node was last let in, at the moment it is let in again."""
    old, statement = facts.status.accepted, facts.statement
    if old is None or statement is None or old.hardware_sha256 == statement.hardware_sha256:
        return ""
    return f"{_SINCE}: {difference(old.hardware, facts.evidence.hardware) or UNNAMED}"


def _accepted(facts: Facts, judged: Judged) -> Accepted:
    statement, old = facts.statement, facts.status.accepted
    assert statement is not None
    expires = stamp(judged.expires) if judged.expires is not None else ""
    new = Accepted(
        sequence=statement.sequence,
        boot_id=statement.boot_id,
        report_sha256=statement.report_sha256,
        hardware_sha256=statement.hardware_sha256,
        level=statement.level,
        finished_at=statement.finished_at,
        admitted_at=stamp(facts.now),
        expires_at=expires,
        simulated=statement.simulated,
        hardware=bounded(facts.evidence.hardware),
    )
    if old is None or (old.boot_id, old.sequence, old.report_sha256) != (new.boot_id, new.sequence, new.report_sha256):
        return new
    return replace(old, expires_at=expires)


def _wake(
    facts: Facts, status: Status, judged: Judged, calendar: Windows, plan: Plan, leaving: datetime | None
) -> datetime | None:
    spec = facts.spec
    asks = (when(ask.until) for ask in (spec.hold, spec.quarantine, spec.retest, spec.repair) if ask is not None)
    planned = when(plan.next.at)
    since = when(status.since) if plan.phase.code == GPUS_MISSING else None
    grace = later(since, facts.rules.gpus_grace_s) if since is not None else None
    times = (judged.expires, calendar.changes_at, plan.test_request.wake_at, leaving, planned, grace, *asks)
    return earliest(*(time for time in times if time is not None and time > facts.now))


def _acts(decision: Decision, old: Status) -> bool:
    """Whether it does something to the Node, its pods, or where the node stands."""
    moved = (decision.status.state, decision.status.code) != (old.state, old.code)
    acts = decision.node_patch or decision.node_status_patch or decision.evict
    return bool(moved or acts or decision.status.request != old.request)
