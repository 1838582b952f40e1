"""A node that is chosen for a team, or is to be given back: when it moves, what its Node shows, and what stays."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide, gated
from gpu_burnin.admission.decide.desired import map_patch
from gpu_burnin.admission.view import View
from gpu_burnin.api.agent_note import AgentNote, Maintenance
from gpu_burnin.api.names import TEAM_LABEL
from gpu_burnin.api.record import Ask, Identity, State, parse, status_document
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, BOOT2, MACHINE, NOW, make_node
from tests.support.decide_helpers import GPU_POD, NAMES, PASSED, RULES, carried_out, changed, ready_view, settled
from tests.support.decide_walks import STEPS, Machine, is_open

TAINT = f"{NAMES.team}:NoSchedule"
FAILED = replace(PASSED, sequence=6, verdict=Verdict.FAIL)
ASK = Ask("ann", "loud fan", "2026-11-22T12:00:00Z")


def taints_of(view: View) -> dict[str, str]:
    assert view.node is not None
    found = view.node["spec"].get("taints") or []
    return {f"{t['key']}:{t['effect']}": t.get("value", "") for t in found if t["key"].startswith(NAMES.domain)}


def label_of(view: View) -> str | None:
    assert view.node is not None
    label: str | None = (view.node["metadata"].get("labels") or {}).get(TEAM_LABEL)
    return label


def team_of(view: View) -> str:
    assert view.record is not None
    return view.record.status.team


def given(team: str = "audio", **changes: Any) -> View:
    """An idle node at work that is dedicated to a team."""
    return changed(settled(ready_view(team=team)), **{"team": None, **changes})


def test_an_idle_node_goes_to_a_team_and_back_and_tells_it() -> None:
    view = settled(ready_view(team="audio"))
    assert (team_of(view), label_of(view)) == ("audio", "audio")
    assert taints_of(view) == {TAINT: "audio"}
    back = settled(replace(view, team=""))
    assert (team_of(back), label_of(back), taints_of(back)) == ("", None, {})
    assert back.record is not None
    steps = [(step.before, step.after, step.code, step.message) for step in back.record.status.transitions[-2:]]
    assert steps == [
        ("ready", "ready", "DEDICATED", "gpu-1: it is idle, and dedicated to the team audio now"),
        ("ready", "ready", "SHARED", "gpu-1: it is idle, and not dedicated to the team audio any more"),
    ]
    assert back.record.status.state is State.READY and back.record.status.code == "PASS"


def test_from_one_team_to_another_it_is_one_patch() -> None:
    decision = decide(replace(given(), team="vision"), RULES, NOW)
    assert decision.node_patch is not None
    after = carried_out(replace(given(), team="vision"), decision)
    assert (team_of(after), label_of(after), taints_of(after)) == (
        "vision",
        "vision",
        {TAINT: "vision"},
    )


@pytest.mark.parametrize("before", ["", "audio"])
@pytest.mark.parametrize(
    "changes",
    [
        {"pods": (GPU_POD,)},
        {"spec": {"hold": ASK}},
        {"spec": {"quarantine": ASK}},
        {"spec": {"repair": ASK}},
        {"spec": {"retest": ASK}},
        {"test": "standard"},
        {"agent": AgentNote(BOOT, maintenance=Maintenance("azure", "started"))},
        {"agent": AgentNote(BOOT, maintenance=Maintenance("azure", "unknown"))},
        {"agent": None},
        {"boot": BOOT2},
        {"kubelet": "Unknown"},
        {"statement": FAILED},
        {"paused": "ann: storm"},
        {"node": None},
    ],
)
def test_what_is_not_idle_and_ready_stays_where_it_is(before: str, changes: dict[str, Any]) -> None:
    view = changed(given(before) if before else ready_view(), **changes)
    after = carried_out(view, decide(replace(view, team="vision"), RULES, NOW))
    assert team_of(after) == before


def test_a_pod_that_has_ended_or_has_no_gpus_keeps_no_node() -> None:
    pods = (replace(GPU_POD, ended=True), replace(GPU_POD, gpus=0, uid="u2"))
    assert team_of(settled(ready_view(team="audio", pods=pods))) == "audio"


@pytest.mark.parametrize(
    "changes",
    [{"spec": {"hold": ASK}}, {"boot": BOOT2}, {"statement": replace(PASSED, sequence=6, verdict=Verdict.FAIL)}],
)
def test_a_node_that_is_shut_stays_the_teams(changes: dict[str, Any]) -> None:
    after = settled(given(**changes))
    assert gated(after.node or {}, NAMES)
    assert (team_of(after), label_of(after), taints_of(after)[TAINT]) == (
        "audio",
        "audio",
        "audio",
    )


def test_a_node_that_is_made_anew_has_its_taint_before_it_takes_work() -> None:
    """The gate lets a Node be made with the preflight taint alone, so the patch that opens it brings the team's."""
    fresh = make_node()
    fresh["metadata"]["uid"] = "another"
    view = given(node=fresh)
    opening = decide(view, RULES, NOW)
    assert opening.opens and opening.node_patch is not None
    after = carried_out(view, replace(opening, node_status_patch=None))
    assert taints_of(after) == {TAINT: "audio"} and label_of(after) == "audio"
    # And one that stays shut has it too, from the first look on.
    shut = changed(view, spec={"hold": ASK})
    assert taints_of(carried_out(shut, decide(shut, RULES, NOW)))[TAINT] == "audio"


