"""What is said of a node without leave: what holds it, what a person can do, and nothing that is not so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.view import Budget, View
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.record import Ask, Status
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, BOOT2, NOW
from tests.support.decide_helpers import GPU_POD, PASSED, RULES, carried_out, changed, make_view, ready_view, settled
from tests.support.decide_situations import CASES

SHARE = "the share, 4 of 20 nodes, is reached"
UNTIL = NOW + timedelta(minutes=1)
XID = replace(PASSED, verdict=Verdict.FAIL, sequence=6, level="watch", code="XID_FATAL", message="XID 79")
ASK = Ask("ann", "looks at it", "2026-11-21T11:59:00Z")
DOUBT = {"restored": Ask("muster:provisioner", "snapshot of 11:00", "2026-11-21T11:59:00Z")}
SPOKEN = AgentNote(BOOT, restored="2026-11-21T11:59:00Z")


def left(view: View) -> Status:
    """The record of a node whose decision got no leave."""
    decision = decide(view, RULES, NOW)
    assert decision.needs is not None
    return withheld(decision, SHARE, UNTIL).status


def wait_text(status: Status) -> str:
    assert status.next is not None
    return f"{status.next.what}: {status.next.why}"


def test_of_one_at_work_both_ways_to_close_it() -> None:
    assert wait_text(left(ready_view(statement=XID, pods=(GPU_POD,)))) == (
        f"taken from work: {SHARE}; meanwhile it takes new work: `muster node hold gpu-1` keeps that away, `muster "
        "node quarantine gpu-1` also asks the work on it to leave"
    )


@pytest.mark.parametrize(
    ("closed", "what"),
    [
        (lambda: settled(ready_view(spec={"hold": ASK})), "quarantined (XID_FATAL)"),
        (lambda: changed(settled(ready_view(spec={"hold": ASK})), spec={"hold": None}), "quarantined (XID_FATAL)"),
        (lambda: settled(ready_view(spec=DOUBT)), "quarantined (XID_FATAL)"),
    ],
    ids=["held", "held before", "restored"],
)
def test_of_a_closed_one_that_its_work_stays(closed: object, what: str) -> None:
    """It is no more to be taken from work: that is what a hold or a restore of etcd has done."""
    assert callable(closed)
    assert wait_text(left(changed(closed(), statement=XID, pods=(GPU_POD,)))) == (
        f"{what}: {SHARE}; meanwhile it takes no new work, and what runs on it stays: `muster node quarantine gpu-1` "
        "asks that to leave"
    )


@pytest.mark.parametrize("agent", [SPOKEN, AgentNote(BOOT)])
def test_after_a_restore_what_was_found_comes_first(agent: AgentNote) -> None:
    """And nothing of an agent that has not spoken: it has told the fault."""
    found = left(changed(settled(ready_view(spec=DOUBT)), statement=XID, agent=agent))
    assert found.message == (
        "gpu-1: XID 79, seen by its agent at 2026-11-21T11:00:00Z; etcd was restored to an older state "
        "(snapshot of 11:00)"
    )


def test_an_agent_that_cannot_confirm_is_not_waited_for() -> None:
    waits = settled(ready_view(spec=DOUBT))
    assert waits.record is not None
    assert waits.record.status.message.endswith("and its agent is too old to confirm the node: a test has to")
    newer = settled(changed(waits, agent=AgentNote(BOOT, heartbeat=True)))
    assert newer.record is not None
    assert newer.record.status.message.endswith("its agent has not spoken since")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.needs in (Budget.TEST, Budget.EXPIRE)])
def test_of_one_that_waits_for_its_test_the_ask_that_waits_for_nobody(name: str) -> None:
    case = CASES[name]
    view = case.view()
    found = withheld(decide(view, RULES, case.now), SHARE, UNTIL).status
    assert wait_text(found).endswith("`muster node retest gpu-1` has it tested all the same")
    asked = changed(view, spec={"retest": replace(ASK, since="2026-11-21T12:00:00Z")})
    assert decide(asked, RULES, case.now).needs is None and decide(asked, RULES, case.now).status.request is not None
    paused = decide(replace(view, paused="by ann"), RULES, case.now).status
    assert paused.next is not None and "muster node" not in paused.next.why, "no test begins in a pause"


def test_only_who_has_a_turn_is_told_when_it_comes() -> None:
    """A share of the fleet is free when other nodes are back, which nobody knows."""
    at_work, new = left(ready_view(statement=XID)), left(make_view())
    assert at_work.next is not None and at_work.next.at == ""
    assert new.next is not None and (new.next.what, new.next.at) == ("let in", "2026-11-21T12:01:00Z")


def test_one_that_waits_to_be_let_in_says_what_it_waits_with_and_nothing_of_before() -> None:
    assert left(make_view()).message.endswith("passed in boot " + BOOT + "; it waits to be let in")
    booted = settled(ready_view(agent=AgentNote(BOOT2)))
    assert booted.record is not None and "it has booted again" in booted.record.status.message
    passed = changed(booted, boot=BOOT2, statement=replace(PASSED, boot_id=BOOT2, sequence=6))
    waits = left(passed)
    assert waits.message.endswith(f"passed in boot {BOOT2}; it waits to be let in")
    again = carried_out(passed, withheld(decide(passed, RULES, NOW), SHARE, UNTIL))
    assert left(again) == waits


def test_a_test_without_answer_is_not_what_the_node_is_judged_by_next() -> None:
    asked = settled(settled(ready_view(test="quick")), NOW + timedelta(seconds=RULES.settle_s))
    status = decide(asked, RULES, NOW + timedelta(hours=3)).status
    assert status.code == "REQUEST_UNANSWERED"
    assert status.next is not None and "has no result" in status.next.why and "retest asks anew" in status.next.why
