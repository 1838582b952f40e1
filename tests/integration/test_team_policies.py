"""The static policies for teams' namespaces on a real API server: what each lets through, and to whom.

Only here: what controllers, admins and break-glass may do in and to a team's namespace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_burnin.api.names import ADMITTER_USER, JOBSET_USER, KUEUE_USER
from tests.integration.gate import HOOK_KINDS, hook, matching, refused
from tests.integration.kube import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client, Server
from tests.integration.teams import (
    JOBS,
    JOBSETS,
    KUEUE,
    PODS,
    container,
    controller,
    gpu_pod,
    job,
    jobset,
    kueue_object,
    made,
    member,
    pod,
    two_teams,
)

GATED: dict[str, Any] = {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}
OF_KUEUE = {"labels": {"kueue.x-k8s.io/podset": "main"}, "annotations": {"kueue.x-k8s.io/workload": "w"}}


@pytest.fixture(scope="module")
def teams(server: Server, root: Client) -> Iterator[Server]:
    with two_teams(server, root):
        yield server


@pytest.fixture(scope="module")
def alice(teams: Server) -> Client:
    return member(teams, "alice")


@pytest.fixture(scope="module")
def kueue(teams: Server) -> Client:
    return teams.client(KUEUE_USER)


@pytest.fixture(scope="module")
def jobset_controller(teams: Server) -> Client:
    return teams.client(JOBSET_USER)


@pytest.fixture(scope="module")
def job_controller(teams: Server) -> Client:
    return controller(teams, "job-controller")


def path_of(collection: str, item: dict[str, Any]) -> str:
    return f"{collection}/{item['metadata']['name']}"


class TestTheWayOfAJob:
    def test_kueue_lets_it_run_and_the_job_controller_makes_its_pods(
        self, alice: Client, kueue: Client, job_controller: Client
    ) -> None:
        path = path_of(JOBS, made(alice.request("POST", JOBS, job(parallelism=2))))
        refused(alice.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH), "muster-team-jobs")
        made(kueue.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH))
        gated = made(job_controller.request("POST", PODS, gpu_pod(OF_KUEUE, **GATED)))
        free = {"spec": {"schedulingGates": None}, "metadata": {"labels": {"kueue.x-k8s.io/podset": "other"}}}
        for change in free:
            answer = alice.request("PATCH", path_of(PODS, gated), {change: free[change]}, MERGE_PATCH)
            refused(answer, "only Kueue changes")
        made(kueue.request("PATCH", path_of(PODS, gated), free, MERGE_PATCH))
        # Its owner may end it, and begin it no more.
        made(alice.request("PATCH", path, {"spec": {"parallelism": 1}}, MERGE_PATCH))
        made(alice.request("PATCH", path, {"spec": {"suspend": True}}, MERGE_PATCH))
        assert alice.request("DELETE", f"{path}?propagationPolicy=Background").status == 200

    def test_jobs_of_a_jobset_need_no_queue(self, alice: Client, kueue: Client, jobset_controller: Client) -> None:
        owner = made(alice.request("POST", JOBSETS, jobset()))
        refused(
            alice.request("PATCH", path_of(JOBSETS, owner), {"spec": {"suspend": False}}, MERGE_PATCH),
            "muster-team-jobs",
        )
        made(kueue.request("PATCH", path_of(JOBSETS, owner), {"spec": {"suspend": False}}, MERGE_PATCH))
        references = [owner_of(owner)]
        child = job({"labels": {}, "ownerReferences": references}, suspend=False)
        refused(alice.request("POST", JOBS, child), "muster-team-jobs")
        path = path_of(JOBS, made(jobset_controller.request("POST", JOBS, child)))
        made(jobset_controller.request("PATCH", path, {"spec": {"suspend": True}}, MERGE_PATCH))
        refused(alice.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH), "muster-team-jobs")
        made(jobset_controller.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH))

    def test_the_jobset_controller_makes_no_other_jobs(self, jobset_controller: Client) -> None:
        refused(jobset_controller.request("POST", JOBS, job(suspend=False)), "begin suspended")

    def test_a_queue_is_changed_while_the_job_waits(self, alice: Client, kueue: Client) -> None:
        path = path_of(JOBS, made(alice.request("POST", JOBS, job())))
        other: dict[str, Any] = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "other"}}}
        made(alice.request("PATCH", path, other, MERGE_PATCH))
        none = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": None}}}
        refused(alice.request("PATCH", path, none, MERGE_PATCH), "muster-team-jobs")

    def test_work_without_gpus_needs_no_job(self, alice: Client) -> None:
        own = {"key": "muster.dev/team", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}
        mine = made(alice.request("POST", PODS, pod(tolerations=[own])))
        assert alice.request("POST", f"{path_of(PODS, mine)}/exec?command=id&stdout=true").status == 400
        made(alice.request("PATCH", path_of(PODS, mine), {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH))
        other = {**own, "value": "audio"}
        refused(alice.request("POST", PODS, pod(tolerations=[other])), "may not tolerate")

    def test_the_rest_of_daily_work(self, alice: Client) -> None:
        core = "/api/v1/namespaces/vision"
        for path, kind in (("configmaps", "ConfigMap"), ("secrets", "Secret"), ("services", "Service")):
            item: dict[str, Any] = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "mine"}}
            item |= {"spec": {"ports": [{"port": 80}]}} if kind == "Service" else {}
            made(alice.request("POST", f"{core}/{path}", item))
        for path in (f"{core}/events", f"{KUEUE}/namespaces/vision/workloads", f"{KUEUE}/clusterqueues"):
            assert alice.request("GET", path).status == 200, path

    def test_kueue_lets_a_job_onto_the_teams_own_nodes(self, alice: Client, kueue: Client) -> None:
        path = path_of(JOBS, made(alice.request("POST", JOBS, job())))
        own = {"key": "muster.dev/team", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}
        start = {"suspend": False, "template": {"spec": {"tolerations": [own]}}}
        made(kueue.request("PATCH", path, {"spec": start}, MERGE_PATCH))

    def test_a_job_that_was_there_before_the_rules_can_be_ended(
        self, teams: Server, root: Client, kueue: Client
    ) -> None:
        """A namespace becomes a team's with a Job in it whose pods the rules refuse."""
        before = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "before"}}
        made(root.request("POST", "/api/v1/namespaces", before))
        path = path_of(
            jobs := JOBS.replace("vision", "before"),
            made(root.request("POST", jobs, job(template={"spec": pod(nodeName="gpu-1")["spec"]}))),
        )
        label = {"metadata": {"labels": {"muster.dev/team": "before"}}}
        made(root.request("PATCH", "/api/v1/namespaces/before", label, MERGE_PATCH))
        made(kueue.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH))
        start = {"suspend": False, "template": {"spec": {"nodeSelector": {"a": "b"}}}}
        refused(kueue.request("PATCH", path, {"spec": start}, MERGE_PATCH), "set by the scheduler alone")
        assert root.request("DELETE", f"{path}?propagationPolicy=Foreground").status == 200
        made(root.request("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH))
        assert root.request("GET", path).status == 404

    def test_a_large_jobset_is_within_what_a_policy_may_cost(self, alice: Client) -> None:
        """As many parts, containers and tolerations as fit into an object of 1 MiB."""
        tolerations = [{"key": f"example.com/{number}", "operator": "Exists"} for number in range(16)]
        near = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near] * 4}}
        containers = [container(f"c{number}", {"nvidia.com/gpu": "1", "cpu": "1"}) for number in range(8)]
        spec = pod(containers=containers, tolerations=tolerations, affinity=affinity)["spec"]
        parts = [{"name": f"p{n}", "template": {"spec": {"template": {"spec": spec}}}} for n in range(200)]
        whole = jobset(replicatedJobs=parts)
        assert 600_000 < len(json.dumps(whole)) < 1_048_576
        path = path_of(JOBSETS, made(alice.request("POST", JOBSETS, whole)))
        made(alice.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH))
        spec |= {"terminationGracePeriodSeconds": 60}
        made(alice.request("PATCH", path, {"spec": {"replicatedJobs": parts}}, MERGE_PATCH))
        spec |= {"terminationGracePeriodSeconds": 3601}
        refused(alice.request("PATCH", path, {"spec": {"replicatedJobs": parts}}, MERGE_PATCH), "at most 3600")


