"""From all that is known of a node to what has to change. Pure: no I/O, no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from gpu_burnin.admission.decide.between import fabric_test, test_ends
from gpu_burnin.admission.decide.desired import (
    DesiredState,
    condition_patch,
    desired_state,
    ledger_labels,
    node_patch,
    our_taints,
    proven,
    shut,
    team_taint,
)
from gpu_burnin.admission.decide.draining import Draining, draining
from gpu_burnin.admission.decide.facts import Facts, TestRequest, look
from gpu_burnin.admission.decide.finding import Finding, VerdictLabel
from gpu_burnin.admission.decide.nodes import gated, labelled_ready
from gpu_burnin.admission.decide.offered import GPUS_MISSING
from gpu_burnin.admission.decide.order import judge
from gpu_burnin.admission.decide.outlook import next_of, waits_for
from gpu_burnin.admission.decide.plan import plan_of
from gpu_burnin.admission.decide.retest import why_asked, with_test
from gpu_burnin.admission.decide.team import with_team
from gpu_burnin.admission.decide.times import earliest, later, stamp, when
from gpu_burnin.admission.decide.unproven import observes
from gpu_burnin.admission.decide.words import PAUSED, sentence
from gpu_burnin.admission.view import Budget, Patch, Pod, Rules, View
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.names import ADMITTER_USER, NO_SCHEDULE
from gpu_burnin.api.record import (
    Accepted,
    BootTests,
    Next,
    Request,
    Status,
    Transition,
    with_step,
)
from gpu_burnin.api.remedies import admit
from gpu_burnin.system.hardware_identity import UNNAMED, bounded, difference

_SINCE = "since it was let in last"


@dataclass(frozen=True)
class Decision:
    """What has to change. Patches are None where nothing is to change; the ledger (`status`) is written first.

    `needs` is the budget that has to grant it: without that the service writes `withheld(decision, why)` instead.
    `evict` are the pods to be asked to leave now, by the eviction API; `pod_events` are pods that get one event with
    this sentence. `wake_at` is when time alone changes something. `opens`: the node takes work by it, which
    waits for the end of a pause. `facts` are what it rests on, None where nobody says which machine the node is.
    """

    status: Status
    node_patch: Patch | None = None
    node_status_patch: Patch | None = None
    needs: Budget | None = None
    evict: tuple[Pod, ...] = ()
    pod_events: tuple[tuple[Pod, str], ...] = ()
    wake_at: datetime | None = None
    opens: bool = False
    facts: Facts | None = field(default=None, repr=False, compare=False)


def decide(view: View, rules: Rules, now: datetime) -> Decision:
    """Everything that has to change for one node. Deciding again on the result changes nothing.

    A pause holds back what lets a node in and all tests, never what takes one from work.
    """
    if view.record is None:
        return _unprovisioned(view, rules, now)
    facts = look(view, view.record, rules, now)
    decision = _decide(facts)
    if view.paused and decision.opens and _acts(decision, view.record.status):
        return withheld(decision, f"{PAUSED}: {view.paused}", None)
    return decision


def withheld(decision: Decision, why: str, until: datetime | None) -> Decision:
    """What is left of a decision that gets no grant: what was seen is kept, and `status.next` says what waits for what.

    What needs no grant, such as what a person asks or the taint of a maintenance window, is still done. Said again,
    nothing changes, though `until` moves: it is told where it is this node's turn, and else when it is looked at again.
    """
    facts, status = decision.facts, decision.status
    if facts is None:
        return Decision(status)
    paused = decision.needs is None or (facts.view.paused and decision.opens)
    rest = _stay(facts) if paused else _decide(replace(facts, denied=decision.needs))
    becomes = f"{status.state} ({status.code})"
    what, why = waits_for(facts.view.name, becomes, decision.needs, why, opens=rest.opens)
    its_turn = until is not None and decision.needs is Budget.JOIN
    planned, old = Next(what, why, stamp(until) if until is not None and its_turn else ""), facts.before.next
    if old is not None and its_turn and (old.what, old.why) == (what, why):
        at = when(old.at)
        planned = old if at is not None and at > facts.now else planned
    kept = replace(rest.status, next=planned)
    if decision.opens and facts.there and facts.gated:
        kept = replace(kept, message=sentence(f"{status.message}; it waits to be let in"))
    return replace(rest, status=kept, needs=None, wake_at=earliest(until, rest.wake_at))


def _decide(seen: Facts) -> Decision:
    """The decision on what was seen, or what is done without the budget that is denied."""
    now = seen.now
    if not seen.there:
        found = judge(seen)
        shown = replace(found.shown, message=sentence(found.shown.message))
        planned = next_of(seen, shown, TestRequest(), found.own)
        alone = replace(seen.status, next=planned, request=None, boot_tests=None, leave=None)
        return Decision(_moved(alone, shown, now), facts=seen)
    facts = with_test(seen)
    judged = judge(facts)
    own, plan = judged.own, plan_of(facts, judged)
    if facts.denied is not None and plan.needs is not None:
        return _stay(seen)
    leaving = Draining() if observes(facts) else draining(facts, own)
    let_in = plan.open and own.fit and not own.due and facts.statement is not None
    status = replace(
        facts.status,
        next=leaving.next or plan.next,
        request=plan.test.request,
        boot_tests=_boot_tests(facts, plan.test.request),
        leave=leaving.leave,
        accepted=_accepted(facts, own) if let_in else facts.status.accepted,
    )
    status = _moved(status, plan.shown, now, _changed_since(facts) if let_in else "")
    status = with_team(facts, plan, status)
    # True for a node that may take work, and for no other.
    verified = "True" if proven(facts, own, plan) else "False" if own.verdict is VerdictLabel.FAIL else "Unknown"
    asks = (ask for ask in (facts.spec.hold, facts.spec.quarantine, facts.spec.retest, facts.spec.repair) if ask)
    since = when(status.since) if plan.shown.code == GPUS_MISSING else None
    grace = later(since, facts.rules.gpus_grace_s) if since is not None else None
    running = fabric_test(facts)
    over = test_ends(running, now) if running is not None else None
    times = (
        own.expires,
        over,
        facts.windows.changes_at,
        plan.test.wake_at,
        leaving.pods.wake_at,
        when(plan.next.at),
        grace,
    )
    return Decision(
        status=status,
        node_patch=node_patch(
            facts.node, desired_state(facts, own, plan, leaving, status), our_taints(facts.rules.names)
        ),
        node_status_patch=condition_patch(facts.node, verified, plan.shown.code, status.message, now),
        needs=plan.needs,
        evict=leaving.pods.evict,
        pod_events=leaving.pods.pod_events,
        wake_at=earliest(*(at for at in (*times, *(when(ask.until) for ask in asks)) if at and at > now)),
        opens=plan.open,
        facts=seen,
    )


def _stay(facts: Facts) -> Decision:
    """The node stays as it is, but for what was seen, what the ledger says, and the taint of a maintenance window.

    A pause holds back the end of a window, and not its begin.
    """
    window, maintenance = facts.windows, facts.rules.names.maintenance
    patch = None
    if facts.there:
        names, team = facts.rules.names, facts.status.team
        judged = window.why or not facts.view.paused
        taints = team_taint(team, names) | ({(maintenance, NO_SCHEDULE): ""} if window.why else {})
        ours = (names.team, maintenance) if judged else (names.team,)
        patch = node_patch(facts.node, DesiredState(taints, ledger_labels(facts.spec, team)), ours)
    return Decision(facts.status, patch, wake_at=window.changes_at, facts=facts)


def _unprovisioned(view: View, rules: Rules, now: datetime) -> Decision:
    """A Node without NodeAdmission: left gated, never admitted; gated if it was let in. Control planes are neither."""
    message = f"{view.name}: it has no NodeAdmission; {admit(view.name, rules.mode)}"
    status = Status(code="NOT_PROVISIONED", message=message)
    node, names = view.node, rules.names
    if node is None or rules.mode is Mode.OBSERVING or not (gated(node, names) or labelled_ready(node)):
        return Decision(status)
    patch = node_patch(node, shut(node, names), (names.preflight, names.team))
    said_patch = condition_patch(node, "Unknown", status.code, message, now)
    return Decision(status, patch, said_patch, None if gated(node, names) else Budget.GATE)


def _boot_tests(facts: Facts, request: Request | None) -> BootTests | None:
    """The count of an undecided boot, with a new request of ours; None once kubelet reports, which ends the doubt."""
    if not facts.undecided_boot:
        return facts.status.boot_tests if facts.agent_boot != facts.boot else None
    new = request is not None and request != facts.status.request
    ours = request is not None and (facts.retest is None or request.why != why_asked(facts.retest))
    asked = facts.boot_tests + (new and ours)
    return BootTests(facts.agent_boot, asked) if asked else None


def _moved(status: Status, shown: Finding, now: datetime, more: str = "") -> Status:
    """The status at another place, with the transition where there is one; `more` is what that one tells besides."""
    if (status.state, status.code) == (shown.state, shown.code) and status.since:
        # What has changed of the hardware is said as long as this admission holds, not in the first look alone.
        kept = status.message.startswith(f"{shown.message}; {_SINCE}") and not more
        return status if kept else replace(status, message=shown.message)
    time, message = stamp(now), sentence(f"{shown.message}; {more}" if more else shown.message)
    step = Transition(time, str(status.state), str(shown.state), shown.code, message, shown.who or ADMITTER_USER)
    newest = status.transitions[-1] if status.transitions else None
    # The begin of a maintenance window is told already.
    told = newest is not None and (newest.at, newest.after, newest.code) == (step.at, step.after, step.code)
    transitions = status.transitions if told else with_step(status.transitions, step)
    return replace(status, state=shown.state, code=shown.code, since=time, message=message, transitions=transitions)


def _changed_since(facts: Facts) -> str:
    """What of the hardware is not as it was when the node was last let in, at the moment it is let in again."""
    old = facts.status.accepted
    if old is None or old.hardware_sha256 == facts.signed.hardware_sha256:
        return ""
    return f"{_SINCE}: {difference(old.hardware, facts.evidence.hardware) or UNNAMED}"


def _accepted(facts: Facts, own: Finding) -> Accepted:
    statement, old = facts.signed, facts.status.accepted
    expires = stamp(own.expires) if own.expires is not None else ""
    same = statement.boot_id, statement.sequence, statement.report_sha256
    if old is not None and (old.boot_id, old.sequence, old.report_sha256) == same:
        return replace(old, expires_at=expires)
    return Accepted(
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


def _acts(decision: Decision, old: Status) -> bool:
    """Whether it does something to the Node, its pods, or where the node stands."""
    moved = (decision.status.state, decision.status.code) != (old.state, old.code)
    acts = decision.node_patch or decision.node_status_patch or decision.evict
    return bool(moved or acts or decision.status.request != old.request)
