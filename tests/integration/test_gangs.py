"""A gang on real Kueue: whole or not at all, in one place where it asks for one.

Only here: what Kueue and the scheduler do together. Which objects a team has: test_teams.py.
"""

from __future__ import annotations

import pytest

from gpu_burnin.api.names import RACK_LABEL
from tests.integration.gangs import TEAM, gang, stale_choice, with_team
from tests.integration.jobs_stack import NAMES, Jobs
from tests.integration.kube import until


@pytest.fixture(scope="module")
def team(jobs: Jobs) -> Jobs:
    """A team with four nodes in two racks."""
    return with_team(jobs)


def _waits_for(jobs: Jobs) -> str:
    for workload in jobs.workloads(TEAM):
        for condition in workload.get("status", {}).get("conditions", []):
            if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                return str(condition["message"])
    return ""


def test_a_gang_waits_for_its_last_node_and_then_runs_whole(team: Jobs) -> None:
    team.shut("gang-3", NAMES.quarantine, value="GEMM_MISMATCH")
    team.apply(gang("four", 4))
    until("the reason to wait", lambda: "topology" in _waits_for(team), 30)
    assert team.bound(TEAM) == {}, "nothing of it runs"
    team.let_in("gang-3")
    until("four nodes", lambda: len(set(team.bound(TEAM).values())) == 4, 30)
    team.end_job(TEAM, "four")


def test_a_node_that_is_shut_after_the_choice_leaves_the_others_bound(team: Jobs) -> None:
    """What native gangs are for: test_native_gangs.py."""
    with stale_choice(team, gang("stale", 4)):
        until("three nodes", lambda: sorted(team.bound(TEAM).values()) == ["gang-0", "gang-1", "gang-2"], 30)
    until("four nodes", lambda: len(set(team.bound(TEAM).values())) == 4, 60)
    team.end_job(TEAM, "stale")


def test_a_gang_of_a_rack_stays_in_one(team: Jobs) -> None:
    team.apply(gang("rack", 2, RACK_LABEL))
    until("two nodes", lambda: len(set(team.bound(TEAM).values())) == 2, 30)
    assert sorted(team.bound(TEAM).values()) in (["gang-0", "gang-1"], ["gang-2", "gang-3"])
    team.end_job(TEAM, "rack")


def test_a_gang_larger_than_a_rack_is_told_so(team: Jobs) -> None:
    team.apply(gang("large", 3, RACK_LABEL))
    until("the figure", lambda: "allows to fit only 2 out of 3 pod(s)" in _waits_for(team), 30)
    assert team.bound(TEAM) == {}
    team.end_job(TEAM, "large")