def owner_of(item: dict[str, Any]) -> dict[str, Any]:
    """What a Job of a JobSet says."""
    about = item["metadata"]
    whole = {"apiVersion": item["apiVersion"], "kind": item["kind"], "name": about["name"], "uid": about["uid"]}
    return {**whole, "controller": True}


class TestEverybodyIsBound:
    """What runs beside the queue is on GPUs that somebody else was given."""

    @pytest.mark.parametrize("account", ["daemon-set-controller", "replicaset-controller", "statefulset-controller"])
    def test_other_controllers_make_no_pods_with_gpus(self, teams: Server, account: str) -> None:
        refused(controller(teams, account).request("POST", PODS, gpu_pod()), "make a Job or JobSet")
        made(controller(teams, account).request("POST", PODS, pod()))

    @pytest.mark.parametrize("who", ["admin", "root"])
    def test_admins(self, request: pytest.FixtureRequest, teams: Server, who: str) -> None:
        client: Client = request.getfixturevalue(who)
        refused(client.request("POST", PODS, gpu_pod()), "muster-team-pods")
        refused(client.request("POST", JOBS, job(suspend=False)), "muster-team-jobs")
        refused(client.request("POST", JOBS, job({"labels": {}})), "name a queue")
        waiting = made(client.request("POST", JOBS, job()))
        free: dict[str, Any] = {"spec": {"suspend": False}}
        refused(client.request("PATCH", path_of(JOBS, waiting), free, MERGE_PATCH), "muster-team-jobs")
        refused(client.request("DELETE", path_of(JOBS, waiting)), "propagationPolicy")
        assert client.request("DELETE", f"{path_of(JOBS, waiting)}?propagationPolicy=Background").status == 200

    def test_the_scheduler_alone_binds(self, teams: Server, root: Client) -> None:
        name = made(root.request("POST", PODS, pod()))["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        for path in (f"{PODS}/{name}/binding", PODS.replace("pods", "bindings")):
            refused(root.request("POST", path, binding), "scheduler alone")
        made(teams.client("system:kube-scheduler").request("POST", f"{PODS}/{name}/binding", binding))

    def test_a_pod_gets_no_gpu_later(self, teams: Server, root: Client, admin: Client) -> None:
        path = path_of(PODS, made(root.request("POST", PODS, pod())))
        late = {"name": "late", "image": "x", "securityContext": container()["securityContext"]}
        late["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        # The API itself takes no resources for it, and resizes nothing but CPU and memory.
        answer = admin.request(
            "PATCH", f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [late]}}, STRATEGIC_PATCH
        )
        assert answer.status in (403, 422), answer
        more = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}
        assert admin.request("PATCH", f"{path}/resize", more, STRATEGIC_PATCH).status in (403, 422)

    def test_a_pod_with_gpus_stays_its_jobs(self, alice: Client, job_controller: Client) -> None:
        labelled = {"labels": {"batch.kubernetes.io/job-name": "j"}}
        path = path_of(PODS, made(job_controller.request("POST", PODS, gpu_pod(labelled))))
        gone = {"metadata": {"labels": {"batch.kubernetes.io/job-name": None}}}
        refused(alice.request("PATCH", path, gone, MERGE_PATCH), "its Job would lose sight of it")
        note = {"metadata": {"annotations": {"muster.dev/hold-until": "checkpoint"}}}
        made(alice.request("PATCH", path, note, MERGE_PATCH))
        made(job_controller.request("PATCH", path, gone, MERGE_PATCH))


