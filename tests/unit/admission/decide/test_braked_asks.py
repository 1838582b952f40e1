"""A brake keeps a faulty node at work: what people ask of it is done, and the record says what is not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.view import Budget, View
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.record import Ask, Next, State
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT2, NOW
from tests.support.decide_helpers import (
    GPU_POD,
    PASSED,
    RULES,
    Seen,
    carried_out,
    changed,
    ready_view,
    seen,
    settled,
    shown,
)

XID = replace(
    PASSED, verdict=Verdict.FAIL, sequence=6, level="watch", code="XID_FATAL", message="XID 79 on GPU 3: it is lost"
)
ASK = Ask("ann", "looks at it", "2026-11-21T11:59:00Z")
BRAKE = "the share is reached"


def held_by(coming: Next) -> str:
    """What holds it, without what a person can do."""
    return coming.why.partition("; ")[0]


def braked(view: View) -> View:
    """The view once a brake that gives no leave has had its say, which once more changes nothing."""
    for _ in range(4):
        decision = decide(view, RULES, NOW)
        if decision.needs is Budget.GATE:
            decision = withheld(decision, BRAKE, NOW + timedelta(minutes=1))
        after = carried_out(view, decision)
        if after == view:
            return after
        view = after
    raise AssertionError(f"it does not settle: {decision}")


def shows(view: View) -> Seen:
    """What the Node shows of a view that is settled under the brake."""
    decision = decide(view, RULES, NOW)
    if decision.needs is Budget.GATE:
        still = withheld(decision, BRAKE, NOW + timedelta(minutes=1))
        assert (still.node_patch, still.node_status_patch, still.evict) == (None, None, ())
        decision = still
    return shown(view, decision)


def test_a_brake_leaves_it_at_work_and_the_record_names_the_finding() -> None:
    view = braked(ready_view(statement=XID, pods=(GPU_POD,)))
    assert shows(view).ready and not shows(view).taints
    assert view.record is not None
    status = view.record.status
    assert (status.state, status.code) == (State.READY, "XID_FATAL") and "XID 79" in status.message
    assert status.next is not None and (status.next.what, held_by(status.next)) == ("taken from work", BRAKE)


def test_a_quarantine_that_a_person_asks_for_needs_no_leave() -> None:
    view = changed(braked(ready_view(statement=XID, pods=(GPU_POD,))), spec={"quarantine": ASK})
    found = seen(view)
    assert (found.state, found.code, found.needs) == ("quarantined", "XID_FATAL", None)
    assert found.taints >= {"preflight:NoSchedule", "quarantine=XID_FATAL:NoSchedule"} and not found.ready
    assert found.evict == ("train-0",) and found.leave


def test_a_hold_keeps_new_work_away_and_the_work_on_it_goes_on() -> None:
    view = braked(changed(braked(ready_view(statement=XID, pods=(GPU_POD,))), spec={"hold": ASK}))
    found = shows(view)
    assert found.taints == {"preflight:NoSchedule"} and not found.ready and not found.leave
    assert not any(pod.leaving for pod in view.pods)
    assert view.record is not None
    status = view.record.status
    assert (status.state, status.code) == (State.HELD, "HELD_BY_PERSON")
    # The finding, the ask, and what the brake keeps from coming.
    assert status.message.index("XID 79") < status.message.index("held by ann")
    assert status.next is not None and (status.next.what, held_by(status.next)) == ("quarantined (XID_FATAL)", BRAKE)
    free = seen(view)
    assert (free.state, free.needs, free.evict) == ("quarantined", Budget.GATE, ("train-0",))


def test_a_fault_of_a_node_that_a_person_holds_already_drains_it_with_leave_only() -> None:
    held = settled(ready_view(spec={"hold": ASK}, pods=(GPU_POD,)))
    left = braked(changed(held, statement=XID))
    assert shows(left).taints == {"preflight:NoSchedule"} and not any(pod.leaving for pod in left.pods)
    booted = seen(changed(left, agent=AgentNote(BOOT2)))
    assert booted.needs is None, "after a boot nothing is left that could go on"


def test_a_test_that_a_person_asks_for_is_begun_and_answered() -> None:
    view = braked(changed(braked(ready_view(statement=XID)), spec={"retest": ASK}))
    found = shows(view)
    assert found.taints == {"testing:NoSchedule"} and found.ready
    assert view.record is not None and view.record.status.request is not None
    assert view.record.status.message.index("XID 79") < view.record.status.message.index("ann asked")
    failed = braked(changed(view, statement=replace(XID, sequence=7)))
    assert failed.record is not None
    assert (failed.record.status.request, failed.record.status.retested) == (None, ASK.since)
    assert shows(failed).taints == {"testing:NoSchedule"}, "no brake opens a faulty node to new work"
    passed = seen(changed(view, statement=replace(PASSED, sequence=7)))
    assert (passed.state, passed.needs, passed.taints) == ("ready", None, frozenset())


@pytest.mark.parametrize("name", ["hold", "quarantine"])
def test_a_release_waits_for_no_turn_to_join(name: str) -> None:
    asked = settled(ready_view(spec={name: ASK}))
    found = seen(changed(asked, spec={name: None}))
    assert (found.state, found.ready, found.needs) == ("ready", True, None)
    over = changed(asked, spec={name: replace(ASK, until="2026-11-21T11:59:30Z")})
    assert seen(over).needs is Budget.JOIN, "many may end at one time"


@pytest.mark.parametrize("changes", [{"statement": XID}, {"kubelet": "Unknown"}], ids=["a fault", "a doubt"])
@pytest.mark.parametrize("over", [True, False], ids=["its time is over", "released"])
def test_a_hold_that_ends_gives_no_leave_for_what_was_found_meanwhile(changes: dict[str, Any], over: bool) -> None:
    """It was closed without leave, and many holds may end at one time: the work on it stays until there is room."""
    held = braked(changed(settled(ready_view(spec={"hold": ASK}, pods=(GPU_POD,))), **changes))
    after = replace(ASK, until="2026-11-21T11:59:30Z") if over else None
    ended = changed(held, spec={"hold": after})
    found = seen(ended)
    assert (found.needs, found.ready) == (Budget.GATE, False)
    left = braked(ended)
    assert left.record is not None
    status = left.record.status
    assert (status.state, status.code) == (State.HELD, found.code) and status.message.endswith(
        "the hold that closed it is over"
    )
    assert shows(left).taints == {"preflight:NoSchedule"} and not any(pod.leaving for pod in left.pods)
    assert status.next is not None and held_by(status.next) == BRAKE
    assert seen(found.after).needs is None, "it has its share"
    assert seen(changed(found.after, statement=XID, kubelet="True")).needs is None


def test_a_test_that_is_asked_for_when_a_hold_is_over_gives_no_leave_either() -> None:
    held = braked(changed(settled(ready_view(spec={"hold": ASK})), statement=XID))
    asked = braked(changed(held, spec={"hold": None, "retest": ASK}))
    assert asked.record is not None and asked.record.status.request is not None
    assert asked.record.status.state is State.HELD
    failed = changed(asked, statement=replace(XID, sequence=7), pods=(GPU_POD,))
    assert seen(failed).needs is Budget.GATE and not any(pod.leaving for pod in braked(failed).pods)
