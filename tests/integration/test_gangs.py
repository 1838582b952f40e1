"""A gang on real Kueue: whole or not at all, in one place where it asks for one.

Only here: what Kueue and the scheduler do together. Which objects a team has: test_teams.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpu_burnin.api.names import GPU_LABEL, LEAF_LABEL, RACK_LABEL, READY_LABEL
from tests.integration.jobs_stack import GPUS, MODEL, NAMES, Jobs
from tests.integration.kube import APPLY, until

TEAM = "gangs"
_KUEUE = "kueue.x-k8s.io/v1beta2"


def team_objects() -> Iterator[dict[str, Any]]:
    levels = [{"nodeLabel": label} for label in (LEAF_LABEL, RACK_LABEL, "kubernetes.io/hostname")]
    flavor = {"name": MODEL, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(4 * GPUS)}]}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": {NAMES.team: TEAM}}}
    specs: dict[str, tuple[str, dict[str, Any]]] = {
        "Topology": ("gangs", {"levels": levels}),
        "ResourceFlavor": (
            "gangs",
            {"nodeLabels": {READY_LABEL: "true", GPU_LABEL: MODEL, "of": TEAM}, "topologyName": "gangs"},
        ),
        "ClusterQueue": (
            TEAM,
            {
                "namespaceSelector": {"matchLabels": {NAMES.team: TEAM}},
                "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{**flavor, "name": "gangs"}]}],
            },
        ),
    }
    for kind, (name, spec) in specs.items():
        yield {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}
    yield {
        "apiVersion": _KUEUE,
        "kind": "LocalQueue",
        "metadata": {"name": "default", "namespace": TEAM},
        "spec": {"clusterQueue": TEAM},
    }


def with_team(jobs: Jobs) -> Jobs:
    """The stack with a team of four nodes in two racks."""
    for item in team_objects():
        jobs.apply(item)
    jobs.queues_answer(TEAM)
    for number in range(4):
        jobs.add_node(f"gang-{number}", rack=f"gangs-{number // 2}", leaf="gangs", labels={"of": TEAM})
    return jobs


@pytest.fixture(scope="module")
def team(jobs: Jobs) -> Jobs:
    """A team with four nodes in two racks."""
    return with_team(jobs)


def gang(name: str, nodes: int, level: str = LEAF_LABEL) -> dict[str, Any]:
    """A Job of so many nodes in one place."""
    gpus = {"nvidia.com/gpu": str(GPUS)}
    container = {"name": "train", "image": "x", "resources": {"requests": {"cpu": "1", **gpus}, "limits": gpus}}
    template = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": level}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": template},
    }


@contextmanager
def stale_choice(jobs: Jobs, item: dict[str, Any]) -> Iterator[None]:
    """Inside, a gang of all four nodes, of which one was shut when Kueue had chosen them and no pod was bound yet.

    Kueue is dead meanwhile: it sees such a node itself within seconds. Then the node is open again, and Kueue there.
    """
    jobs.scheduler.kill()
    jobs.apply(item)

    def chosen() -> bool:
        pods = [pod["spec"] for pod in jobs.pods(TEAM)]
        return len(pods) == 4 and not any(pod.get("schedulingGates") for pod in pods)

    until("Kueue's choice", chosen, 60)
    jobs.kueue.kill()
    jobs.shut("gang-3", NAMES.quarantine, value="GEMM_MISMATCH")
    jobs.scheduler.start()
    try:
        yield
    finally:
        jobs.let_in("gang-3")
        jobs.kueue.start()
        dry_run = f"/apis/batch/v1/namespaces/{TEAM}/jobs/other?fieldManager=test&dryRun=All"
        until("Kueue's webhooks", lambda: jobs.root.request("PATCH", dry_run, gang("other", 1), APPLY).status == 201)


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