class TestWhatMakesATeam:
    @pytest.mark.parametrize(
        "labels",
        [
            {"muster.dev/team": None},
            {"muster.dev/team": "audio"},
            {"pod-security.kubernetes.io/enforce": "privileged"},
            {"pod-security.kubernetes.io/enforce": None},
            {"pod-security.kubernetes.io/enforce-version": "v1.20"},
        ],
    )
    def test_its_labels_are_the_provisioners(self, teams: Server, admin: Client, labels: dict[str, Any]) -> None:
        change = {"metadata": {"labels": labels}}
        refused(admin.request("PATCH", "/api/v1/namespaces/vision", change, MERGE_PATCH), "muster-team-namespaces")

    def test_other_labels_and_namespaces_are_free(self, teams: Server, admin: Client) -> None:
        change = {"metadata": {"labels": {"owner": "x"}}}
        made(admin.request("PATCH", "/api/v1/namespaces/vision", change, MERGE_PATCH))
        change = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
        made(admin.request("PATCH", "/api/v1/namespaces/plain", change, MERGE_PATCH))

    def test_teams_come_and_go_with_the_inventory(self, teams: Server, admin: Client, root: Client) -> None:
        about = {"name": "third", "labels": {"muster.dev/team": "third"}}
        third = {"apiVersion": "v1", "kind": "Namespace", "metadata": about}
        refused(admin.request("POST", "/api/v1/namespaces", third), "muster-team-namespaces")
        refused(admin.request("DELETE", "/api/v1/namespaces/vision"), "muster-team-namespaces")
        joins = {"metadata": {"labels": {"muster.dev/team": "plain"}}}
        refused(admin.request("PATCH", "/api/v1/namespaces/plain", joins, MERGE_PATCH), "muster-team-namespaces")
        made(root.request("POST", "/api/v1/namespaces", third))
        assert root.request("DELETE", "/api/v1/namespaces/third").status == 200

    def test_a_team_is_not_reached_from_outside(self, teams: Server, admin: Client) -> None:
        ingress = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "in"}}
        ingress["spec"] = {"defaultBackend": {"service": {"name": "x", "port": {"number": 80}}}}
        path = "/apis/networking.k8s.io/v1/namespaces/{}/ingresses"
        refused(admin.request("POST", path.format("vision"), ingress), "not reached from outside")
        made(admin.request("POST", path.format("plain"), ingress))


