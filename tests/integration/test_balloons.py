"""Balloons on real Kueue: jobs of a team without quota that keep idle nodes busy, and give them back.

Only here: the Job of the page, whom it gives way to and that it comes back. No autoscaler is here to leave such nodes
alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.jobs.apply import Applier
from ansible_collections.muster.fleet.plugins.module_utils.jobs.objects import objects
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import teams_and_fleet

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.names import ADMITTER_USER, PROVISIONER_USER, Names
from tests.integration.jobs_stack import GPUS, KUEUE, MODEL, Jobs
from tests.integration.kube import APPLY, MERGE_PATCH, until
from tests.integration.kube_files import REPOSITORY

BALLOONS, OWNER, BORROWER = "balloons", "b-vision", "b-text"
PLACES = {f"b-{number}": {"leaf": "b-leaf", "rack": f"b-rack-{number % 2}"} for number in range(1, 5)}
EXPECTS = {name: {"gpus": GPUS, "model": MODEL} for name in PLACES}
PAGE = (REPOSITORY / "docs/operations/jobs.md").read_text()
AT = "2026-01-01T00:00:00Z"


def page_yaml(mark: str) -> dict[str, Any]:
    """The page's one YAML block with this in it."""
    (block,) = (text for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if mark in text)
    loaded: dict[str, Any] = yaml.safe_load(block)
    return loaded


def have(jobs: Jobs, teams: dict[str, Any]) -> None:
    applier = Applier(KubeApi(jobs.server.kubeconfig(PROVISIONER_USER)), Names())
    applier.carry_out(applier.plan(objects(*teams_and_fleet(teams, [], EXPECTS, PLACES), applier.names)))


@pytest.fixture(scope="module")
def fleet(jobs: Jobs) -> Iterator[Jobs]:
    """Four nodes, of which a team has three; another one and the balloons of the page only borrow."""
    for name, place in PLACES.items():
        jobs.add_node(name, rack=place["rack"], leaf=place["leaf"])
    of_page = page_yaml("weight: 0")["fleet_teams"]
    assert of_page.keys() == {BALLOONS}
    teams = {OWNER: {"gpus": 3 * GPUS}, BORROWER: {"gpus": 0}, **of_page}
    have(jobs, teams)
    active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": AT}
    path = f"{KUEUE}/admissionchecks/verified/status"
    assert jobs.root.request("PATCH", path, {"status": {"conditions": [active]}}, MERGE_PATCH).status == 200
    for team in teams:
        until(f"the queue of {team}", lambda team=team: jobs.is_active(team))  # type: ignore[misc]
    yield jobs
    for team in teams:
        jobs.root.request("DELETE", f"/apis/batch/v1/namespaces/{team}/jobs?propagationPolicy=Background")
    settled(jobs, "the end of all work", lambda: not any(jobs.pods(team) or jobs.workloads(team) for team in teams))
    have(jobs, {})


def settled(jobs: Jobs, what: str, condition: Callable[[], bool]) -> float:
    """Wait for it, with all checks judged as the admitter does, and pods gone as kubelets do; how long, in seconds."""
    admitter = jobs.server.client(ADMITTER_USER, ["system:masters"])
    check = {"name": "verified", "state": "Ready", "message": "", "lastTransitionTime": AT}
    status = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "status": {"admissionChecks": [check]}}
    began = time.monotonic()

    def holds() -> bool:
        for team in (OWNER, BORROWER, BALLOONS):
            for one in jobs.workloads(team):
                if any(found["state"] == "Pending" for found in one.get("status", {}).get("admissionChecks", [])):
                    path = f"{KUEUE}/namespaces/{team}/workloads/{one['metadata']['name']}/status"
                    admitter.request("PATCH", f"{path}?fieldManager=test&force=true", status, APPLY)
            for pod in jobs.pods(team):
                if "deletionTimestamp" in pod["metadata"]:
                    jobs.gone(team, pod["metadata"]["name"])
        return condition()

    until(what, holds, 60)
    return time.monotonic() - began


def nodes_of(jobs: Jobs, team: str) -> set[str]:
    return set(jobs.bound(team).values())


def end(jobs: Jobs, team: str) -> None:
    jobs.root.request("DELETE", f"/apis/batch/v1/namespaces/{team}/jobs?propagationPolicy=Background")
    settled(jobs, f"the end of {team}'s job", lambda: not jobs.pods(team) and not jobs.workloads(team))


def test_balloons_fill_idle_nodes_give_way_and_come_back(fleet: Jobs) -> None:
    admin = fleet.server.client("admin", ["muster:admins"])
    for _ in PLACES:
        reply = admin.request("POST", f"/apis/batch/v1/namespaces/{BALLOONS}/jobs", page_yaml("generateName: balloon-"))
        assert reply.status == 201, reply.message
    settled(fleet, "a balloon on each node", lambda: nodes_of(fleet, BALLOONS) == set(PLACES))

    # Topology-aware admission: one rack, of which no node is free.
    fleet.run_job(OWNER, "train", 2)
    took_s = settled(fleet, "two nodes of the owner", lambda: len(nodes_of(fleet, OWNER)) == 2)
    assert took_s < 30
    assert len(nodes_of(fleet, BALLOONS)) == 2 and not nodes_of(fleet, BALLOONS) & nodes_of(fleet, OWNER)

    # Whoever borrows goes before those of weight 0; of two teams of weight 1 each would have a node.
    fleet.run_job(BORROWER, "sweep", 2)
    settled(fleet, "two nodes of the borrower", lambda: len(nodes_of(fleet, BORROWER)) == 2)
    assert nodes_of(fleet, BALLOONS) == set() and len(nodes_of(fleet, OWNER)) == 2

    end(fleet, OWNER)
    end(fleet, BORROWER)
    settled(fleet, "a balloon on each node again", lambda: nodes_of(fleet, BALLOONS) == set(PLACES))
    end(fleet, BALLOONS)
