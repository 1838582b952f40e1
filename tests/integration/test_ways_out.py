"""Ways out of a team's namespace, each tried on a real API server with the fleet's roles and policies.

Only here: each way as a member of the team goes it, that it is refused for the reason meant, and that the audit log has
who tried it, and why not. What needs a kubelet or a network is tried in the lab.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.api.names import JOBSET_USER, KUEUE_USER
from gpu_burnin.cli.muster.main import cli
from tests.integration.kube import MERGE_PATCH, STRATEGIC_PATCH, Client, Server
from tests.integration.teams import (
    DEFINITIONS,
    JOBS,
    JOBSETS,
    KUEUE,
    PODS,
    RBAC,
    RESTRICTED,
    AuditTail,
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

CORE = "/api/v1/namespaces/vision"
THEIRS = "/api/v1/namespaces/audio"
NODES = "/api/v1/nodes"
SERVICES = f"{CORE}/services"
RIGHTS = f"{RBAC}/namespaces/vision"
POD_SECURITY, RBAC_SAYS, NO_IMPERSONATION = "violates PodSecurity", 'User "alice" cannot', "cannot impersonate"
TEAM_PODS, TEAM_JOBS, WAYS_IN = "muster-team-pods", "muster-team-jobs", "muster-team-ways-in"
PODS_END = "muster-team-pods-end"


@dataclass(frozen=True)
class Way:
    """A request of alice, of team vision, and what of the refusal says why."""

    name: str
    word: str
    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    act_as: str = ""


def _pod(name: str, word: str, body: dict[str, Any]) -> Way:
    return Way(name, word, "POST", PODS, body)


def _job(name: str, body: dict[str, Any]) -> Way:
    return Way(name, TEAM_JOBS, "POST", JOBS, body)


def _host_path(path: str) -> dict[str, Any]:
    return pod(volumes=[{"name": "v", "hostPath": {"path": path}}])


def _secured(**changes: Any) -> dict[str, Any]:
    return pod(containers=[container(securityContext={**RESTRICTED, **changes})])


def _asks(resource: str, **spec: Any) -> dict[str, Any]:
    return pod(**{"containers": [container(asks={resource: "1"})], **spec})


def _object(kind: str, name: str = "x", version: str = "v1", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def _parts(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "a", "template": {"spec": {"template": {"spec": spec}}}}]


_EVERYWHERE = {"labelSelector": {}, "namespaceSelector": {}, "topologyKey": "kubernetes.io/os"}
_ALONE = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_EVERYWHERE]}}


def _tolerates(**toleration: str) -> dict[str, Any]:
    return pod(tolerations=[{"operator": "Exists", **toleration}])


# What no pod may be, and no template of a Job or JobSet: it would get its quota, and its pods were refused for ever.
PODS_OF_NOBODY = {
    "a resource claim": pod(resourceClaims=[{"name": "g", "resourceClaimName": "g"}]),
    "a device class": _asks("deviceclass.resource.kubernetes.io/gpu"),
    "a node by name": pod(nodeName="gpu-1"),
    "all taints tolerated": _tolerates(),
    "all NoExecute taints tolerated": _tolerates(effect="NoExecute"),
    "quarantine tolerated": _tolerates(key="muster.dev/quarantine"),
    "every team's nodes": _tolerates(key="muster.dev/team"),
    "another team's nodes": _tolerates(key="muster.dev/team", operator="Equal", value="audio"),
    "the cluster's priority": pod(priorityClassName="system-node-critical"),
    "a month to end": pod(terminationGracePeriodSeconds=30 * 86400),
    "others' pods kept away": pod(affinity=_ALONE),
}
FREED: dict[str, Any] = {"metadata": {"ownerReferences": None}}
TOLERATES_MORE = {"spec": {"template": {"spec": {"tolerations": _tolerates()["spec"]["tolerations"]}}}}
ASKED_TO_LEAVE = {"metadata": {"annotations": {"muster.dev/leave": "{}"}}}
STAYS = {"metadata": {"finalizers": ["example.com/stays"]}}
RBAC_V1 = "rbac.authorization.k8s.io/v1"
ADMIN_REF = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
ALICE = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]
PORTS = [{"port": 80}]
GPU = {"nvidia.com/gpu": "1"}
OWNED = {"ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "s", "uid": "u"}]}
HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
OTHER_QUEUE = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "other"}}}
OTHER_TEAM = {"metadata": {"labels": {"muster.dev/team": "audio"}}}
TAKEN = {
    "metadata": {
        "name": "x",
        "labels": {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/prebuilt-workload-name": "w"},
    }
}
TOKEN = {"metadata": {"name": "x", "annotations": {"kubernetes.io/service-account.name": "default"}}}
PRIVILEGED_PSA = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}

# Out of the container.
HOST = (
    _pod("a host path", POD_SECURITY, _host_path("/")),
    _pod("the kubelet's folder", POD_SECURITY, _host_path("/var/lib/kubelet")),
    _pod("the socket of containerd", POD_SECURITY, _host_path("/run/containerd/containerd.sock")),
    _pod("privileged", POD_SECURITY, _secured(privileged=True, allowPrivilegeEscalation=True)),
    _pod("capabilities", POD_SECURITY, _secured(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]})),
    _pod("root", POD_SECURITY, _secured(runAsUser=0, runAsNonRoot=False)),
    _pod("the host's network", POD_SECURITY, pod(hostNetwork=True)),
    _pod("the host's processes", POD_SECURITY, pod(hostPID=True)),
    _pod("the host's IPC", POD_SECURITY, pod(hostIPC=True)),
    _pod(
        "a port of the host", POD_SECURITY, pod(containers=[container(ports=[{"containerPort": 1, "hostPort": 10250}])])
    ),
    _pod("no seccomp", POD_SECURITY, _secured(seccompProfile={"type": "Unconfined"})),
)
# Past the queue.
QUEUE = (
    _pod("a pod with a GPU", TEAM_PODS, gpu_pod()),
    _pod("a MIG instance", TEAM_PODS, _asks("nvidia.com/mig-1g.10gb")),
    _pod(
        "a GPU of an init container",
        TEAM_PODS,
        pod(initContainers=[container("i", GPU)]),
    ),
    _pod("a GPU of a sidecar", TEAM_PODS, pod(initContainers=[container("i", GPU, restartPolicy="Always")])),
    *(_pod(f"a pod with {what}", TEAM_PODS, of) for what, of in PODS_OF_NOBODY.items()),
    *(_job(f"a Job with {what}", job(template={"spec": of["spec"]})) for what, of in PODS_OF_NOBODY.items()),
    *(
        Way(f"a JobSet with {what}", TEAM_JOBS, "POST", JOBSETS, jobset(replicatedJobs=_parts(of["spec"])))
        for what, of in PODS_OF_NOBODY.items()
    ),
    Way("a Job that tolerates more while it waits", TEAM_JOBS, "PATCH", f"{JOBS}/waits", TOLERATES_MORE, MERGE_PATCH),
    _job("a Job with what the admitter says", job(template={**ASKED_TO_LEAVE, "spec": pod()["spec"]})),
    _pod("a pod as if by Kueue", TEAM_PODS, pod({"annotations": {"kueue.x-k8s.io/workload": "w"}})),
    _job("a Job without a queue", job({"labels": {}})),
    _job("a Job that is not suspended", job(suspend=False)),
    _job("a Job as if of a JobSet", job(OWNED)),
    Way("a JobSet that grows", TEAM_JOBS, "PATCH", f"{JOBSETS}/runs", {"spec": {"replicatedJobs": []}}, MERGE_PATCH),
    _job("another Job's workload", job(TAKEN["metadata"])),
    _job("pods that outlive their Job", job({"finalizers": ["orphan"]})),
    Way("a JobSet that is not suspended", TEAM_JOBS, "POST", JOBSETS, jobset(suspend=False)),
    Way("a JobSet without a queue", TEAM_JOBS, "POST", JOBSETS, jobset({"labels": {}})),
    Way("a Job let run by hand", TEAM_JOBS, "PATCH", f"{JOBS}/waits", {"spec": {"suspend": False}}, MERGE_PATCH),
    Way("a Job that grows", TEAM_JOBS, "PATCH", f"{JOBS}/runs", {"spec": {"parallelism": 9}}, MERGE_PATCH),
    Way("another queue", TEAM_JOBS, "PATCH", f"{JOBS}/runs", OTHER_QUEUE, MERGE_PATCH),
    Way("a Job deleted without its pods", TEAM_JOBS, "DELETE", f"{JOBS}/runs?propagationPolicy=Orphan"),
    Way("all Jobs, likewise", TEAM_JOBS, "DELETE", f"{JOBS}?propagationPolicy=Orphan"),
    # Without a word on them, a Job of batch/v1 leaves its pods behind.
    Way("a Job deleted without a word on its pods", TEAM_JOBS, "DELETE", f"{JOBS}/runs"),
    Way("all Jobs, without a word on their pods", TEAM_JOBS, "DELETE", JOBS),
    Way("a part of a JobSet, deleted likewise", TEAM_JOBS, "DELETE", f"{JOBS}/part"),
    Way("a part taken from its JobSet", TEAM_JOBS, "PATCH", f"{JOBS}/part", FREED, MERGE_PATCH),
    Way(
        "a part that is stopped and grows",
        TEAM_JOBS,
        "PATCH",
        f"{JOBS}/part",
        {"spec": {"suspend": True, "parallelism": 64}},
        MERGE_PATCH,
    ),
    _job("a Job that stays when it is deleted", job({"finalizers": ["example.com/stays"]})),
    Way("a Job that is made to stay", TEAM_JOBS, "PATCH", f"{JOBS}/runs", STAYS, MERGE_PATCH),
    _job("pods that stay", job(template={**STAYS, "spec": pod()["spec"]})),
    Way("a pod that is gone at once", PODS_END, "DELETE", f"{PODS}/runs?gracePeriodSeconds=0"),
    Way("a gate taken away", TEAM_PODS, "PATCH", f"{PODS}/gated", {"spec": {"schedulingGates": None}}, MERGE_PATCH),
    Way("a pod taken from its Job", TEAM_PODS, "PATCH", f"{PODS}/gated", {"metadata": {"labels": None}}, MERGE_PATCH),
    Way("a binding", RBAC_SAYS, "POST", f"{PODS}/gated/binding", _object("Binding", target=_object("Node"))),
    Way("a DaemonSet", RBAC_SAYS, "POST", "/apis/apps/v1/namespaces/vision/daemonsets", {}),
    Way("a quota", RBAC_SAYS, "PATCH", f"{KUEUE}/clusterqueues/vision", {}, MERGE_PATCH),
    Way(
        "a local queue to another's quota",
        RBAC_SAYS,
        "POST",
        f"{KUEUE}/namespaces/vision/localqueues",
        kueue_object("LocalQueue", "x"),
    ),
    Way("a workload", RBAC_SAYS, "PATCH", f"{KUEUE}/namespaces/vision/workloads/w/status", {}, MERGE_PATCH),
    Way("a priority class", RBAC_SAYS, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {}),
    # With fleet_gang: native, where a server serves them: test_native_gangs.py.
    Way("a group of pods", RBAC_SAYS, "POST", "/apis/scheduling.k8s.io/v1alpha2/namespaces/vision/podgroups", {}),
    Way("a Workload of groups", RBAC_SAYS, "POST", "/apis/scheduling.k8s.io/v1alpha2/namespaces/vision/workloads", {}),
)
# Into another team's, and in from outside.
OTHERS = (
    Way("another team's secrets", RBAC_SAYS, "GET", f"{THEIRS}/secrets"),
    Way("all secrets", RBAC_SAYS, "GET", "/api/v1/secrets"),
    Way("another team's logs", RBAC_SAYS, "GET", f"{THEIRS}/pods/p/log"),
    Way("exec in another team's pod", RBAC_SAYS, "POST", f"{THEIRS}/pods/p/exec?command=id"),
    Way("attach to another team's pod", RBAC_SAYS, "POST", f"{THEIRS}/pods/p/attach?stdin=true"),
    Way("port-forward to another team's pod", RBAC_SAYS, "POST", f"{THEIRS}/pods/p/portforward"),
    Way("a Job of another team", RBAC_SAYS, "POST", "/apis/batch/v1/namespaces/audio/jobs", job()),
    Way("another team's workloads", RBAC_SAYS, "GET", f"{KUEUE}/namespaces/audio/workloads"),
    Way(
        "a load balancer", WAYS_IN, "POST", SERVICES, _object("Service", spec={"type": "LoadBalancer", "ports": PORTS})
    ),
    Way(
        "a port of all nodes", WAYS_IN, "POST", SERVICES, _object("Service", spec={"type": "NodePort", "ports": PORTS})
    ),
    Way(
        "another's address",
        WAYS_IN,
        "POST",
        SERVICES,
        _object("Service", spec={"externalIPs": ["192.0.2.1"], "ports": PORTS}),
    ),
    Way(
        "another's name",
        WAYS_IN,
        "POST",
        SERVICES,
        _object("Service", spec={"type": "ExternalName", "externalName": "a.b"}),
    ),
    Way("a Service through the API server", RBAC_SAYS, "GET", f"{SERVICES}/x/proxy/"),
    Way("addresses of a Service", RBAC_SAYS, "POST", "/apis/discovery.k8s.io/v1/namespaces/vision/endpointslices", {}),
    Way("an Ingress", RBAC_SAYS, "POST", "/apis/networking.k8s.io/v1/namespaces/vision/ingresses", {}),
    Way("the network policy", RBAC_SAYS, "DELETE", "/apis/networking.k8s.io/v1/namespaces/vision/networkpolicies/x"),
)
# Up to somebody who may more.
UP = (
    Way(
        "a token that never ends",
        WAYS_IN,
        "POST",
        f"{CORE}/secrets",
        _object("Secret", type="kubernetes.io/service-account-token") | TOKEN,
    ),
    Way(
        "a token of kube-system",
        RBAC_SAYS,
        "POST",
        "/api/v1/namespaces/kube-system/serviceaccounts/job-controller/token",
        {},
    ),
    Way("a token of the own account", RBAC_SAYS, "POST", f"{CORE}/serviceaccounts/default/token", {}),
    Way("a service account", RBAC_SAYS, "POST", f"{CORE}/serviceaccounts", _object("ServiceAccount")),
    Way("a role", RBAC_SAYS, "POST", f"{RIGHTS}/roles", _object("Role", version=RBAC_V1, rules=[])),
    Way(
        "rights to oneself",
        RBAC_SAYS,
        "POST",
        f"{RIGHTS}/rolebindings",
        _object("RoleBinding", version=RBAC_V1, roleRef=ADMIN_REF, subjects=ALICE),
    ),
    Way("the role of members", RBAC_SAYS, "PATCH", f"{RBAC}/clusterroles/muster:team-member", {}, MERGE_PATCH),
    Way("as the admitter", NO_IMPERSONATION, "GET", NODES, act_as="muster:admitter"),
    Way("as Kueue", NO_IMPERSONATION, "GET", PODS, act_as=KUEUE_USER),
    Way("as bob", NO_IMPERSONATION, "GET", f"{THEIRS}/pods", act_as="bob"),
    Way("a certificate", RBAC_SAYS, "POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", {}),
    Way(
        "a webhook",
        RBAC_SAYS,
        "POST",
        HOOK,
        _object("MutatingWebhookConfiguration", version="admissionregistration.k8s.io/v1"),
    ),
    Way("a definition", RBAC_SAYS, "PATCH", f"{DEFINITIONS}/workloads.kueue.x-k8s.io", {}, MERGE_PATCH),
    Way("the namespace's team", RBAC_SAYS, "PATCH", CORE, OTHER_TEAM, MERGE_PATCH),
    Way("the namespace's pod security", RBAC_SAYS, "PATCH", CORE, PRIVILEGED_PSA, MERGE_PATCH),
    Way("a container beside another", RBAC_SAYS, "PATCH", f"{PODS}/gated/ephemeralcontainers", {}, STRATEGIC_PATCH),
    Way(
        "the admitter's Lease",
        RBAC_SAYS,
        "GET",
        "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases/muster-admitter",
    ),
)
# To the nodes.
TO_NODES = (
    Way("a node", RBAC_SAYS, "PATCH", f"{NODES}/gpu-1", {"spec": {"taints": []}}, MERGE_PATCH),
    Way("a node's status", RBAC_SAYS, "PATCH", f"{NODES}/gpu-1/status", {}, MERGE_PATCH),
    Way("a node's kubelet through the API server", RBAC_SAYS, "GET", f"{NODES}/gpu-1/proxy/pods"),
    Way("the ledger", RBAC_SAYS, "PATCH", "/apis/muster.dev/v1/nodeadmissions/gpu-1", {}, MERGE_PATCH),
    Way("a volume of the host", RBAC_SAYS, "POST", "/api/v1/persistentvolumes", {}),
)
WAYS = HOST + QUEUE + OTHERS + UP + TO_NODES


def _bound_to(name: str) -> dict[str, Any]:
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}
    return _object("Binding", name, target=target)


@pytest.fixture(scope="module")
def alice(server: Server, root: Client) -> Iterator[Client]:
    """A member of vision, which has a Job that waits, one that runs, and a pod of it."""
    with two_teams(server, root):
        whom = member(server, "alice")
        for name in ("waits", "runs"):
            made(whom.request("POST", JOBS, job({"name": name}, parallelism=2)))
        made(whom.request("POST", JOBSETS, jobset({"name": "runs"}, replicatedJobs=_parts(pod()["spec"]))))
        kueue = server.client(KUEUE_USER)
        made(kueue.request("PATCH", f"{JOBSETS}/runs", {"spec": {"suspend": False}}, MERGE_PATCH))
        made(kueue.request("PATCH", f"{JOBS}/runs", {"spec": {"suspend": False}}, MERGE_PATCH))
        about = {"name": "gated", "labels": {"batch.kubernetes.io/job-name": "runs"}}
        gated = gpu_pod(about, schedulingGates=[{"name": "kueue.x-k8s.io/topology"}])
        jobs = controller(server, "job-controller")
        made(jobs.request("POST", PODS, gated))
        made(jobs.request("POST", PODS, gpu_pod({"name": "runs"})))
        made(server.client("system:kube-scheduler").request("POST", f"{PODS}/runs/binding", _bound_to("runs")))
        parent = whom.request("GET", f"{JOBSETS}/runs").body["metadata"]
        owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "runs", "uid": parent["uid"]}
        part = job({"name": "part", "labels": {}, "ownerReferences": [{**owner, "controller": True}]}, suspend=False)
        made(server.client(JOBSET_USER).request("POST", JOBS, part))
        yield whom


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_it_is_refused_and_told(server: Server, alice: Client, way: Way) -> None:
    tail = AuditTail(server)
    mark = f"way={WAYS.index(way)}-"
    path = f"{way.path}{'&' if '?' in way.path else '?'}{mark}"
    headers = {"Impersonate-User": way.act_as} if way.act_as else {}
    reply = alice.request(way.method, path, way.body, way.content_type, headers)
    assert reply.status == 403, f"{reply.status}: {reply.message}"
    assert way.word in reply.message, reply.message
    entry = tail.find(mark)
    assert entry["user"]["username"] == "alice" and entry["responseStatus"]["code"] == 403
    assert way.word in json.dumps(entry, ensure_ascii=False).replace('\\"', '"'), entry


def test_what_was_run_in_a_pod_is_told_with_its_command(server: Server, alice: Client) -> None:
    tail = AuditTail(server)
    assert alice.request("POST", f"{PODS}/gated/exec?command=nvidia-smi&stdout=true&mark=run").status == 400
    entry = tail.find("mark=run")
    assert entry["level"] == "Request" and "command=nvidia-smi" in entry["requestURI"]
    assert (entry["user"]["username"], entry["objectRef"]["subresource"]) == ("alice", "exec")


def test_muster_who_tells_it(server: Server, alice: Client) -> None:
    """Last: it reads what the ways above have left in the log, through the command itself."""
    alice.request("GET", f"{CORE}/secrets")
    cluster = ["--kubeconfig", str(server.kubeconfig("admin", ["muster:admins"]))]
    logs = ["--audit", str(server.directory / "audit.log")]

    def who(*options: str) -> str:
        done = CliRunner().invoke(cli, ["who", "vision", *options, *cluster])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "no audit log was read" in who() and "user alice" in who()
    assert "REFUSED" in who(*logs)
    told = json.loads(who(*logs, "--since", "7d", "--json"))
    can = {one["name"]: one["can"] for one in told["can"]}
    assert can["alice"] == [
        "exec",
        "port-forward",
        "read secrets",
        "change secrets",
        "run jobs",
        "run pods",
        "end work",
        "read logs",
        "change",
        "read",
    ]
    assert "read secrets" in can["muster:admins"] and can["system:masters"] == ["everything"]
    assert "bob" not in can
    mine = [one for one in told["did"] if one["who"] == "alice"]
    assert any(one["did"] == "list secrets" and one["refused"] is None for one in mine)
    refusals = [one["refused"] for one in mine if one["refused"]]
    for word in (TEAM_PODS, TEAM_JOBS, WAYS_IN, POD_SECURITY, RBAC_SAYS):
        assert any(word in reason for reason in refusals), word
    assert told["notes"] == []