class TestQueues:
    def test_quotas_are_the_provisioners(self, teams: Server, kueue: Client, root: Client) -> None:
        queue = kueue_object("ClusterQueue", "vision", cohortName="fleet")
        path = f"{KUEUE}/clusterqueues"
        refused(kueue.request("POST", path, queue), "muster-queues")
        made(root.request("POST", path, queue))
        finalizers = {"metadata": {"finalizers": ["kueue.x-k8s.io/resource-in-use"]}}
        made(kueue.request("PATCH", f"{path}/vision", finalizers, MERGE_PATCH))
        made(kueue.request("PATCH", f"{path}/vision/status", {"status": {"pendingWorkloads": 1}}, MERGE_PATCH))
        refused(kueue.request("PATCH", f"{path}/vision", {"spec": {"cohortName": "x"}}, MERGE_PATCH), "muster-queues")
        refused(kueue.request("DELETE", f"{path}/vision"), "muster-queues")
        made(kueue.request("PATCH", f"{path}/vision", {"metadata": {"finalizers": None}}, MERGE_PATCH))
        assert root.request("DELETE", f"{path}/vision").status == 200

    def test_workloads_are_kueues_and_the_check_the_admitters(
        self, teams: Server, kueue: Client, root: Client, admin: Client
    ) -> None:
        bind_status(root)
        admitter = teams.client(ADMITTER_USER)
        path = f"{KUEUE}/namespaces/vision/workloads"
        item = kueue_object("Workload", "w", queueName="default")
        refused(root.request("POST", path, item), "muster-workloads")
        made(kueue.request("POST", path, item))
        refused(root.request("PATCH", f"{path}/w", {"spec": {"queueName": "x"}}, MERGE_PATCH), "muster-workloads")
        stands = {"status": {"admission": {"clusterQueue": "vision"}}}
        refused(root.request("PATCH", f"{path}/w/status", stands, MERGE_PATCH), "muster-workloads")
        refused(admitter.request("PATCH", f"{path}/w/status", stands, MERGE_PATCH), "muster-workloads")
        made(kueue.request("PATCH", f"{path}/w/status", stands, MERGE_PATCH))
        check = {"status": {"admissionChecks": [{"name": "verified", "state": "Ready"}]}}
        made(admitter.request("PATCH", f"{path}/w/status", check, MERGE_PATCH))
        refused(
            root.request("PATCH", f"{path}/w/status", {"status": {"admissionChecks": []}}, MERGE_PATCH), "muster-wo"
        )
        assert admin.request("DELETE", f"{path}/w").status == 200


