"""etcd was restored: a node whose ledger moved back takes no new work until its agent has spoken or it was tested."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.decide.times import stamp
from gpu_burnin.admission.view import Budget, HeartbeatState, View
from gpu_burnin.api.agent_note import AgentNote, Answer
from gpu_burnin.api.record import Ask, Identity, Request, State
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, MACHINE, NOW
from tests.support.decide_helpers import (
    GPU_POD,
    HOST_KEY,
    PASSED,
    RULES,
    carried_out,
    changed,
    make_view,
    ready_view,
    seen,
    settled,
    shown,
)

SINCE = "2026-11-21T11:59:00Z"
RESTORED = Ask("muster:provisioner", "snapshot of 11:00; it was quarantined (XID_FATAL)", SINCE)
DOUBT = {"restored": RESTORED}
SPOKEN = AgentNote(BOOT, restored=SINCE)
XID = replace(
    PASSED, verdict=Verdict.FAIL, sequence=9, level="watch", code="XID_FATAL", message="XID 79", report_sha256="9" * 64
)
# What the ledger of before had seen: the FAIL.
CARRIED = Identity(HOST_KEY, MACHINE, carried_sequence=9, carried_report_sha256=XID.report_sha256)
LATER = NOW + timedelta(hours=3)


def restored(**changes: Any) -> View:
    """gpu-1 at work, as the snapshot has it, once the restore is written into its record."""
    spec = DOUBT | changes.pop("spec", {})
    return changed(ready_view(pods=(GPU_POD,)), spec=spec, **changes)


def test_it_is_closed_to_new_work_without_leave_and_its_work_stays() -> None:
    found = seen(restored())
    assert (found.state, found.code, found.needs) == ("suspect", "LEDGER_RESTORED", None)
    assert found.taints == {"preflight:NoSchedule"} and not found.ready and found.evict == ()
    assert "restored to an older state (snapshot of 11:00; it was quarantined" in found.decision.status.message
    assert found.after.node is not None
    assert found.after.node["metadata"]["annotations"]["muster.dev/restored"] == SINCE
    assert settled(restored()) == settled(settled(restored()))


def test_an_agent_that_has_spoken_brings_it_back_and_any_other_note_does_not() -> None:
    closed = settled(restored())
    for note in (AgentNote(BOOT), AgentNote(BOOT, restored="2026-11-20T00:00:00Z")):
        assert seen(changed(closed, agent=note)).code == "LEDGER_RESTORED"
    assert seen(changed(closed, agent=None)).code == "AGENT_SILENT"
    back = seen(changed(closed, agent=SPOKEN))
    assert (back.state, back.needs, back.taints, back.ready) == ("ready", Budget.JOIN, frozenset(), True)
    assert back.after.node is not None and "muster.dev/restored" not in back.after.node["metadata"]["annotations"]
    # Said once, it holds: the agent has nothing more to name.
    assert settled(changed(back.after, agent=AgentNote(BOOT))) == changed(back.after, agent=AgentNote(BOOT))
    again = Ask("muster:provisioner", "another snapshot", "2026-11-21T11:59:30Z")
    assert seen(changed(back.after, spec={"restored": again})).code == "LEDGER_RESTORED"


def test_a_fault_that_the_agent_tells_again_is_a_fault() -> None:
    found = seen(changed(settled(restored()), agent=SPOKEN, statement=XID))
    assert (found.state, found.code, found.needs) == ("quarantined", "XID_FATAL", Budget.GATE)
    assert found.evict == ("train-0",)


@pytest.mark.parametrize("agent", [SPOKEN, AgentNote(BOOT)])
@pytest.mark.parametrize("closed", [True, False])
def test_where_a_share_is_reached_such_a_fault_leaves_it_closed_and_its_work_on_it(
    agent: AgentNote, closed: bool
) -> None:
    """As before the restore, when a fault of many nodes at once was a person's to decide."""
    view = changed(settled(restored()) if closed else restored(), agent=agent, statement=XID)
    for _ in range(3):
        decision = decide(view, RULES, NOW)
        assert decision.needs is Budget.GATE
        left = withheld(decision, "the share is reached", NOW + timedelta(minutes=1))
        shown_now = shown(view, left)
        assert (shown_now.state, shown_now.code, shown_now.evict) == ("suspect", "LEDGER_RESTORED", ())
        assert shown_now.taints == {"preflight:NoSchedule"} and left.status.highest_sequence == 9
        view = carried_out(view, left)
    granted = seen(view)
    assert (granted.code, granted.evict) == ("XID_FATAL", ("train-0",))


