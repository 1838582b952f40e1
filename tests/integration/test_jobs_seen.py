"""`muster teams` and `muster why JOB` on real Kueue: what people read is what its objects say.

Only here: the words of a real Kueue, scheduler and taint manager. Each cause, on recorded objects: unit/fleet/jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.admission.client import admissions_path
from gpu_burnin.api import record
from gpu_burnin.api.names import (
    ADMITTER_USER,
    GPU_LABEL,
    LEAF_LABEL,
    PROVISIONER_USER,
    RACK_LABEL,
    READY_LABEL,
    USERS_GROUP,
)
from gpu_burnin.cli.muster import main as muster
from tests.integration.jobs_stack import GPUS, MODEL, NAMES, Jobs
from tests.integration.kube import MERGE_PATCH, apply_ledger, until
from tests.support.fleet_samples import admission

TEAM, OTHER, CHECK, MEMBER = "seen", "other", "seen-verified", "ann"
_KUEUE = "kueue.x-k8s.io/v1beta2"


def _queue(team: str, nodes: int, *checks: str) -> Iterator[dict[str, Any]]:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": str(nodes * GPUS)}
    spec: dict[str, Any] = {
        "cohortName": TEAM,
        "namespaceSelector": {"matchLabels": {NAMES.team: team}},
        "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": TEAM, "resources": [quota]}]}],
        "preemption": {"reclaimWithinCohort": "Any"},
    }
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team, "labels": {NAMES.team: team}}}
    yield {"apiVersion": _KUEUE, "kind": "ClusterQueue", "metadata": {"name": team}, "spec": spec}
    local = {"name": "default", "namespace": team}
    yield {"apiVersion": _KUEUE, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": team}}


def _objects() -> Iterator[dict[str, Any]]:
    levels = [{"nodeLabel": label} for label in (LEAF_LABEL, RACK_LABEL, "kubernetes.io/hostname")]
    labels = {READY_LABEL: "true", GPU_LABEL: MODEL, "of": TEAM}
    for kind, name, spec in (
        ("Topology", TEAM, {"levels": levels}),
        ("ResourceFlavor", TEAM, {"nodeLabels": labels, "topologyName": TEAM}),
        ("Cohort", TEAM, {}),
        ("AdmissionCheck", CHECK, {"controllerName": NAMES.verified_check}),
    ):
        yield {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}
    yield from _queue(TEAM, 2)
    yield from _queue(OTHER, 1, CHECK)
    # As little as a member of a team may read.
    rules = [
        {"apiGroups": [""], "resources": ["pods", "pods/log", "events"], "verbs": ["get", "list"]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]},
        {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get", "list"]},
        {"apiGroups": ["kueue.x-k8s.io"], "resources": ["localqueues", "workloads"], "verbs": ["get", "list"]},
    ]
    role = {"name": "readers", "namespace": TEAM}
    rbac = "rbac.authorization.k8s.io"
    yield {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": role, "rules": rules}
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": role,
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "readers"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": MEMBER}],
    }


@pytest.fixture(scope="module")
def stack(jobs: Jobs) -> Jobs:
    """Two teams on three nodes, of which one is lent, and the ledger."""
    if jobs.root.request("GET", admissions_path(NAMES)).status != 200:
        apply_ledger(jobs.server)
    for item in _objects():
        jobs.apply(item)
    condition = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": AT}
    path = f"/apis/{_KUEUE}/admissionchecks/{CHECK}/status"
    reply = jobs.root.request("PATCH", path, {"status": {"conditions": [condition]}}, MERGE_PATCH)
    assert reply.status == 200, reply.message
    for number in range(3):
        jobs.add_node(f"seen-{number}", rack=f"seen-{number // 2}", leaf="seen", labels={"of": TEAM})
    jobs.queues_answer(TEAM, OTHER)
    return jobs


AT = "2026-01-01T00:00:00Z"


def submit(stack: Jobs, team: str, name: str, nodes: int, *, near: str = "", queue: str = "default") -> None:
    """A Job of whole nodes, as a person makes it."""
    gpus = {"nvidia.com/gpu": str(GPUS)}
    annotations = {"kueue.x-k8s.io/podset-required-topology": near} if near else {}
    container = {"name": "train", "image": "x", "resources": {"limits": gpus}}
    stack.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": queue}},
            "spec": {
                "parallelism": nodes,
                "completions": nodes,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "suspend": True,
                "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {"restartPolicy": "Never", "containers": [container]},
                },
            },
        }
    )


def shown(stack: Jobs, *arguments: str, member: bool = False, groups: Sequence[str] = ()) -> dict[str, Any]:
    """What a command says to programs, to an admin, or to a member of the team, who may be in groups."""
    user, its = (MEMBER, groups) if member else ("break-glass", ["system:masters"])
    kubeconfig = stack.server.kubeconfig(user, its)
    done = CliRunner().invoke(muster.cli, [*arguments, "--json", "--kubeconfig", str(kubeconfig)])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def why(stack: Jobs, job: str) -> dict[str, Any]:
    return shown(stack, "why", job)


def waits(stack: Jobs, job: str, reason: str) -> str:
    """The sentence of a wait, once it is for this reason."""
    until(f"{job} waits for {reason}", lambda: (why(stack, job)["waits"] or {}).get("why") == reason, 30)
    return str(why(stack, job)["waits"]["sentence"])


def shares(stack: Jobs) -> dict[str, dict[str, Any]]:
    return {team["name"]: team["shares"][0] for team in shown(stack, "teams")["teams"] if team["shares"]}


def test_who_asks_for_too_much_is_told_so_with_figures(stack: Jobs) -> None:
    submit(stack, TEAM, "large", 4)
    assert "asks for 32 GPUs at once, and its team can have 24" in waits(stack, f"{TEAM}/large", "too_large")
    submit(stack, TEAM, "close", 3, near=RACK_LABEL)
    told = waits(stack, f"{TEAM}/close", "too_large_for_place")
    assert "asks for 24 GPUs in one rack, and the largest rack has 16" in told
    submit(stack, TEAM, "lost", 1, queue="fast")
    assert "namespace seen has no queue fast" in waits(stack, f"{TEAM}/lost", "no_queue")
    for name in ("large", "close", "lost"):
        stack.root.request("DELETE", f"/apis/batch/v1/namespaces/{TEAM}/jobs/{name}?propagationPolicy=Background")


def test_from_borrowing_to_a_node_in_quarantine_each_step_is_told(stack: Jobs) -> None:
    submit(stack, TEAM, "train", 3)
    until("three pods", lambda: len(stack.bound(TEAM)) == 3, 60)
    stack.running(TEAM)
    until("the queue's figures", lambda: shares(stack)[TEAM]["used"] == 24, 30)
    found = shares(stack)
    assert (found[TEAM]["model"], found[TEAM]["quota"], found[TEAM]["borrowed"]) == (MODEL, 16, 8)
    assert found[OTHER]["lent"] == 8

    submit(stack, OTHER, "mine", 1)

    def leaves() -> bool:
        for pod in stack.pods(TEAM):
            if "deletionTimestamp" in pod["metadata"]:
                stack.gone(TEAM, pod["metadata"]["name"])
        told = why(stack, f"{TEAM}/train")["first_cause"] or {}
        return told.get("what") == "preempted" and not stack.pods(TEAM)

    until("the borrower leaves", leaves, 60)
    first = why(stack, f"{TEAM}/train")["first_cause"]["message"]
    assert first == f"it had to leave for {OTHER}/mine, which takes back its team's own quota"
    as_member = shown(stack, "why", "train", "--team", TEAM, member=True)
    assert f"it had to leave for a job of team {OTHER}, which takes" in as_member["first_cause"]["message"]

    def of_member(*groups: str) -> dict[str, Any]:
        return shown(stack, "teams", "--team", TEAM, member=True, groups=groups)

    until("the job is in line again", lambda: of_member()["teams"][0]["waiting"]["jobs"] == 1, 30)
    few = of_member()
    assert [team["name"] for team in few["teams"]] == [TEAM] and few["teams"][0]["waiting"]["gpus"] == 24
    assert any("ClusterQueues" in one for one in few["not_readable"])
    all_quotas = {team["name"]: team for team in of_member(USERS_GROUP)["teams"]}
    assert all_quotas[OTHER]["shares"][0]["quota"] == 8 and all_quotas[OTHER]["waiting"]["gpus"] is None
    assert all_quotas[TEAM]["waiting"]["gpus"] == 24

    assert f"check {CHECK} has not let it go" in waits(stack, f"{OTHER}/mine", "check")
    judge(stack, "mine")
    until("the owner's pod", lambda: len(stack.bound(OTHER)) == 1, 60)
    stack.running(OTHER)
    ((pod, node),) = stack.bound(OTHER).items()
    quarantine(stack, node)
    until("its eviction", lambda: pod not in stack.bound(OTHER), 60)
    stack.gone(OTHER, pod)
    until("the job's end", lambda: "failed" in why(stack, f"{OTHER}/mine")["stands"], 60)
    told = why(stack, f"{OTHER}/mine")
    assert told["first_cause"]["code"] == "XID_FATAL" and f"{node}: XID 79 on GPU 3" in told["first_cause"]["message"]


def judge(stack: Jobs, name: str) -> None:
    """Let the nodes of a job go, as the admitter does."""
    (mine,) = (one for one in stack.workloads(OTHER) if one["metadata"]["name"].startswith(f"job-{name}-"))
    checks = [{**mine["status"]["admissionChecks"][0], "state": "Ready", "message": ""}]
    path = f"/apis/{_KUEUE}/namespaces/{OTHER}/workloads/{mine['metadata']['name']}/status"
    reply = stack.admitter.request("PATCH", path, {"status": {"admissionChecks": checks}}, MERGE_PATCH)
    assert reply.status == 200, reply.message


def quarantine(stack: Jobs, node: str) -> None:
    """Take a node out for a fatal XID, as the admitter does: the ledger, then the taint."""
    at = stack.get("/api/v1/nodes")["items"][0]["metadata"]["creationTimestamp"]
    message = f"{node}: XID 79 on GPU 3: GPU has fallen off the bus"
    now = max([at, *(pod["metadata"]["creationTimestamp"] for pod in stack.pods(OTHER))])
    step = record.Transition(now, "ready", "quarantined", "XID_FATAL", message, ADMITTER_USER)
    status = record.Status(record.State.QUARANTINED, now, "XID_FATAL", message, transitions=(step,))
    made = {name: value for name, value in admission(node).items() if name != "status"}
    provisioner = stack.server.client(PROVISIONER_USER)
    reply = provisioner.request("POST", admissions_path(NAMES), made)
    assert reply.status == 201, reply.message
    path = f"{admissions_path(NAMES, node)}/status"
    reply = stack.admitter.request("PATCH", path, {"status": record.status_document(status)}, MERGE_PATCH)
    assert reply.status == 200, reply.message
    stack.shut(node, NAMES.quarantine, "NoExecute", "XID_FATAL")
