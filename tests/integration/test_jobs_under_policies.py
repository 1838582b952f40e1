"""Real Kueue and JobSet in a team's namespace that the static policies keep: all of their work gets through.

Only here: that no policy for teams refuses what Kueue, JobSet and the job controller do, and what becomes of a Job
where Kueue's webhook is gone. What the policies refuse: test_team_policies.py and test_ways_out.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpu_burnin.api.names import GPU_LABEL, LEAF_LABEL, RACK_LABEL, READY_LABEL, TEAM_MEMBER_ROLE
from tests.integration.gate import refused
from tests.integration.jobs_stack import GPUS, MODEL, NAMES, Jobs
from tests.integration.kube import MERGE_PATCH, Client, until
from tests.integration.teams import RBAC, RESTRICTED, bind, made, member

TEAM = "kept"
KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUE = f"/apis/{KUEUE}/clusterqueues/{TEAM}"
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{TEAM}/jobsets"
JOBS = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


def _objects() -> Iterator[dict[str, Any]]:
    labels = {NAMES.team: TEAM, "pod-security.kubernetes.io/enforce": "restricted"}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": labels}}
    levels = [{"nodeLabel": label} for label in (LEAF_LABEL, RACK_LABEL, "kubernetes.io/hostname")]
    flavor = {"name": TEAM, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(4 * GPUS)}]}
    taint = {"key": NAMES.team, "operator": "Equal", "value": TEAM, "effect": "NoSchedule"}
    specs: dict[str, dict[str, Any]] = {
        "Topology": {"levels": levels},
        "ResourceFlavor": {
            "nodeLabels": {READY_LABEL: "true", GPU_LABEL: MODEL, "of": TEAM},
            "topologyName": TEAM,
            "tolerations": [taint],
        },
        "ClusterQueue": {
            "namespaceSelector": {"matchLabels": {NAMES.team: TEAM}},
            "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
        },
    }
    for kind, spec in specs.items():
        yield {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": TEAM}, "spec": spec}
    about = {"name": "default", "namespace": TEAM}
    yield {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": about, "spec": {"clusterQueue": TEAM}}


@pytest.fixture(scope="module")
def team(jobs: Jobs) -> Jobs:
    """A team with four nodes of its own."""
    for item in _objects():
        jobs.apply(item)
    bind(jobs.root, f"{RBAC}/namespaces/{TEAM}/rolebindings", "muster:team-members", TEAM_MEMBER_ROLE, "carol")
    jobs.queues_answer(TEAM)
    for number in range(4):
        jobs.add_node(f"kept-{number}", rack=f"kept-{number // 2}", leaf="kept", labels={"of": TEAM})
        jobs.shut(f"kept-{number}", NAMES.team, value=TEAM)
    return jobs


@pytest.fixture(scope="module")
def carol(team: Jobs) -> Client:
    """A member of the team."""
    return member(team.server, "carol")


def template(nodes: int) -> dict[str, Any]:
    """The spec of a Job of so many whole nodes."""
    container = {
        "name": "train",
        "image": "x",
        "securityContext": RESTRICTED,
        "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}},
    }
    about = {"annotations": {"kueue.x-k8s.io/podset-required-topology": LEAF_LABEL}}
    pods = {"metadata": about, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": pods}


def gone(team: Jobs) -> bool:
    """Whether no pod and no workload is left; pods that end are ended."""
    for pod in team.pods(TEAM):
        if "deletionTimestamp" in pod["metadata"]:
            team.gone(TEAM, pod["metadata"]["name"])
    return not team.pods(TEAM) and not team.workloads(TEAM)


def drained(team: Jobs) -> bool:
    """Whether Kueue has taken everything from the nodes; a pod that ends holds its node until it is gone."""
    gone(team)
    return not team.pods(TEAM)


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_it_waits_runs_is_stopped_runs_again_and_ends(team: Jobs, carol: Client, kind: str) -> None:
    name = kind.lower()
    if kind == "Job":
        path, item = JOBS, {"apiVersion": "batch/v1", "spec": template(4)}
    else:
        parts = [{"name": part, "replicas": 1, "template": {"spec": template(2)}} for part in ("a", "b")]
        path, item = JOBSETS, {"apiVersion": "jobset.x-k8s.io/v1alpha2", "spec": {"replicatedJobs": parts}}
    # No queue named: Kueue gives it the namespace's, and suspends it.
    whole = made(carol.request("POST", path, {**item, "kind": kind, "metadata": {"name": name}}))
    assert whole["spec"]["suspend"] is True
    assert whole["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"
    until("four nodes", lambda: len(set(team.bound(TEAM).values())) == 4)
    team.running(TEAM)
    made(team.root.request("PATCH", QUEUE, {"spec": {"stopPolicy": "HoldAndDrain"}}, MERGE_PATCH))
    until("the nodes' being free", lambda: drained(team))
    made(team.root.request("PATCH", QUEUE, {"spec": {"stopPolicy": "None"}}, MERGE_PATCH))
    until("four nodes again", lambda: len(set(team.bound(TEAM).values())) == 4)
    team.running(TEAM)
    ends = list(team.bound(TEAM))
    for pod in ends:
        team.ended(TEAM, pod)

    def finished() -> bool:
        conditions = carol.request("GET", f"{path}/{name}").body.get("status", {}).get("conditions", [])
        return any(one["type"] in ("Complete", "Completed") and one["status"] == "True" for one in conditions)

    until("its end", finished)
    assert carol.request("DELETE", f"{path}/{name}?propagationPolicy=Background").status == 200
    until("its pods' end", lambda: gone(team))


def test_no_policy_refused_the_fleets_own_parts(team: Jobs) -> None:
    log = (team.server.directory / "audit.log").read_text().splitlines()
    own = ('"username":"muster:kueue"', '"username":"muster:jobset"', "kube-system:", '"username":"system:kube')
    refusals = [line for line in log if "muster-team-" in line or "muster-queues" in line or "muster-workloads" in line]
    refusals = [line for line in refusals if '"validation.policy.admission.k8s.io/validation_failure"' in line]
    assert [line for line in refusals if any(who in line for who in own)] == []


def test_without_kueues_webhook_no_job_gets_by_the_queue(team: Jobs, carol: Client) -> None:
    kept = team.get(f"{HOOKS}/kueue")
    assert team.root.request("DELETE", f"{HOOKS}/kueue").status == 200
    labels = {"kueue.x-k8s.io/queue-name": "default"}
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "by", "labels": labels}, "spec": template(1)}
    try:

        def answer() -> bool:
            reply = carol.request("POST", f"{JOBS}?dryRun=All", whole)
            return reply.status == 403

        until("the webhook's being gone", answer)
        refused(carol.request("POST", JOBS, whole), "it does not answer on this API server")
    finally:
        again = {"apiVersion": kept["apiVersion"], "kind": kept["kind"], "webhooks": kept["webhooks"]}
        team.apply({**again, "metadata": {"name": "kueue"}})
