"""What is left of a decision that gets no leave, from a brake or in a pause."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.view import Budget, View
from gpu_burnin.api.agent_note import AgentNote, Maintenance
from gpu_burnin.api.record import Ask
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, BOOT2, NOW
from tests.support.decide_helpers import GPU_POD, PASSED, RULES, carried_out, changed, make_view, ready_view, seen
from tests.support.decide_situations import CASES

FAILED = replace(PASSED, verdict=Verdict.FAIL, sequence=6)
UNTIL = NOW + timedelta(minutes=10)


def left_of(view: View, why: str = "4 of 20 nodes are out") -> View:
    """The view after its decision was withheld."""
    return carried_out(view, withheld(decide(view, RULES, NOW), why, UNTIL))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.needs is not None])
def test_without_leave_the_record_says_what_waits_and_saying_it_again_changes_nothing(name: str) -> None:
    case = CASES[name]
    view, why, until = case.view(), "the brake is on", case.now + timedelta(minutes=10)
    left = withheld(decide(view, RULES, case.now), why, until)
    assert (left.needs, left.evict) == (None, ())
    assert left.status.next and left.status.next.why.partition("; ")[0] == why
    assert left.wake_at and left.wake_at <= until
    after = carried_out(view, left)
    again = decide(after, RULES, case.now)
    assert again.needs is case.needs
    moved = until + timedelta(seconds=7)
    assert carried_out(after, withheld(again, why, moved)) == after


HELD = "a hold of a faulty node"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.needs is not None and name != HELD])
def test_without_leave_nothing_that_lets_in_or_keeps_out_is_written(name: str) -> None:
    case = CASES[name]
    view = case.view()
    left = withheld(decide(view, RULES, case.now), "no", None)
    kept = {"muster.dev/preflight", "muster.dev/quarantine", "muster.dev/testing"}

    def ours(of: View) -> list[tuple[str, str]]:
        assert of.node is not None
        return [(t["key"], t["effect"]) for t in of.node["spec"]["taints"] if t["key"] in kept]

    assert ours(carried_out(view, left)) == ours(view)


def test_evidence_that_was_seen_is_not_forgotten_for_an_older_pass() -> None:
    after = left_of(ready_view(statement=FAILED))
    assert after.record and (after.record.status.state, after.record.status.highest_sequence) == ("ready", 6)
    assert after.record.status.proofs == {}
    replayed = seen(changed(after, statement=PASSED))
    assert (replayed.state, replayed.code, replayed.needs) == ("suspect", "EVIDENCE_REPLAYED", Budget.GATE)


def test_a_maintenance_window_needs_no_leave() -> None:
    notice = AgentNote(BOOT, maintenance=Maintenance("azure", "started"))
    after = left_of(ready_view(statement=FAILED, agent=notice))
    assert after.node and {"key": "muster.dev/maintenance", "effect": "NoSchedule"} in after.node["spec"]["taints"]
    assert after.record and "MAINTENANCE" in [one.code for one in after.record.status.transitions]


def test_a_boot_and_a_person_need_no_leave() -> None:
    assert decide(ready_view(agent=AgentNote(BOOT2)), RULES, NOW).needs is None
    ask = Ask("ann", "fan", "2026-11-21T11:59:00Z")
    for spec in ({"hold": ask}, {"quarantine": ask}, {"repair": ask}):
        assert decide(ready_view(spec=spec), RULES, NOW).needs is None


def gate_of(view: View) -> set[tuple[str, str]]:
    """What of a Node keeps pods away that a fault or a doubt has put there."""
    assert view.node is not None
    keys = {"muster.dev/preflight", "muster.dev/quarantine"}
    return {(t["key"], t["effect"]) for t in view.node["spec"].get("taints", []) if t["key"] in keys}


@pytest.mark.parametrize("name", CASES)
def test_a_pause_holds_back_what_lets_in_and_tests_and_never_what_takes_out(name: str) -> None:
    case = CASES[name]
    view = replace(case.view(), paused="bob: driver rollout")
    free, decision = decide(replace(view, paused=""), RULES, case.now), decide(view, RULES, case.now)
    assert view.record is not None
    before = view.record.status
    assert decision.status.request in (None, before.request), "a test was asked for"
    held_back = free.opens or free.needs is Budget.EXPIRE
    if held_back:
        taints = {p["value"][-1]["key"] for p in decision.node_patch or () if p["path"] == "/spec/taints"}
        assert taints <= {"muster.dev/maintenance"}
        assert (decision.node_status_patch, decision.evict, decision.status.state) == (None, (), before.state)
        if free.node_patch and not taints:
            assert decision.status.next and "driver rollout" in decision.status.next.why
    else:
        assert (decision.status.state, decision.status.code) == (free.status.state, free.status.code)
        assert (decision.evict, decision.needs) == (free.evict, free.needs)
        assert gate_of(carried_out(view, decision)) == gate_of(carried_out(view, free))
    after = carried_out(view, decision)
    assert carried_out(after, decide(after, RULES, case.now)) == after
    # Lost: nothing. With the pause over, what it would have done is done.
    resumed = decide(replace(after, paused=""), RULES, case.now)
    assert (resumed.status.state, resumed.status.code) == (free.status.state, free.status.code)
    assert resumed.needs is (free.needs if held_back else None)


def test_a_node_without_record_is_gated_if_it_was_let_in_and_never_let_in() -> None:
    known = ready_view(pods=(GPU_POD,))
    assert decide(replace(make_view(), record=None), RULES, NOW).needs is None
    found = seen(replace(make_view(), record=None))
    assert "preflight:NoSchedule" in found.taints and not found.ready
    out = seen(replace(known, record=None))
    assert (out.code, out.needs, out.ready) == ("NOT_PROVISIONED", Budget.GATE, False)
    assert out.taints == {"preflight:NoSchedule"}
    assert decide(out.after, RULES, NOW).node_patch is None
    left = withheld(out.decision, "no", None)
    assert left.node_patch is None


def test_a_control_plane_node_is_none_of_ours() -> None:
    node = {
        "metadata": {"name": "cp-1", "resourceVersion": "1", "labels": {}},
        "spec": {},
        "status": {"conditions": []},
    }
    decision = decide(View("cp-1", None, node), RULES, NOW)
    assert (decision.node_patch, decision.node_status_patch, decision.needs) == (None, None, None)


def test_a_record_without_node_says_that_kubelet_has_not_registered() -> None:
    decision = decide(replace(make_view(None), node=None), RULES, NOW)
    assert (decision.status.state, decision.status.code) == ("new", "NODE_ABSENT")
    assert decision.status.next and "kubelet" in decision.status.next.why
    gone = replace(changed(ready_view(), statement=FAILED), node=None)
    assert decide(gone, RULES, NOW).status.code == "NODE_ABSENT"
    faulty = replace(seen(ready_view(statement=FAILED)).after, node=None)
    assert decide(faulty, RULES, NOW).status.state == "quarantined"