def bind_status(root: Client) -> None:
    """The admitter's right to write the status of workloads, which comes with its check."""
    rules = [{"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads/status"], "verbs": ["patch"]}]
    base = "/apis/rbac.authorization.k8s.io/v1"
    role: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules}
    root.request("POST", f"{base}/clusterroles", {**role, "metadata": {"name": "test:check"}})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "test:check"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "test:check"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ADMITTER_USER}],
    }
    root.request("POST", f"{base}/clusterrolebindings", binding)


class TestWebhooksOfOthers:
    @pytest.mark.parametrize("kind", HOOK_KINDS)
    @pytest.mark.parametrize("group", ["kueue.x-k8s.io", "batch jobset.x-k8s.io", "*"])
    def test_do_not_match_kueues_and_jobsets_objects(
        self, teams: Server, admin: Client, root: Client, kind: str, group: str
    ) -> None:
        elsewhere = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "vision"}}}
        path, made_of = hook(kind, matching(group, "*", "Namespaced"), **elsewhere)
        reply = admin.request("POST", f"{path}?dryRun=All", made_of)
        if group == "*" and kind.startswith("Validating"):
            made(reply)
        else:
            refused(reply, "muster-queue-webhooks")
        made(root.request("POST", f"{path}?dryRun=All", made_of))

    @pytest.mark.parametrize("kind", HOOK_KINDS)
    def test_match_other_work(self, teams: Server, admin: Client, kind: str) -> None:
        path, made_of = hook(kind, matching("batch kueue.example.com", "*"))
        made(admin.request("POST", f"{path}?dryRun=All", made_of))


def test_nothing_changes_outside_of_teams(teams: Server, admin: Client) -> None:
    """The same requests, in a namespace that is no team's."""
    plain = [PODS.replace("vision", "plain"), JOBS.replace("vision", "plain")]
    everything = {"operator": "Exists"}
    made(admin.request("POST", plain[0], gpu_pod(OF_KUEUE, nodeName="gpu-1", tolerations=[everything])))
    made(admin.request("POST", plain[0], pod(hostNetwork=True, **GATED)))
    path = path_of(plain[1], made(admin.request("POST", plain[1], job({"labels": {}}))))
    made(admin.request("PATCH", path, {"spec": {"suspend": False}}, MERGE_PATCH))
    made(admin.request("PATCH", path, [{"op": "replace", "path": "/spec/parallelism", "value": 3}], JSON_PATCH))
    assert admin.request("DELETE", f"{path}?propagationPolicy=Orphan").status == 200
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "out"}}
    service["spec"] = {"type": "NodePort", "ports": [{"port": 80}], "externalIPs": ["192.0.2.1"]}
    made(admin.request("POST", "/api/v1/namespaces/plain/services", service))
