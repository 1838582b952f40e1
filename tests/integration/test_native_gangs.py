"""Kubernetes' own gangs under Kueue, with the flags of the roles: `fleet_gang: native`, `ending` and `kueue` again.

Only here: what a real job controller makes and removes, and what a real scheduler binds of it. The words of refusals:
tests/unit/collection/test_native_gangs.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.kube.native_gangs import REMOVE
from click.testing import CliRunner

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.names import TEAM_MEMBER_ROLE
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.fleet.cluster.native_gangs import GANGS_API, gangs_left
from tests.integration.gangs import TEAM, gang, stale_choice, with_team
from tests.integration.jobs_stack import NAMES, Jobs
from tests.integration.jobs_start import jobs_stack
from tests.integration.kube import NO_BINARIES, apply_ledger, binaries, until
from tests.integration.native import gang_flags
from tests.integration.teams import RBAC, bind, member

GROUPS = f"/apis/{GANGS_API}/namespaces/{TEAM}"
MEMBER = "ann"


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """A team with four nodes on a control plane with native gangs, and a member of it."""
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    with jobs_stack(tmp_path_factory.mktemp("native"), gang="native") as jobs:
        apply_ledger(jobs.server)
        with_team(jobs)
        bind(jobs.root, f"{RBAC}/namespaces/{TEAM}/rolebindings", "members", TEAM_MEMBER_ROLE, MEMBER)
        yield jobs


def groups(jobs: Jobs) -> list[dict[str, Any]]:
    return jobs.items(f"{GROUPS}/podgroups")


def admin(jobs: Jobs) -> KubeApi:
    """The API as the everyday admin, with whose kubeconfig the playbooks ask."""
    return KubeApi(jobs.server.kubeconfig("admin", ["muster:admins"]))


def job_set(name: str, nodes: int) -> dict[str, Any]:
    """A JobSet of one Job, as `muster run` makes it."""
    spec = gang(name, nodes)["spec"]
    parts = [{"name": "node", "replicas": 1, "template": {"spec": spec}}]
    about = {"name": name, "namespace": TEAM}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": about,
        "spec": {"replicatedJobs": parts},
    }


def test_a_job_set_whose_nodes_kueue_chose_runs_as_one_group(team: Jobs) -> None:
    team.apply(job_set("set", 3))
    until("three nodes", lambda: len(set(team.bound(TEAM).values())) == 3, 60)
    (group,) = groups(team)
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    named = {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in team.pods(TEAM)}
    assert named == {group["metadata"]["name"]}
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{TEAM}/jobsets/set?propagationPolicy=Foreground"
    assert team.root.request("DELETE", path).status == 200

    def gone() -> bool:
        for pod in team.pods(TEAM):
            team.gone(TEAM, pod["metadata"]["name"])
        return not team.pods(TEAM) and not team.workloads(TEAM) and not groups(team)

    until("the end of it, and of its group", gone, 60)


def test_a_node_that_is_shut_after_the_choice_leaves_none_bound(team: Jobs) -> None:
    """Without native gangs three are bound: test_gangs.py."""

    def condition() -> str:
        conditions = [one for group in groups(team) for one in group.get("status", {}).get("conditions", [])]
        return "".join(one["reason"] for one in conditions if one["status"] == "False")

    with stale_choice(team, gang("stale", 4)):
        until("the scheduler's answer", lambda: condition() == "Unschedulable", 60)
        assert team.bound(TEAM) == {}
        kubeconfig = str(team.server.kubeconfig("break-glass", ["system:masters"]))
        done = CliRunner().invoke(muster.cli, ["why", f"{TEAM}/stale", "--json", "--kubeconfig", kubeconfig])
        waits = json.loads(done.stdout)["waits"]
        assert waits["why"] == "unplaced" and waits["nodes"] == ["gang-3"], waits
        assert waits["sentence"].endswith("; 3 more of its gang wait for that"), waits
    until("four nodes", lambda: len(set(team.bound(TEAM).values())) == 4, 60)
    team.end_job(TEAM, "stale")


def test_kueue_gives_a_group_another_node_before_it_is_bound(team: Jobs) -> None:
    """The Job makes another pod for the one that Kueue has ended, which completes the group."""
    team.scheduler.kill()
    team.apply(gang("moved", 3))

    def chosen() -> list[str]:
        pods = [pod["spec"] for pod in team.pods(TEAM) if not pod["spec"].get("schedulingGates")]
        return sorted(pod["nodeSelector"]["kubernetes.io/hostname"] for pod in pods)

    until("Kueue's choice", lambda: len(chosen()) == 3, 60)
    (shut, *others) = chosen()
    team.shut(shut, NAMES.quarantine, value="GEMM_MISMATCH")
    team.scheduler.start()
    until("three other nodes", lambda: len(set(team.bound(TEAM).values()) - {shut}) == 3, 60)
    assert set(others) < set(team.bound(TEAM).values())
    team.let_in(shut)
    team.end_job(TEAM, "moved")


def test_members_of_a_team_make_no_groups(team: Jobs) -> None:
    who = member(team.server, MEMBER)
    for plural in ("podgroups", "workloads"):
        for method, path in (
            ("POST", plural),
            ("DELETE", plural),
            ("PATCH", f"{plural}/x"),
            ("PATCH", f"{plural}/x/status"),
        ):
            reply = who.request(method, f"{GROUPS}/{path}", {})
            assert reply.status == 403 and f'User "{MEMBER}" cannot' in reply.message, reply.message


def test_the_way_back_leaves_nothing(team: Jobs) -> None:
    """`ending`, until nothing is left, then `kueue`: what runs runs on."""
    team.apply(gang("before", 2))
    until("two nodes", lambda: len(set(team.bound(TEAM).values())) == 2, 60)
    team.running(TEAM)
    restart(team, "ending")
    team.apply(gang("after", 2))
    until("two more", lambda: len(set(team.bound(TEAM).values())) == 4, 60)
    (group,) = groups(team)
    name = f"{TEAM}/{group['metadata']['name']}"
    assert gangs_left(admin(team)).startswith(f"1 PodGroup ({name}) and 1 Workload ({TEAM}/before-")
    remove(team)
    until("the end of the Workload", lambda: gangs_left(admin(team)) == f"1 PodGroup ({name})", 60)
    assert "deletionTimestamp" in groups(team)[0]["metadata"], "it stays for its pods, which run"
    for pod in team.bound(TEAM):
        if pod.startswith("before-"):
            team.ended(TEAM, pod)
    until("the end of the group", lambda: gangs_left(admin(team)) == "", 60)

    restart(team, "kueue")
    assert team.root.request("GET", f"/apis/{GANGS_API}").status == 404
    assert gangs_left(admin(team)) == ""
    assert len([name for name in team.bound(TEAM) if name.startswith("after-")]) == 2
    team.apply(gang("last", 2))
    until("its two nodes", lambda: len([name for name in team.bound(TEAM) if name.startswith("last-")]) == 2, 60)


def restart(jobs: Jobs, gang: str) -> None:
    """What site.yml does with another `fleet_gang`: API server, controller manager, scheduler."""
    parts = {
        "kube_apiserver": jobs.server.apiserver,
        "kube_controller_manager": jobs.controller_manager,
        "kube_scheduler": jobs.scheduler,
    }
    for role, part in parts.items():
        former = {flag for value in ("native", "ending") for flag in gang_flags(role, value)}
        part.kill()
        part.command = [*(word for word in part.command if word not in former), *gang_flags(role, gang)]
        part.start()
        jobs.server.wait_ready()


def remove(jobs: Jobs) -> None:
    """The command of the refusal and the page, by the everyday admin."""
    place = binaries()
    assert place is not None
    kubeconfig = str(jobs.server.kubeconfig("admin", ["muster:admins"]))
    environment = {**os.environ, "KUBECONFIG": kubeconfig, "PATH": f"{place}:{os.environ['PATH']}"}
    done = subprocess.run(REMOVE.split(), env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
