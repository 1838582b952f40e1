"""Two teams on the API server of a test: their namespaces, members and queues, and the static policies for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpu_burnin.api.names import JOBSET_USER, KUEUE_USER, TEAM_MEMBER_ROLE, USERS_GROUP
from tests.integration.kube import Client, Reply, Server, until
from tests.integration.kube_files import TEAM_POLICIES, gate_file

RBAC = "/apis/rbac.authorization.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/vision/jobsets"
PODS = "/api/v1/namespaces/vision/pods"
JOBS = "/apis/batch/v1/namespaces/vision/jobs"
QUEUE = {"kueue.x-k8s.io/queue-name": "default"}
TEAMS = {"vision": "alice", "audio": "bob"}
# Kind, plural, and whether it is in a namespace.
KINDS = {
    "kueue.x-k8s.io/v1beta2": (
        ("ClusterQueue", "clusterqueues", False),
        ("LocalQueue", "localqueues", True),
        ("ResourceFlavor", "resourceflavors", False),
        ("AdmissionCheck", "admissionchecks", False),
        ("Workload", "workloads", True),
    ),
    "jobset.x-k8s.io/v1alpha2": (("JobSet", "jobsets", True),),
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(name: str = "c", asks: Mapping[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    """A container that Pod Security `restricted` takes, and the resources that it asks for."""
    resources = {"resources": {"limits": dict(asks)}} if asks else {}
    return {"name": name, "image": "x", "securityContext": RESTRICTED, **resources, **changes}


def pod(metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod without GPUs, with these fields of its spec."""
    whole = {"containers": [container()], "restartPolicy": "Never", **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-", **(metadata or {})}, "spec": whole}


def gpu_pod(metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod that asks for a GPU."""
    return pod(metadata, containers=[container(asks={"nvidia.com/gpu": "1"})], **spec)


def job(metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A Job of a queue, suspended as Kueue's webhook has it."""
    template = {"spec": pod()["spec"]}
    about = {"generateName": "j-", "labels": QUEUE, **(metadata or {})}
    whole = {"suspend": True, "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": whole}


def jobset(metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A JobSet of a queue, suspended."""
    about = {"generateName": "s-", "labels": QUEUE, **(metadata or {})}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": about,
        "spec": {"suspend": True, **spec},
    }


def kueue_object(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """An object of Kueue."""
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}


def made(reply: Reply) -> dict[str, Any]:
    """What was created or written. Raises AssertionError where it was refused."""
    assert reply.status in (200, 201), f"{reply.status}: {reply.message}"
    return reply.body


def controller(server: Server, name: str) -> Client:
    """One of kube-controller-manager's accounts."""
    return server.client(
        f"system:serviceaccount:kube-system:{name}", ["system:serviceaccounts", "system:serviceaccounts:kube-system"]
    )


def member(server: Server, name: str) -> Client:
    """Somebody of a team, with the certificate that the fleet gives."""
    return server.client(name, [USERS_GROUP])


@contextmanager
def two_teams(server: Server, root: Client) -> Iterator[None]:
    """vision has alice, audio has bob, plain is no team's; the policies are loaded until the block ends."""
    define(root)
    for name in (*TEAMS, "plain"):
        labels = {"muster.dev/team": name, "pod-security.kubernetes.io/enforce": "restricted"} if name in TEAMS else {}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        root.request("POST", "/api/v1/namespaces", namespace)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        root.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
    for name, who in TEAMS.items():
        bind(root, f"{RBAC}/namespaces/{name}/rolebindings", "muster:team-members", TEAM_MEMBER_ROLE, who)
        root.request("POST", f"{KUEUE}/namespaces/{name}/localqueues", kueue_object("LocalQueue", "default"))
    # Their own roles come with roles kueue and jobset: here the policies are asked, and not RBAC.
    for user in (KUEUE_USER, JOBSET_USER):
        bind(root, f"{RBAC}/clusterrolebindings", f"test:{user}", "cluster-admin", user)
    usual = server.policy_files()
    server.load({**usual, **{name: gate_file(name, server.directory) for name in TEAM_POLICIES}})
    try:
        yield
    finally:
        server.load(usual)


def bind(root: Client, path: str, name: str, role: str, user: str) -> None:
    """Give a user a ClusterRole, in a namespace or everywhere."""
    kind = "RoleBinding" if path.endswith("/rolebindings") else "ClusterRoleBinding"
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    root.request("POST", path, binding)


def define(root: Client) -> None:
    """Kinds with the names of Kueue's and JobSet's, which keep whatever they are given."""
    for version, kinds in KINDS.items():
        group, _, served = version.partition("/")
        for kind, plural, namespaced in kinds:
            open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            definition = {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": f"{plural}.{group}",
                    "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"},
                },
                "spec": {
                    "group": group,
                    "names": {"kind": kind, "plural": plural},
                    "scope": "Namespaced" if namespaced else "Cluster",
                    "versions": [
                        {
                            "name": served,
                            "served": True,
                            "storage": True,
                            "schema": {"openAPIV3Schema": open_schema},
                            "subresources": {"status": {}},
                        }
                    ],
                },
            }
            root.request("POST", DEFINITIONS, definition)
            path = f"/apis/{version}/{plural}"
            until(f"{path}'s being served", lambda: root.request("GET", path).status == 200)  # noqa: B023


class AuditTail:
    """What an API server adds to its audit log."""

    def __init__(self, server: Server) -> None:
        self._path = server.directory / "audit.log"
        self._offset = self._path.stat().st_size

    def find(self, mark: str) -> dict[str, Any]:
        """The new entry whose address has this mark. Raises TimeoutError."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                lines = [line for line in file if line.endswith(b"\n") and mark.encode() in line]
            found.extend(json.loads(line) for line in lines)
            return bool(found)

        until(f"the entry of {mark}", look, 20)
        return found[-1]