def test_of_a_dead_agent_the_old_pass_does_not_count_and_a_test_is_asked_for_in_time() -> None:
    closed = settled(changed(restored(spec={"identity": CARRIED}), pods=()))
    assert closed.record is not None
    status = closed.record.status
    assert (status.code, status.highest_sequence, status.request) == ("LEDGER_RESTORED", 9, None)
    assert status.next is not None and status.next.why == "if its agent has not spoken by then"
    asked = settled(closed, LATER)
    assert asked.record is not None and asked.record.status.request is not None
    assert (asked.record.status.request.after_sequence, asked.record.status.code) == (9, "LEDGER_RESTORED")
    # Nobody answers: it stays out, and says what it waits for.
    sent = settled(asked, LATER + timedelta(seconds=6))
    overdue = seen(sent, LATER + timedelta(hours=3))
    assert overdue.code == "LEDGER_RESTORED" and "has no result" in overdue.decision.status.message
    tested = replace(PASSED, sequence=10, report_sha256="a" * 64, finished_at=stamp(LATER))
    answered = seen(changed(sent, statement=tested), LATER + timedelta(minutes=6))
    assert (answered.state, answered.decision.status.confirmed) == ("ready", SINCE)


def test_the_test_of_a_node_that_nobody_can_confirm_has_a_place_among_the_others() -> None:
    """All agents of a fleet may be too old to confirm: not all of its idle nodes are tested at once."""
    closed = settled(changed(restored(), pods=()))
    decision = decide(closed, RULES, LATER)
    assert (decision.needs, decision.status.code) == (Budget.TEST, "LEDGER_RESTORED")
    assert decision.status.request is not None
    left = withheld(decision, "2 of 100 are tested", LATER + timedelta(minutes=1))
    waits = carried_out(closed, left)
    assert (left.status.request, left.status.code) == (None, "LEDGER_RESTORED")
    assert left.status.next is not None and left.status.next.why.startswith("2 of 100 are tested; ")
    later = LATER + timedelta(minutes=1)
    again = withheld(decide(waits, RULES, later), "2 of 100 are tested", None)
    assert again.status == left.status, "nothing is written while it waits"
    assert seen(changed(waits, pods=(GPU_POD,)), LATER).needs is None, "its work stays"
    ask = Ask("ann", "look", stamp(LATER))
    asked = seen(changed(waits, spec={"retest": ask}), LATER)
    assert asked.needs is None and asked.decision.status.request is not None


def test_a_node_whose_test_would_be_due_at_once_is_closed_without_leave() -> None:
    """As one that was suspect for hours in the snapshot, of which nothing but the Node was put back."""
    long_ago = stamp(NOW - timedelta(days=1))
    view = changed(restored(pods=()), status={"state": State.SUSPECT, "code": "AGENT_SILENT", "since": long_ago})
    decision = decide(view, RULES, NOW)
    left = decision
    if decision.needs is not None:
        left = withheld(decision, "no place", NOW + timedelta(minutes=1))
    shut = shown(view, left)
    assert (shut.code, shut.taints, shut.request) == ("LEDGER_RESTORED", {"preflight:NoSchedule"}, "")


def test_a_lying_agent_cannot_bring_back_a_pass_of_before_its_fail() -> None:
    closed = settled(restored(spec={"identity": CARRIED}))
    found = seen(changed(closed, agent=SPOKEN, statement=PASSED))
    assert (found.code, found.ready) == ("EVIDENCE_REPLAYED", False)
    same = seen(changed(closed, agent=SPOKEN, statement=XID))
    assert same.code == "XID_FATAL"


def test_a_test_of_the_snapshots_time_confirms_nothing() -> None:
    old = Request("r1", "standard", "2026-11-21T10:00:00Z", "its turn", 5)
    answer = replace(PASSED, sequence=6, report_sha256="6" * 64)
    agent = AgentNote(BOOT, request=Answer("r1", "done"))
    found = seen(restored(status={"request": old}, statement=answer, agent=agent))
    assert (found.code, found.decision.status.confirmed) == ("LEDGER_RESTORED", "")


@pytest.mark.parametrize(("ask", "state"), [("hold", "held"), ("quarantine", "quarantined"), ("repair", "repairing")])
def test_what_was_asked_stands_beside_the_doubt(ask: str, state: str) -> None:
    carried = Ask("muster:provisioner", "of ann, before etcd was restored: smoke", SINCE)
    found = seen(restored(spec={ask: carried}))
    assert (found.state, found.needs, found.ready) == (state, None, False)
    released = seen(changed(found.after, spec={ask: None}))
    assert not released.ready and released.code in ("LEDGER_RESTORED", "REPAIRED")


