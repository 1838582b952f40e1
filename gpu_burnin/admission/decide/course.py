"""Which way a node goes: a person's word, then its own facts, then a test where one is wanted. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_burnin.admission.decide import retest
from gpu_burnin.admission.decide.judge import LEDGER_RESTORED, Facts, Judged
from gpu_burnin.admission.decide.maintenance import BEGUN, OVER, Windows
from gpu_burnin.admission.decide.nodes import gated
from gpu_burnin.admission.decide.offered import GPUS_MISSING, missing_gpus
from gpu_burnin.admission.decide.outlook import next_of
from gpu_burnin.admission.decide.restored import doubted, shut_by_restore
from gpu_burnin.admission.decide.stand import ASKED_CODES, Stand, stand_of
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.decide.words import active, brief, sentence
from gpu_burnin.admission.view import Brake
from gpu_burnin.api.record import Next, State


@dataclass(frozen=True)
class Course:
    """Where the node stands, whether it may take work (`open`), its request, what leave is needed, what comes next."""

    stand: Stand
    open: bool
    flight: retest.Flight
    next: Next
    needs: Brake | None = None


def course_of(facts: Facts, judged: Judged, flight: retest.Flight, calendar: Windows, denied: Brake | None) -> Course:
    """The course, without tests of our own where `denied` says that they have no leave.

    Where it has no leave to keep the node from work, what people ask is still done, and all else stays as it is.
    """
    was_open = not gated(facts.node, facts.rules.names)
    flight, begun, planned = _with_test(facts, judged, flight, calendar, denied)
    stand = stand_of(facts.view.name, facts.spec, judged, facts.now)
    if not judged.fit or stand.who:
        if denied is Brake.GATE and was_open and not stand.who and doubted(facts.spec, facts.status) is None:
            return _course(judged, _braked(facts, judged, flight), True, flight, planned, None)
        needs = _leave_to_gate(facts, judged, stand, was_open)
        if needs is None and begun is not None and begun.mine and judged.code == LEDGER_RESTORED:
            needs = Brake.TEST  # a whole fleet may be in this doubt at once
        if denied is Brake.GATE and needs is denied and not was_open:
            return _course(judged, _braked(facts, judged, flight), False, flight, planned, None)
        return _course(judged, stand, False, flight, planned, needs)
    if flight.request is None:
        stand = _ready(facts, judged, calendar)
        planned = planned or _after(facts, stand, calendar)
        free = was_open or _released(facts)
        return _course(judged, stand, True, flight, planned, None if free else Brake.JOIN)
    if judged.due and _keeps_out(facts, judged, begun, denied):
        # Old proof of an idle node: it is kept from new work, as one that was never tested.
        return _course(judged, stand, False, flight, planned, Brake.EXPIRE)
    if begun is not None:
        stand = Stand(State.TESTING, begun.code, f"{facts.view.name}: {begun.why}")
    elif facts.status.state is State.TESTING:
        stand = Stand(State.TESTING, facts.status.code, facts.status.message)
    else:
        stand = Stand(State.TESTING, "TEST_DUE", f"{facts.view.name}: {flight.request.why}")
    leave = Brake.TEST if was_open and begun is not None and begun.mine else None
    return _course(judged, stand, was_open, flight, planned, leave)


def _leave_to_gate(facts: Facts, judged: Judged, stand: Stand, was_open: bool) -> Brake | None:
    """The leave to keep it from work: none for a boot, the doubt after a restore of etcd, nor for what a person asks.

    A hold, and that doubt, keep new work away and no more, and the brake counts neither. What follows them is the
    admitter's own step: to ask the work on it to leave, and to keep it closed when they are over.
    """
    asked = stand.who or active(facts.spec.quarantine, facts.now) is not None
    was_let_in = facts.status.accepted is not None
    own_step = was_open or (_closed_without_leave(facts) and (judged.fault or was_let_in))
    in_doubt = doubted(facts.spec, facts.status) is not None and not judged.fault
    return Brake.GATE if own_step and not (asked or judged.rebooted or in_doubt) else None


def _closed_without_leave(facts: Facts) -> bool:
    """Whether a hold or a restore of etcd closed it, whatever is said of it now."""
    record = facts.view.record
    return record is not None and (record.status.state is State.HELD or shut_by_restore(record.spec, record.status))


def _braked(facts: Facts, judged: Judged, flight: retest.Flight) -> Stand:
    """A node that should be out and stays as it is, since nobody gave leave: it says so, and has the test asked for."""
    if gated(facts.node, facts.rules.names):  # its state says that it was closed without leave, also while it is tested
        over = f"{brief(judged.message)}; the hold that closed it is over"
        return Stand(facts.status.state, judged.code, sentence(over))
    ask, request = retest.retest_asked(facts), flight.request
    if ask is not None and request is not None and request.why == retest.why_asked(ask) and not flight.unanswered:
        return Stand(State.TESTING, "RETEST_ASKED", sentence(f"{brief(judged.message)}; {request.why}"))
    return Stand(facts.status.state, judged.code, sentence(judged.message))


def _released(facts: Facts) -> bool:
    """Whether nothing but a person kept it from work, who has let it go."""
    asked = facts.spec.hold or facts.spec.quarantine
    return asked is None and facts.status.code in ASKED_CODES


def _keeps_out(facts: Facts, judged: Judged, begun: retest.Wish | None, denied: Brake | None) -> bool:
    """Whether the test under way is one for old proof: begun now, or in the record but not on the Node yet."""
    return begun.mine if begun is not None else facts.status.state is judged.state and denied is None


def _course(
    judged: Judged, stand: Stand, is_open: bool, flight: retest.Flight, planned: Next | None, needs: Brake | None
) -> Course:
    planned = planned or next_of(stand, flight.request, judged, unanswered=bool(flight.unanswered))
    return Course(stand, is_open, flight, planned, needs)


def _with_test(
    facts: Facts, judged: Judged, flight: retest.Flight, calendar: Windows, denied: Brake | None
) -> tuple[retest.Flight, retest.Wish | None, Next | None]:
    """The request that is under way or is begun now, the wish that begins it, and what comes next where one waits."""
    wanted = retest.wish(facts, judged, calendar, flight)
    if wanted is None and retest.needless(facts, judged):
        return retest.Flight(), None, None
    if wanted is None or (flight.request is not None and (wanted.mine or not flight.unanswered)):
        return flight, None, None
    if retest.kept(facts, wanted):
        return flight, None, None
    if flight.gave_up:
        again = stamp(later(facts.now, facts.rules.retry_s))
        return flight, None, Next(retest.AGAIN, flight.gave_up, again)
    why, until = retest.obstacle(facts, judged, wanted, calendar)
    if not why and wanted.mine and denied is not None and (judged.fit or judged.code == LEDGER_RESTORED):
        why = "there is no leave for a test now"
    if why:
        old = facts.status.next
        if judged.awaited and until is None:
            return flight, None, None
        if old is not None and (old.what, old.why) == (retest.AGAIN, why):
            return flight, None, old
        return flight, None, Next("tested", why, stamp(until) if until is not None else "")
    request = retest.request_of(facts, wanted)
    begun = retest.flight_of(replace(facts, status=replace(facts.status, request=request)), calendar)
    return begun, wanted, None


def _after(facts: Facts, stand: Stand, calendar: Windows) -> Next | None:
    """What ends that a node at work is not as it should be."""
    if stand.code == GPUS_MISSING:
        since = when(facts.status.since) if facts.status.code == GPUS_MISSING else None
        at = later(since or facts.now, facts.rules.gpus_grace_s)
        return Next("kept from new work", "unless kubelet offers all its GPUs by then", stamp(at))
    if stand.code == BEGUN:
        at_end = stamp(calendar.changes_at) if calendar.changes_at is not None else ""
        return Next("open to new work and tested", "when the maintenance is over", at_end)
    return None


def _ready(facts: Facts, judged: Judged, calendar: Windows) -> Stand:
    """A node that may take work, with what is known to come: the first of these is what people ask about."""
    name = facts.view.name
    if short := missing_gpus(facts.node, facts.spec.hardware, facts.tested):
        return Stand(State.READY, GPUS_MISSING, f"{name}: {short}")
    if calendar.why:
        return Stand(State.READY, BEGUN, f"{name}: {calendar.why}")
    if judged.due:
        return Stand(State.READY, judged.code, f"{judged.message}; it is tested in its turn, when it is idle")
    if warned := retest.warning(facts):
        return Stand(State.READY, "AGENT_WARNED", f"{name}: {warned}")
    if retest.after_maintenance(facts):
        return Stand(State.READY, OVER, f"{name}: it was not tested since its maintenance")
    return Stand(State.READY, judged.code, judged.message)
