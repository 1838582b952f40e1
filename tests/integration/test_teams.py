"""The teams' objects on a real API server with a real Kueue: written as the provisioner, with its rights alone.

Only here: that Kueue takes the objects as they are and leaves them so, that jobs run by them, and that it lets them go.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.apply import Applier, Plan
from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import read_fleet
from ansible_collections.muster.fleet.plugins.module_utils.jobs.objects import objects
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import teams_and_fleet

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.names import ADMITTER_USER, CHECK, POWER_CHECK, PROVISIONER_USER, TEAM_LABEL, Names
from tests.integration.jobs_stack import GPUS, KUEUE, MODEL, NAMES, Jobs
from tests.integration.kube import APPLY, MERGE_PATCH, until
from tests.integration.kube_files import REPOSITORY

PLACES = {f"t-{number}": {"leaf": "t-leaf", "rack": f"t-rack-{number % 2}"} for number in range(1, 6)}
EXPECTS = {name: {"gpus": GPUS, "model": MODEL} for name in PLACES}
# Two nodes, one node that is nobody else's to borrow, and one of its own; one is no team's.
TEAMS: dict[str, Any] = {
    "t-vision": {"gpus": 16, "weight": 1.5, "members": ["alice", "group:oidc-vision"]},
    "t-text": {"gpus": 8, "borrow": False},
    "t-audio": {"gpus": 8, "dedicated": True, "level": "quick"},
}


@pytest.fixture(scope="module")
def applier(jobs: Jobs) -> Applier:
    return Applier(KubeApi(jobs.server.kubeconfig(PROVISIONER_USER)), Names())


def plan(applier: Applier, teams: dict[str, Any]) -> Plan:
    return applier.plan(objects(*teams_and_fleet(teams, ["alice"], EXPECTS, PLACES), applier.names))


def have(applier: Applier, teams: dict[str, Any]) -> list[str]:
    planned = plan(applier, teams)
    applier.carry_out(planned)
    return [*planned.names, *(f"-{name}" for name in planned.removed)]


@pytest.fixture(scope="module")
def teams(jobs: Jobs, applier: Applier) -> Iterator[Applier]:
    """The teams on five nodes, with a check that somebody judges."""
    for name, place in PLACES.items():
        own = {TEAM_LABEL: "t-audio"} if name == "t-5" else {}
        jobs.add_node(name, **place, labels=own)
    jobs.shut("t-5", NAMES.team, value="t-audio")
    have(applier, TEAMS)
    now = "2026-01-01T00:00:00Z"
    active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": now}
    path = f"{KUEUE}/admissionchecks/verified/status"
    reply = jobs.root.request("PATCH", path, {"status": {"conditions": [active]}}, MERGE_PATCH)
    assert reply.status == 200, reply.message
    for team in TEAMS:
        until(f"the queue of {team}", lambda team=team: jobs.is_active(team))  # type: ignore[misc]
    yield applier
    for team in TEAMS:
        end(jobs, team)
    have(applier, {})


def workload(jobs: Jobs, team: str) -> dict[str, Any]:
    until(f"the workload of {team}", lambda: bool(jobs.workloads(team)))
    (one,) = jobs.workloads(team)
    return one


def verified(jobs: Jobs, team: str) -> None:
    """Judge the check of the team's one workload, as the admitter does; returns once it could be judged."""
    # Static policies let no other name judge; its rights are no matter here.
    admitter = jobs.server.client(ADMITTER_USER, ["system:masters"])

    def judged() -> bool:
        one = workload(jobs, team)
        if not one.get("status", {}).get("admissionChecks"):
            return False
        check = {
            "name": "verified",
            "state": "Ready",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        path = f"{KUEUE}/namespaces/{team}/workloads/{one['metadata']['name']}/status?fieldManager=test&force=true"
        status = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "status": {"admissionChecks": [check]}}
        return admitter.request("PATCH", path, status, APPLY).status == 200

    until(f"a check of {team}", judged, 30)


def end(jobs: Jobs, team: str) -> None:
    """Delete the team's jobs; returns when nothing of them is left."""
    jobs.root.request("DELETE", f"/apis/batch/v1/namespaces/{team}/jobs?propagationPolicy=Background")

    def is_idle() -> bool:
        pods = jobs.pods(team)
        for pod in pods:
            # A pod that its Job has left is deleted, and has no kubelet to be gone from.
            if "deletionTimestamp" in pod["metadata"]:
                jobs.gone(team, pod["metadata"]["name"])
        return not pods and not jobs.workloads(team)

    until(f"no work of {team}", is_idle, 30)