def test_a_pause_holds_back_the_way_back_alone() -> None:
    closed = settled(restored(paused="etcd restored"))
    assert closed.record is not None and closed.record.status.code == "LEDGER_RESTORED"
    spoken = changed(closed, agent=SPOKEN)
    assert not seen(spoken).ready
    fault = seen(changed(settled(spoken), statement=XID))
    assert (fault.state, fault.code) == ("quarantined", "XID_FATAL")
    assert seen(replace(settled(spoken), paused="")).ready


def test_a_node_of_after_the_snapshot_begins_with_what_was_seen_of_it() -> None:
    new = changed(make_view(PASSED), spec={**DOUBT, "identity": CARRIED})
    found = seen(new)
    assert not found.ready and (found.code, found.decision.status.highest_sequence) == ("LEDGER_RESTORED", 9)
    proven = replace(PASSED, sequence=10, report_sha256="a" * 64)
    assert seen(changed(found.after, agent=SPOKEN, statement=proven)).ready


def test_a_brake_that_denies_the_way_back_leaves_it_closed() -> None:
    spoken = changed(settled(restored()), agent=SPOKEN)
    left = carried_out(spoken, withheld(decide(spoken, RULES, NOW), "others are before it", None))
    assert not seen(replace(left, paused="look")).ready
    assert left.record is not None and left.record.status.next is not None
    assert left.record.status.next.what == "let in"


@pytest.mark.parametrize(
    ("agent", "heartbeat"),
    [(None, None), (AgentNote(BOOT, heartbeat=True), HeartbeatState(BOOT, 20.0))],
    ids=["nobody speaks", "a new leader has heard no heartbeat yet"],
)
def test_a_fault_asks_the_brake_whatever_was_said_of_the_node_meanwhile(
    agent: AgentNote | None, heartbeat: HeartbeatState | None
) -> None:
    """It was closed without leave: its work is not asked to leave without leave too."""
    closed = settled(restored(agent=agent, heartbeat=heartbeat))
    found = seen(changed(closed, agent=SPOKEN, statement=XID))
    assert (found.code, found.needs) == ("XID_FATAL", Budget.GATE)
    assert seen(found.after).needs is None


SILENT = HeartbeatState(BOOT, RULES.agent_silent_s + 1)
BEATING = replace(SPOKEN, heartbeat=True)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"agent": BEATING, "heartbeat": SILENT}, "AGENT_SILENT"),
        ({"agent": SPOKEN, "kubelet": "Unknown"}, "NODE_UNKNOWN"),
        ({"agent": SPOKEN, "status": {"proofs": {}}, "statement": replace(PASSED, level="quick")}, "EVIDENCE_LEVEL"),
    ],
)
def test_a_doubt_that_ends_in_another_takes_its_share_of_the_brake(changes: dict[str, Any], code: str) -> None:
    """The restore closed it without leave; a fault of it that comes later needs none, so that this look needs one."""
    view = changed(settled(restored()), **changes)
    asked = seen(view)
    assert (asked.code, asked.needs, asked.decision.status.confirmed) == (code, Budget.GATE, SINCE)
    assert (asked.ready, asked.evict) == (False, ())
    left = carried_out(view, withheld(decide(view, RULES, NOW), "the share is reached", None))
    assert left.record is not None and left.record.status.confirmed == "", "not counted, so that a fault asks too"
    assert seen(changed(left, statement=XID, agent=SPOKEN, heartbeat=None, kubelet="True")).needs is Budget.GATE
    later = seen(changed(asked.after, statement=XID))
    assert (later.code, later.needs) == ("XID_FATAL", None), "it has its share"


def test_an_agent_whose_heartbeat_is_yet_to_come_ends_no_doubt() -> None:
    """To a leader that has just begun nobody's is fresh: no share of the brake is taken for that minute."""
    waits = seen(changed(settled(restored()), agent=BEATING, heartbeat=HeartbeatState(BOOT, 20.0)))
    assert (waits.code, waits.needs, waits.decision.status.confirmed) == ("LEDGER_RESTORED", None, "")
    assert "no heartbeat of its agent has come since" in waits.decision.status.message
    heartbeat = seen(changed(waits.after, heartbeat=HeartbeatState(BOOT, 0.0, fresh=True)))
    assert (heartbeat.state, heartbeat.needs, heartbeat.decision.status.confirmed) == ("ready", Budget.JOIN, SINCE)


def test_a_node_that_was_never_let_in_has_no_share_to_take() -> None:
    new = changed(make_view(None), spec=DOUBT, agent=SPOKEN)
    assert seen(new).needs is None
