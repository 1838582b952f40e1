"""A node whose agent sends no heartbeat: never let in, kept from new work when it falls silent, its work left alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.view import Budget, HeartbeatState, View
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.record import Ask, State
from tests.support.admission_helpers import BOOT, BOOT2, NOW
from tests.support.decide_helpers import (
    GPU_POD,
    PASSED,
    RULES,
    carried_out,
    changed,
    make_view,
    seen,
    settled,
)

BEATING = AgentNote(BOOT, heartbeat=True)
ALIVE = HeartbeatState(BOOT, 20.0, fresh=True)
NEVER = HeartbeatState("", 20.0)
SILENT = HeartbeatState(BOOT, RULES.agent_silent_s + 1, fresh=True)
# A list tells the first time what there is, not whether it still changes.
LISTED = HeartbeatState(BOOT, 20.0)
SHUT, GATED = {"preflight:NoSchedule"}, {"preflight:NoSchedule", "preflight:NoExecute"}


def new(**changes: Any) -> View:
    """A node with all that it needs to be let in."""
    return make_view(**{"agent": BEATING, "heartbeat": ALIVE, **changes})


def at_work(**changes: Any) -> View:
    """One that was let in, with these changes since."""
    return changed(settled(new()), **changes)


class TestNotAdmitted:
    def test_a_heartbeat_of_this_boot_lets_it_in(self) -> None:
        assert seen(new()).ready

    @pytest.mark.parametrize("heartbeat", [NEVER, LISTED, replace(ALIVE, boot_id=BOOT2)])
    def test_without_one_it_waits(self, heartbeat: HeartbeatState) -> None:
        """Also where the object is there: that of the boot before, or one that no longer changes."""
        found = seen(new(heartbeat=heartbeat))
        assert (found.state, found.code, found.ready, found.taints) == ("testing", "AGENT_BOOT", False, GATED)

    @pytest.mark.parametrize("heartbeat", [SILENT, replace(SILENT, boot_id=BOOT2), replace(SILENT, boot_id="")])
    def test_after_a_while_a_person_is_needed(self, heartbeat: HeartbeatState) -> None:
        found = seen(new(heartbeat=heartbeat))
        assert (found.state, found.code, found.ready, found.taints) == ("suspect", "AGENT_SILENT", False, GATED)
        assert "gpu-burnin-watch" in (found.decision.status.next.why if found.decision.status.next else "")

    def test_the_note_of_the_gate_is_no_sign_of_life(self) -> None:
        """The agent is disabled and the host boots: kubelet's gate writes the note, the burn-in of the boot passes."""
        view = at_work(agent=AgentNote(BOOT2, heartbeat=True))
        rebooted = settled(view)
        assert rebooted.record is not None and rebooted.record.status.code == "REBOOTED"
        statement = replace(PASSED, boot_id=BOOT2, sequence=6)
        found = seen(changed(rebooted, boot=BOOT2, statement=statement))
        assert (found.code, found.ready) == ("AGENT_BOOT", False)


class TestAtWork:
    def test_a_silent_one_gets_no_new_work_and_keeps_its_own(self) -> None:
        found = seen(at_work(heartbeat=SILENT, pods=(GPU_POD,)))
        assert (found.state, found.code, found.needs) == ("suspect", "AGENT_SILENT", Budget.GATE)
        assert (found.taints, found.ready, found.evict, found.leave) == (SHUT, False, (), False)

    def test_one_that_is_heard_again_works_again(self) -> None:
        silent = settled(at_work(heartbeat=SILENT))
        found = seen(replace(silent, heartbeat=ALIVE))
        assert (found.state, found.ready, found.taints) == ("ready", True, frozenset())

    def test_a_pause_that_is_shorter_than_the_limit_is_none(self) -> None:
        assert seen(at_work(heartbeat=replace(SILENT, silent_s=RULES.agent_silent_s))).ready

    def test_the_limit_is_a_setting(self) -> None:
        rules = replace(RULES, agent_silent_s=1000.0)
        assert seen(at_work(heartbeat=SILENT), rules=rules).ready

    def test_deciding_again_changes_nothing_while_it_stays_silent(self) -> None:
        silent = settled(at_work(heartbeat=SILENT))
        again = decide(replace(silent, heartbeat=replace(SILENT, silent_s=9e5)), RULES, NOW + timedelta(hours=1))
        assert silent.record is not None and again.status == silent.record.status
        assert again.node_patch is None and again.node_status_patch is None

    def test_a_brake_leaves_it_at_work_and_says_so(self) -> None:
        """Many agents that are silent at once are a fault of the control plane, or of an update: a person decides."""
        view = at_work(heartbeat=SILENT)
        decision = decide(view, RULES, NOW)
        kept = carried_out(view, withheld(decision, "the share is reached", None))
        assert kept.record is not None
        status = kept.record.status
        assert (status.state, status.code) == (State.READY, "AGENT_SILENT")
        assert status.next is not None and status.next.why.startswith("the share is reached; ")
        assert seen(replace(kept, heartbeat=ALIVE)).code == "PASS"

    def test_what_a_person_asks_comes_all_the_same(self) -> None:
        hold = Ask("ann", "fan swap", "2026-11-21T11:59:00Z")
        found = seen(at_work(heartbeat=SILENT, spec={"hold": hold}))
        assert (found.state, found.taints, found.needs) == ("held", SHUT, None)


class TestNewLeader:
    def test_gives_everybody_at_work_a_full_period(self) -> None:
        assert seen(at_work(heartbeat=HeartbeatState(BOOT))).ready

    def test_does_not_clear_one_that_was_told_silent(self) -> None:
        silent = settled(at_work(heartbeat=SILENT))
        found = seen(replace(silent, heartbeat=HeartbeatState(BOOT)))
        assert (found.state, found.code, found.ready) == ("suspect", "AGENT_SILENT", False)
        assert seen(replace(silent, heartbeat=replace(ALIVE, silent_s=0.0))).ready


class TestBeforeHeartbeats:
    def test_an_agent_of_a_version_without_them_is_not_silent(self) -> None:
        """0.2.0: its note does not speak of heartbeats, and there is no object."""
        assert seen(make_view(agent=AgentNote(BOOT, "0.2.0"), heartbeat=None)).ready

    def test_after_the_upgrade_it_has_a_full_period_for_its_first(self) -> None:
        old = settled(make_view(agent=AgentNote(BOOT, "0.2.0")))
        upgraded = replace(old, agent=BEATING, heartbeat=HeartbeatState())
        assert seen(upgraded).ready
        assert seen(replace(upgraded, heartbeat=replace(SILENT, boot_id="", fresh=False))).code == "AGENT_SILENT"


@pytest.mark.parametrize("state", [State.SUSPECT, State.EXPIRING])
def test_a_new_leader_leaves_who_is_kept_from_work_where_the_brake_counts_it(state: State) -> None:
    """As a new boot it would not be counted, and each new leader could keep as many again from work."""
    shut = settled(at_work(heartbeat=SILENT))
    found = seen(changed(shut, heartbeat=LISTED, status={"state": state, "code": "GPUS_MISSING"}))
    assert (found.state, found.code, found.ready) == (str(state), "AGENT_BOOT", False)