@pytest.fixture
def site(jobs: Jobs, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The role's task by Ansible, with these teams; what the module answered."""
    (tmp_path / "kubeconfig").mkdir()
    shutil.copy(jobs.server.kubeconfig(PROVISIONER_USER), tmp_path / "kubeconfig/provisioner.kubeconfig")
    nodes = {name: {"gpu_burnin_expect": EXPECTS[name], "fleet_place": PLACES[name]} for name in PLACES}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": {"gpu_nodes": {"hosts": nodes}}}}))
    variables = {
        "kueue_kubeconfig_dir": str(tmp_path / "kubeconfig"),
        "fleet_state_dir": str(tmp_path),
        "fleet_users": ["alice"],
        "fleet_domain": NAMES.domain,
        "ansible_python_interpreter": sys.executable,
    }
    _, task = yaml.safe_load((REPOSITORY / "roles/kueue/tasks/teams.yml").read_text())
    copied = {"content": "{{ answer | to_json }}", "dest": str(tmp_path / "answer.json"), "mode": "0600"}
    tasks = [
        {**task, "register": "answer", "ignore_errors": True},
        {"ansible.builtin.copy": copied, "check_mode": False, "diff": False},
    ]
    last = [{"ansible.builtin.include_tasks": str(REPOSITORY / "roles/kueue/tasks/last_team.yml")}]
    for name, of_play in (("play", tasks), ("last", last)):
        play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": of_play}
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump([play], width=1000))
    collections = str(REPOSITORY / "collections")
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    configuration = str(tmp_path / "ansible.cfg")
    environment = {**os.environ, "ANSIBLE_CONFIG": configuration, "ANSIBLE_COLLECTIONS_PATH": collections}

    def run(teams: Mapping[str, Any], *options: str, play: str = "play.yml") -> dict[str, Any]:
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        command = [program, "-i", "hosts.yml", "-e", json.dumps({"fleet_teams": teams}), *options, play]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        if play != "play.yml":
            return {"changed": "changed=0" not in done.stdout}
        answer: dict[str, Any] = json.loads((tmp_path / "answer.json").read_text())
        return answer

    return run


def test_by_ansible_a_second_run_changes_nothing_and_check_mode_tells_what_would(
    teams: Applier, site: Callable[..., dict[str, Any]]
) -> None:
    assert site(TEAMS)["changed"] is False
    more = {**TEAMS, "t-vision": {**TEAMS["t-vision"], "weight": 3}}
    told = site(more, "--check", "--diff")
    assert (told["changed"], told["written"], told["removed"]) == (True, ["ClusterQueue/t-vision"], [])
    assert told["diff"]["after"]["ClusterQueue/t-vision"]["spec"]["fairSharing"] == {"weight": "3"}
    assert plan(teams, TEAMS).names == []
    wrong = site({"t-vision": {"gpus": 48}})
    assert wrong["failed"]
    assert wrong["msg"].endswith(
        f"fleet_teams gives 48 GPUs of {MODEL}, 48 (t-vision), and the GPU nodes have 40; take 8 away"
    )


def test_a_second_run_changes_nothing(teams: Applier) -> None:
    again = plan(teams, TEAMS)
    assert (again.names, again.removed, again.before) == ([], [], {})


def test_with_machines_that_are_switched_each_queue_has_both_checks(teams: Applier, jobs: Jobs) -> None:
    wanted = objects(*teams_and_fleet(TEAMS, ["alice"], EXPECTS, PLACES), teams.names, scale=True)
    teams.carry_out(teams.plan(wanted))
    try:
        assert teams.plan(wanted).names == []
        queue = jobs.get(f"{KUEUE}/clusterqueues/t-vision")["spec"]
        assert {one["name"] for one in queue["admissionChecksStrategy"]["admissionChecks"]} == {CHECK, POWER_CHECK}
        retries = jobs.get(f"{KUEUE}/provisioningrequestconfigs/{POWER_CHECK}")["spec"]["retryStrategy"]
        assert retries["backoffLimitCount"] > 1000, "a job without machines would be given up"
    finally:
        have(teams, TEAMS)
    for kind in ("provisioningrequestconfigs", "admissionchecks"):
        assert jobs.root.request("GET", f"{KUEUE}/{kind}/{POWER_CHECK}").status == 404


def test_the_inventory_of_this_file_is_right() -> None:
    fleet, mistakes = read_fleet(EXPECTS, PLACES)
    assert (fleet.gpus, fleet.levels, mistakes) == ({MODEL: 40}, ("leaf", "rack"), [])


def test_a_job_waits_for_its_check_and_runs_on_nodes_of_nobody(teams: Applier, jobs: Jobs) -> None:
    jobs.run_job("t-vision", "borrows", 3)
    try:
        verified(jobs, "t-vision")
        until("pods on nodes", lambda: len(jobs.bound("t-vision")) == 3)
        assert set(jobs.bound("t-vision").values()) <= {"t-1", "t-2", "t-3", "t-4"}
        (usage,) = jobs.get(f"{KUEUE}/clusterqueues/t-vision")["status"]["flavorsUsage"]
        assert usage == {"name": MODEL, "resources": [{"name": "nvidia.com/gpu", "total": "24", "borrowed": "8"}]}
    finally:
        end(jobs, "t-vision")


