"""A node that the scaler has closed and whose machine is off: not lost, not in doubt, of no budget, not tested."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

from gpu_burnin.admission.decide import decide
from gpu_burnin.admission.schedule.pick import overdue, pick, row_of
from gpu_burnin.admission.schedule.rules import TestRules as Schedule
from gpu_burnin.admission.service.cache import Records
from gpu_burnin.admission.view import HeartbeatState, View
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.names import SCALER_USER
from gpu_burnin.api.record import Ask, State, document, status_document
from tests.support.admission_helpers import BOOT, BOOT2, NOW
from tests.support.decide_helpers import NAMES, PASSED, RULES, changed, make_view, seen, settled

HOLD = Ask(SCALER_USER, "powered off: idle for 1800 s", "2026-11-21T12:00:00.000Z")
WEEK = timedelta(days=7)


def off() -> View:
    """A node that was at work, closed by the scaler; a week later kubelet and agent are silent for long."""
    beating = AgentNote(BOOT, heartbeat=True)
    at_work = settled(make_view(agent=beating, heartbeat=HeartbeatState(BOOT, 20.0, fresh=True)))
    closed = settled(changed(at_work, spec={"hold": HOLD}))
    silent = HeartbeatState(BOOT, RULES.agent_silent_s + WEEK.total_seconds(), fresh=True)
    return changed(closed, kubelet="Unknown", heartbeat=silent)


def test_its_silence_is_no_doubt_and_needs_no_leave() -> None:
    decision = decide(off(), RULES, NOW + WEEK)
    assert (decision.status.state, decision.status.code) == (State.HELD, "HELD_BY_PERSON")
    assert decision.needs is None and not decision.evict
    assert decision.status.request is None


def test_no_budget_counts_it() -> None:
    view = settled(off(), NOW + WEEK)
    assert view.record is not None
    item = document(view.record, NAMES) | {"status": status_document(view.record.status)}
    item["metadata"]["resourceVersion"] = "1"
    records = Records(NAMES)
    records.put(item)
    assert records.held_back(State.SUSPECT, State.QUARANTINED, State.EXPIRING) == set()


def test_the_schedule_neither_tests_it_nor_calls_it_overdue() -> None:
    view = settled(off(), NOW + WEEK)
    assert view.record is not None
    rows = [row_of(view.record, idle=True)]
    schedule, later = Schedule(), NOW + 10 * WEEK
    assert pick(rows, schedule, later, Random(1)) == [] and overdue(rows, schedule, later) == []
    # The same node at work would be tested.
    assert pick([replace(rows[0], state=State.READY)], schedule, later, Random(1))


def test_the_next_boot_lets_it_in_once_the_scaler_opens_it() -> None:
    view = settled(off(), NOW + WEEK)
    booted = changed(
        view,
        boot=BOOT2,
        kubelet="True",
        agent=AgentNote(BOOT2, heartbeat=True),
        heartbeat=HeartbeatState(BOOT2, 5.0, fresh=True),
        statement=replace(PASSED, boot_id=BOOT2, sequence=PASSED.sequence + 1),
    )
    assert seen(booted).state == "held"
    opened = changed(booted, spec={"hold": None})
    found = seen(opened)
    assert (found.state, found.ready) == ("ready", True)
