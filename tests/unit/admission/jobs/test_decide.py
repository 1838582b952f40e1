"""The verdict on a job: each rule in which it fails, what heals, and how long it waits."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_burnin.admission.calendar import Window
from gpu_burnin.admission.jobs.decide import (
    Demand,
    NodeFacts,
    Reason,
    Verdict,
    back_off_s,
    blockers_of,
    decide,
    runtime_matters,
)
from gpu_burnin.admission.jobs.workload import CheckState, Workload, read
from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.record import State
from tests.support.job_helpers import topology, workload

# The reservation is a minute old: nine minutes are left of the ten that a job waits.
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DEMAND = Demand()
GOOD = NodeFacts(
    State.READY,
    code="PASS",
    proofs={"standard": "2026-11-20T12:00:00Z", "quick": "2026-11-21T00:00:00Z"},
    max_age_s=7 * 86400.0,
)
PENDING, READY, RETRY = CheckState.PENDING, CheckState.READY, CheckState.RETRY


def job(*nodes: str, **changes: Any) -> Workload:
    found = read(workload(*nodes, **changes))
    assert found is not None
    return found


def verdict(
    *changes: dict[str, Any] | None,
    demand: Demand = DEMAND,
    calendar: tuple[Window, ...] = (),
    now: datetime = NOW,
    runs_s: float | None = None,
    **of: Any,
) -> Verdict:
    """The verdict on a job of gpu-1, gpu-2 ... that are as GOOD but for these; None: nobody knows it."""
    names = [f"gpu-{number}" for number, _ in enumerate(changes, 1)]
    known = {name: replace(GOOD, **one) for name, one in zip(names, changes, strict=True) if one is not None}
    return decide(job(*names, **of), known, calendar, demand, now, runs_s)


GANG = replace(DEMAND, gang_age_s=3600.0)
FRESH: dict[str, Any] = {"has_nics": True, "fabric_at": NOW - timedelta(minutes=5)}


def test_a_gang_starts_when_each_of_its_nodes_has_passed_with_another_one_lately() -> None:
    assert verdict(FRESH, FRESH, demand=GANG).message == (
        "all 2 nodes are open, with proof of level standard or more and a fresh pass with another node"
    )
    old = FRESH | {"fabric_at": NOW - timedelta(hours=2)}
    found = verdict(FRESH, old, FRESH | {"fabric_at": None}, demand=GANG)
    assert (found.state, found.reason, found.gang) == (PENDING, Reason.FABRIC_AGE, ("gpu-2", "gpu-3"))
    assert found.message.startswith(
        "waits for gpu-2 and 1 more of its 3 nodes: its last pass with another node is 2 h old, 1 h at most is asked; "
        "such a test is asked for; nodes are chosen again at "
    )
    assert "no test with another node in this boot" in verdict(FRESH | {"fabric_at": None}, demand=GANG).message
    # Nobody asks: nobody waits.
    assert verdict(old, old).state is READY


def test_a_gang_is_given_other_nodes_where_no_test_can_come_or_none_came_in_time() -> None:
    for without in (FRESH | {"fabric_at": None, "has_nics": False}, FRESH | {"fabric_at": None, "idle": False}):
        found = verdict(FRESH, without, demand=GANG)
        assert (found.state, found.reason, found.gang) == (RETRY, Reason.FABRIC_AGE, ())
    assert "names no NIC" in verdict(FRESH, {}, demand=GANG).message
    late = verdict(FRESH, FRESH | {"fabric_at": None}, demand=GANG, now=in_s(600))
    assert late.state is RETRY and late.message.startswith("nodes are chosen again, after 10 min, because of gpu-2: ")


def test_a_node_in_its_test_with_another_one_is_waited_for_and_one_in_doubt_of_it_is_too() -> None:
    closed = {"taints": ("muster.dev/testing:NoSchedule",), "has_nics": True}
    assert (verdict(FRESH, closed, demand=GANG).state, verdict(FRESH, closed, demand=GANG).gang) == (PENDING, ())
    suspect = {"state": State.SUSPECT, "code": "FABRIC_SUSPECT", "has_nics": True}
    assert verdict(FRESH, suspect, demand=GANG).reason is Reason.NODE_STATE
    named = {"state": State.QUARANTINED, "code": "FABRIC_NODE", "has_nics": True}
    assert verdict(FRESH, named, demand=GANG).state is RETRY


def in_s(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def window(begins_s: float, *nodes: str) -> Window:
    return Window(frozenset(nodes) or None, in_s(begins_s), in_s(begins_s + 3600))


def announced(begins_s: float, state: str = "scheduled") -> Maintenance:
    return Maintenance("azure", state, not_before=in_s(begins_s).isoformat().replace("+00:00", "Z"), kind="reboot")


def test_a_job_starts_when_all_its_nodes_are_open_and_proven() -> None:
    found = verdict({}, {}, {})
    assert (found.state, found.reason) == (READY, Reason.VERIFIED)
    assert found.message == "all 3 nodes are open, with proof of level standard or more"
    assert verdict({}).message.startswith("its node is open")
    assert verdict({"team": "vision"}).state is READY
    assert verdict({"state": State.EXPIRING}).state is READY


@pytest.mark.parametrize(
    ("change", "state", "reason", "words"),
    [
        (None, RETRY, Reason.UNKNOWN_NODE, "no NodeAdmission"),
        ({"judged": False}, PENDING, Reason.UNJUDGED_NODE, "not judged yet what it has heard"),
        ({"registered": False}, RETRY, Reason.UNKNOWN_NODE, "not registered"),
        ({"state": State.SUSPECT, "code": "XID_PENDING", "message": "an XID"}, PENDING, Reason.NODE_STATE, "suspect"),
        ({"state": State.TESTING, "code": "TEST_DUE"}, PENDING, Reason.NODE_STATE, r"testing \(TEST_DUE\)"),
        ({"state": State.NEW}, PENDING, Reason.NODE_STATE, "new"),
        ({"state": State.QUARANTINED, "code": "GPU_LOST"}, RETRY, Reason.NODE_STATE, r"quarantined \(GPU_LOST\)"),
        ({"state": State.REPAIRING}, RETRY, Reason.NODE_STATE, "repairing"),
        ({"state": State.HELD, "message": "by ada: fan"}, RETRY, Reason.NODE_STATE, "held .PASS.: by ada: fan"),
        ({"taints": ("muster.dev/testing:NoSchedule",)}, PENDING, Reason.NODE_CLOSED, "muster.dev/testing:NoSchedule"),
        ({"labelled": False}, PENDING, Reason.NODE_CLOSED, "not labelled as ready"),
        ({"team": "audio"}, RETRY, Reason.OTHER_TEAM, "dedicated to the team audio"),
        ({"announced": announced(600)}, RETRY, Reason.MAINTENANCE, "maintenance .reboot. is announced"),
        ({"announced": announced(-60, "started")}, RETRY, Reason.MAINTENANCE, "is under way"),
        ({"proofs": {}}, PENDING, Reason.PROOF_LEVEL, "no proof of level standard; a test is asked for"),
        ({"proofs": {"quick": "2026-11-21T11:00:00Z"}}, PENDING, Reason.PROOF_LEVEL, "no proof of level standard"),
        ({"max_age_s": 3600.0}, PENDING, Reason.PROOF_AGE, "its proof of level standard is 1 d old, 1 h at most"),
        ({"proofs": {"standard": "nonsense"}}, PENDING, Reason.PROOF_LEVEL, "no proof"),
    ],
)
def test_each_rule_in_which_a_node_fails(
    change: dict[str, Any] | None, state: CheckState, reason: Reason, words: str
) -> None:
    found = verdict({}, change)
    assert (found.state, found.reason, found.node) == (state, reason, "gpu-2")
    assert f"gpu-2: {found.why.partition(': ')[2]}" in found.message
    assert re.search(words, found.message)


def test_what_heals_is_waited_for_until_the_time_is_over() -> None:
    suspect = {"state": State.SUSPECT}
    waits = verdict({}, suspect, suspect)
    assert waits.state is PENDING
    assert waits.message == (
        "waits for gpu-2 and 1 more of its 3 nodes: suspect (PASS); nodes are chosen again at 2026-11-21T12:09:00Z at "
        "the latest"
    )
    assert waits.wake_at == in_s(30)
    assert verdict(suspect, now=in_s(535)).wake_at == in_s(540)
    over = verdict({}, suspect, now=in_s(540))
    assert (over.state, over.wake_at) == (RETRY, None)
    assert over.message.startswith("nodes are chosen again, after 10 min, because of gpu-2: suspect")
    # A clock that is behind Kueue's, and a time that nobody can read, give no more than the whole time.
    assert verdict(suspect, reserved_at="2026-11-21T23:00:00Z").message.endswith("12:10:00Z at the latest")
    assert verdict(suspect, reserved_at="?").message.endswith("12:10:00Z at the latest")


def test_what_does_not_heal_is_not_waited_for_and_is_named_first() -> None:
    found = verdict({"state": State.SUSPECT}, {"state": State.HELD, "code": "HELD", "message": ""})
    assert (found.state, found.node) == (RETRY, "gpu-2")
    assert found.message == "nodes are chosen again, because of gpu-2 and 1 more of its 2 nodes: held (HELD)"


def test_a_test_that_ends_too_late_is_not_waited_for() -> None:
    testing = {"state": State.TESTING, "test": "extended", "tested_until": in_s(7000)}
    assert verdict(testing).state is RETRY
    assert verdict({**testing, "tested_until": in_s(300)}).state is PENDING
    assert verdict({"taints": ("x",), "tested_until": in_s(7000)}).state is RETRY


def test_a_level_that_is_missing_is_asked_for() -> None:
    deep = Demand(level="extended")
    found = verdict({}, {"proofs": {"extended": "2026-11-20T12:00:00Z"}}, demand=deep)
    # Two hours of test are more than the job waits.
    assert (found.state, found.reason, found.tests) == (RETRY, Reason.PROOF_LEVEL, (("gpu-1", "extended"),))
    patient = Demand(level="extended", wait_s=10_000)
    assert verdict({}, demand=patient).state is PENDING
    assert verdict({"proofs": {"extended": "2026-11-20T12:00:00Z"}}, demand=DEMAND).state is READY


@pytest.mark.parametrize("change", [{"idle": False}, {"demand": Demand(tests_open=False)}])
def test_a_level_that_cannot_be_tested_now_is_not_waited_for(change: dict[str, Any]) -> None:
    demand = change.pop("demand", DEMAND)
    assert verdict({"proofs": {}, **change}, demand=demand).state is RETRY


def test_a_test_under_way_counts_when_it_is_deep_enough() -> None:
    under_way = {"proofs": {}, "idle": False, "tested_until": in_s(300)}
    assert verdict({**under_way, "test": "standard"}).state is PENDING
    assert verdict({**under_way, "test": "quick"}).state is RETRY


def test_a_window_within_the_time_that_the_job_needs() -> None:
    soon, late = window(1800, "gpu-1"), window(7200, "gpu-1")
    assert verdict({}, calendar=(soon,)).reason is Reason.MAINTENANCE
    assert verdict({}, calendar=(late,)).state is READY
    assert verdict({}, calendar=(late,), runs_s=10_000).state is RETRY
    # A short job may go before it, though the default says no.
    assert verdict({}, calendar=(soon,), runs_s=600).state is READY
    assert verdict({}, calendar=(window(1800, "gpu-7"),)).state is READY
    assert verdict({}, calendar=(window(1800),)).state is RETRY
    assert verdict({}, calendar=(window(-7200),)).state is READY
    assert verdict({"announced": announced(7200)}).state is READY
    assert verdict({"announced": announced(7200)}, demand=Demand(window_s=9000)).state is RETRY
    # What nobody knows holds no job: whoever runs there is asked to leave when it is known.
    assert verdict({"announced": Maintenance("azure", "unknown")}).state is READY


def test_kueues_own_limit_counts_where_the_job_says_nothing() -> None:
    limited, late = replace(job("gpu-1"), most_s=10_000.0), (window(7200, "gpu-1"),)
    assert decide(limited, {"gpu-1": GOOD}, late, DEMAND, NOW).state is RETRY
    assert decide(limited, {"gpu-1": GOOD}, late, DEMAND, NOW, 600.0).state is READY


def test_the_time_that_a_job_needs_is_asked_for_only_where_there_is_a_window() -> None:
    one = job("gpu-1")
    assert not runtime_matters(one, {"gpu-1": GOOD}, (window(-7200, "gpu-1"), window(60, "gpu-2")), NOW)
    assert runtime_matters(one, {"gpu-1": GOOD}, (window(60, "gpu-1"),), NOW)
    assert runtime_matters(one, {"gpu-1": GOOD}, (window(60),), NOW)
    for state, matters in (("none", False), ("unknown", False), ("scheduled", True), ("started", True)):
        told = replace(GOOD, announced=Maintenance("azure", state))
        assert runtime_matters(one, {"gpu-1": told}, (), NOW) is matters


def test_jobs_without_nodes_to_judge() -> None:
    for item, reason in (
        (workload(resourceUsage={"cpu": "1"}, flavors={"cpu": "x"}), Reason.NO_GPUS),
        (workload(), Reason.NO_NODES),
        (workload(delayedTopologyRequest="Pending"), Reason.NODES_LATER),
    ):
        found = read(item)
        assert found is not None
        assert (decide(found, {}, (), DEMAND, NOW).state, decide(found, {}, (), DEMAND, NOW).reason) == (READY, reason)
    racks = read(workload(topologyAssignment=topology("gpu-1", levels=["rack"])))
    assert racks is not None
    wrong = decide(racks, {}, (), DEMAND, NOW)
    assert (wrong.state, wrong.reason) == (RETRY, Reason.TOPOLOGY)
    assert "last level is rack, which names no nodes: give it the last level kubernetes.io/hostname" in wrong.message


def test_only_some_nodes_can_be_asked_about() -> None:
    facts = {name: replace(GOOD, state=State.HELD) for name in ("gpu-1", "gpu-2")}
    found = blockers_of(job("gpu-1", "gpu-2"), facts, (), DEMAND, NOW, NOW, only={"gpu-2"})
    assert [one.node for one in found] == ["gpu-2"]


def test_a_job_that_comes_back_again_and_again_leaves_the_nodes_to_others() -> None:
    assert [back_off_s(retries) for retries in (0, 1, 2, 5, 6, 10**9)] == [5, 10, 20, 160, 320, 600]
