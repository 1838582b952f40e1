"""What the tests of the gate share: identities, nodes as kubelets register them, and how a refusal looks."""

from __future__ import annotations

import itertools
from typing import Any

from tests.integration.kube import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client, Reply, Server

NODES = "/api/v1/nodes"
SCHEDULE = {"key": "muster.dev/preflight", "effect": "NoSchedule"}
EXECUTE = {"key": "muster.dev/preflight", "effect": "NoExecute"}
QUARANTINE = {"key": "muster.dev/quarantine", "value": "XID_FATAL", "effect": "NoSchedule"}
READY = "muster.node-restriction.kubernetes.io/ready"
EVIDENCE = "muster.dev/evidence"
FABRIC, FABRIC_TEST = "muster.dev/fabric", "muster.dev/fabric-test"
VERIFIED = {"type": "GPUVerified", "status": "True", "reason": "PASS", "message": "no fault seen"}
HOOKS = "/apis/admissionregistration.k8s.io/v1"
HOOK_KINDS = (
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "MutatingAdmissionPolicy",
    "ValidatingAdmissionPolicy",
)
numbers = itertools.count(1)


def kubelet(server: Server, node: str) -> Client:
    """The node's own credential."""
    return server.client(f"system:node:{node}", ["system:nodes"])


def attacker(server: Server, who: str, node: str) -> Client:
    """root (system:masters), admin (muster:admins) or the node's own kubelet."""
    if who == "root":
        return server.client("break-glass", ["system:masters"])
    return server.client("admin", ["muster:admins"]) if who == "admin" else kubelet(server, node)


def a_node(name: str, **changes: Any) -> dict[str, Any]:
    """A Node object as a kubelet sends it, with top-level changes."""
    node: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"taints": [SCHEDULE, EXECUTE]},
        "status": {"nodeInfo": node_info("boot-1")},
    }
    return {**node, **changes}


def node_info(boot_id: str) -> dict[str, str]:
    """A complete status.nodeInfo."""
    names = ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion")
    others = {**dict.fromkeys(names, "x"), "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"}
    return {**others, "bootID": boot_id}


def held_node(server: Server) -> str:
    """A node as its kubelet registers it."""
    name = f"gpu-{next(numbers)}"
    reply = kubelet(server, name).request("POST", NODES, a_node(name))
    assert reply.status == 201, reply.message
    return name


def admitted_node(server: Server, admitter: Client) -> str:
    """A node that the admitter has let in, with everything that the gate protects."""
    name = held_node(server)
    reply = admit(admitter, name)
    assert reply.status == 200, reply.message
    reply = admitter.request("PATCH", f"{NODES}/{name}/status", {"status": {"conditions": [VERIFIED]}}, STRATEGIC_PATCH)
    assert reply.status == 200, reply.message
    return name


def admit(client: Client, name: str) -> Reply:
    """The admitter's one patch."""
    version = client.request("GET", f"{NODES}/{name}").body["metadata"]["resourceVersion"]
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/spec/taints", "value": []},
        {"op": "add", "path": "/metadata/labels", "value": {READY: "true"}},
        {"op": "add", "path": "/metadata/annotations", "value": {"muster.dev/admitted": "now"}},
    ]
    return client.request("PATCH", f"{NODES}/{name}", patch, JSON_PATCH)


def hook(kind: str, matched: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    """Path and object of an admission webhook or policy with one rule."""
    made: dict[str, Any] = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "mine.example.com"},
    }
    if kind.endswith("WebhookConfiguration"):
        one: dict[str, Any] = {"name": "mine.example.com", "rules": [matched]}
        one |= {"admissionReviewVersions": ["v1"], "sideEffects": "None"}
        one |= {"clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Ignore", **more}
        return f"{HOOKS}/{kind.lower()}s", {**made, "webhooks": [one]}
    constraints: dict[str, Any] = {"resourceRules": [matched], **more}
    spec: dict[str, Any] = {"failurePolicy": "Ignore", "matchConstraints": constraints}
    if kind.startswith("Mutating"):
        expression = "Object{metadata: Object.metadata{labels: {'a': 'b'}}}"
        spec |= {"reinvocationPolicy": "Never"}
        mutation = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}
        spec["mutations"] = [mutation]
    else:
        spec |= {"validations": [{"expression": "false"}]}
    return f"{HOOKS}/{kind.lower()[:-1]}ies", {**made, "spec": spec}


def matching(groups: str, resources: str, scope: str = "*") -> dict[str, Any]:
    """A rule of an admission webhook or policy; `core` is the group without a name."""
    made = {"apiGroups": ["" if group == "core" else group for group in groups.split()]}
    return {
        **made,
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": resources.split(),
        "scope": scope,
    }


def refused(reply: Reply, word: str = "muster-node-gate.static.k8s.io") -> None:
    """Assert that the request was forbidden, with this word in the reason."""
    assert reply.status == 403, f"{reply.status}: {reply.message}"
    assert word in reply.message, reply.message


def merge(client: Client, name: str, change: dict[str, Any], subresource: str = "") -> Reply:
    """A merge patch of a Node."""
    return client.request("PATCH", f"{NODES}/{name}{subresource}", change, MERGE_PATCH)