def test_a_team_that_borrows_none_gets_no_more_than_its_own(teams: Applier, jobs: Jobs) -> None:
    jobs.run_job("t-text", "too-large", 2)
    try:
        until(
            "a word of the queue", lambda: "quota" in str(workload(jobs, "t-text").get("status", {}).get("conditions"))
        )
        assert "status" not in workload(jobs, "t-text") or "admission" not in workload(jobs, "t-text")["status"]
    finally:
        end(jobs, "t-text")


def test_a_dedicated_team_runs_on_its_own_node_with_its_toleration(teams: Applier, jobs: Jobs) -> None:
    jobs.run_job("t-audio", "own", 1)
    try:
        verified(jobs, "t-audio")
        until("a pod on the own node", lambda: list(jobs.bound("t-audio").values()) == ["t-5"])
    finally:
        end(jobs, "t-audio")


def test_another_quota_is_written_and_another_borrowing(teams: Applier, jobs: Jobs) -> None:
    less = {**TEAMS, "t-vision": {**TEAMS["t-vision"], "gpus": 8, "borrow": False}}
    assert have(teams, less) == ["Cohort/fleet", "ClusterQueue/t-vision"]
    assert plan(teams, less).names == []
    assert have(teams, TEAMS) == ["Cohort/fleet", "ClusterQueue/t-vision"]
    (group,) = jobs.get(f"{KUEUE}/clusterqueues/t-vision")["spec"]["resourceGroups"]
    assert group["flavors"][0]["resources"] == [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]


def test_a_queue_that_an_admin_stopped_stays_stopped_and_a_changed_one_is_put_back(teams: Applier, jobs: Jobs) -> None:
    path = f"{KUEUE}/clusterqueues/t-text"
    for change in ({"stopPolicy": "Hold"}, {"fairSharing": {"weight": "100"}}):
        assert jobs.root.request("PATCH", path, {"spec": change}, MERGE_PATCH).status == 200
    assert have(teams, TEAMS) == ["ClusterQueue/t-text"]
    assert jobs.get(path)["spec"]["stopPolicy"] == "Hold"
    assert jobs.root.request("PATCH", path, {"spec": {"stopPolicy": "None"}}, MERGE_PATCH).status == 200
    assert plan(teams, TEAMS).names == []


def test_a_team_with_work_is_not_removed_and_one_without_is(teams: Applier, jobs: Jobs) -> None:
    rest = {name: team for name, team in TEAMS.items() if name != "t-audio"}
    jobs.run_job("t-audio", "still-there", 1)
    workload(jobs, "t-audio")
    try:
        with pytest.raises(FleetError, match=r"fleet_teams has no t-audio \(1 Workload, 1 Job"):
            plan(teams, rest)
    finally:
        end(jobs, "t-audio")
    done = have(teams, rest)
    assert "-ClusterQueue/t-audio" in done and f"-ResourceFlavor/{MODEL}-t-audio" in done
    assert plan(teams, rest).names == [] == plan(teams, rest).removed
    assert NAMES.team not in jobs.get("/api/v1/namespaces/t-audio")["metadata"]["labels"]
    assert {"Namespace/t-audio", "ClusterQueue/t-audio"} <= set(have(teams, TEAMS))
    until("the queue of t-audio", lambda: jobs.is_active("t-audio"))


def test_the_last_teams_go_by_ansible_where_there_were_any(
    teams: Applier, jobs: Jobs, site: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    assert site({}, play="last.yml")["changed"] is False and jobs.is_active("t-vision")
    (tmp_path / "teams.json").write_text("[]")
    assert site(TEAMS, play="last.yml")["changed"] is False and jobs.is_active("t-vision")
    try:
        assert site({}, play="last.yml")["changed"] is True
        kinds = ("clusterqueues", "cohorts", "localqueues", "resourceflavors", "topologies", "admissionchecks")
        assert [kind for kind in kinds if jobs.items(f"{KUEUE}/{kind}")] == []
        bindings = jobs.items("/apis/rbac.authorization.k8s.io/v1/namespaces/t-vision/rolebindings")
        assert bindings == [] and not (tmp_path / "teams.json").exists()
        # Its kubeconfig is not even read.
        (tmp_path / "kubeconfig/provisioner.kubeconfig").unlink()
        assert site({}, play="last.yml")["changed"] is False
    finally:
        have(teams, TEAMS)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/api/v1/namespaces/t-vision", None),
        ("GET", "/api/v1/namespaces/t-vision/secrets", None),
        (
            "POST",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/t-vision/rolebindings",
            {
                "metadata": {"name": "more"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            },
        ),
    ],
)
def test_the_provisioner_may_do_no_more(teams: Applier, jobs: Jobs, method: str, path: str, body: Any) -> None:
    provisioner = jobs.server.client(PROVISIONER_USER)
    assert provisioner.request(method, path, body).status == 403