def test_a_pause_brings_back_a_taint_that_the_record_names() -> None:
    """A leader that died between its two writes, and a pause before the next one looked."""
    view = given(node=ready_view().node, paused="ann: storm")
    assert taints_of(carried_out(view, decide(view, RULES, NOW))) == {TAINT: "audio"}


def test_a_new_host_key_forgets_no_team() -> None:
    view = given(spec={"identity": Identity("ssh-ed25519 BBBB", MACHINE)})
    assert team_of(carried_out(view, decide(view, RULES, NOW))) == "audio"


def test_a_record_that_an_older_admitter_wrote_has_its_team_from_the_taint() -> None:
    """It does not know the field, and leaves taint and label."""
    forgot = given(status={"team": ""}, pods=(GPU_POD,))
    after = settled(forgot)
    assert (team_of(after), label_of(after), taints_of(after)) == (
        "audio",
        "audio",
        {TAINT: "audio"},
    )


def test_a_node_that_the_ledger_does_not_have_is_nobodys() -> None:
    view = given(record=None)
    after = carried_out(view, decide(view, RULES, NOW))
    assert (taints_of(after), label_of(after)) == ({f"{NAMES.preflight}:NoSchedule": ""}, None)


def test_a_record_without_a_team_is_what_it_was() -> None:
    record = ready_view().record
    assert record is not None and "team" not in status_document(record.status)
    assert map_patch("/metadata/labels", {}, {TEAM_LABEL: None}) == []
    document = {"metadata": {"name": "gpu-1"}, "status": {**status_document(record.status), "team": "audio"}}
    assert parse(document).status.team == "audio"


@dataclass
class Wanted(Machine):
    """A machine that teams want, one after the other."""

    def do_want(self) -> None:
        self.view = replace(self.view, team=self.rng.choice([None, "", "audio", "vision"]))

    def do_come_up_and_be_wanted(self) -> None:
        """What lets a node move, at once."""
        self.view = replace(self.view, paused="", test="")
        self.do_come_up_well()
        self.do_want()

    do_come_up_and_be_wanted_too = do_come_up_and_be_wanted_again = do_come_up_and_be_wanted


@pytest.mark.slow
def test_no_order_of_events_moves_a_node_that_is_not_idle_and_ready() -> None:
    assert sum(walk(Wanted(random.Random(500 + seed))) for seed in range(4)) >= 10


def walk(machine: Wanted) -> int:
    """How often the node moved."""
    moves = 0
    for step in range(STEPS):
        event = machine.happen()
        before = machine.view
        after = machine.decide()
        assert before.record is not None and after.record is not None
        was, now, on_node = before.record.status.team, after.record.status.team, taints_of(before).get(TAINT, "")
        if now not in {was, was or on_node}:
            moves += 1
            where = f"step {step} after {event}"
            assert is_open(before) and GPU_POD not in before.pods and not before.paused, where
            assert before.record.status.state is State.READY and after.record.status.request is None, where
            assert now == before.team, where
        # What opens a node has its team on it.
        if not is_open(before) and is_open(after):
            assert taints_of(after).get(TAINT, "") == now
        later = carried_out(after, decide(after, RULES, machine.now))
        assert team_of(later) == taints_of(later).get(TAINT, "")
    return moves
