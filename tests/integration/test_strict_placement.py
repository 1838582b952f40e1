"""The optional policies of placement, and what the loss of a policy file looks like, on a real API server.

Only here: the optional policies, and a policy file that goes and comes while the API server runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.gate import (
    NODES,
    a_node,
    held_node,
    refused,
)
from tests.integration.kube import JSON_PATCH, MERGE_PATCH, Client, Reply, Server
from tests.integration.kube_files import gate_file


@pytest.fixture(scope="module")
def strict(server: Server) -> Iterator[Server]:
    usual = server.policy_files()
    server.load({**usual, "placement.yaml": gate_file("placement.yaml", server.directory)})
    yield server
    server.load(usual)


@pytest.fixture(scope="module")
def user(strict: Server) -> Client:
    """Someone who may create pods in a namespace like any other and in muster-system."""
    root = strict.client("root", ["system:masters"])
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    for name in ("default", "muster-system"):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        root.request("POST", "/api/v1/namespaces", namespace)
        root.request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
    return root


class TestStrictPlacement:
    @staticmethod
    def create(client: Client, spec: dict[str, Any], namespace: str = "default") -> Reply:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "p-"},
            "spec": {
                "containers": [{"name": "c", "image": "x"}],
                "automountServiceAccountToken": False,
                "restartPolicy": "Never",
                **spec,
            },
        }
        return client.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)

    @pytest.mark.parametrize(
        "toleration",
        [
            {"operator": "Exists"},
            {"operator": "Exists", "effect": "NoSchedule"},
            {"key": "muster.dev/preflight", "operator": "Exists"},
            {"key": "muster.dev/preflight", "operator": "Equal", "value": "", "effect": "NoExecute"},
            {"key": "muster.dev/quarantine", "operator": "Exists"},
        ],
    )
    def test_tolerations(self, user: Client, toleration: dict[str, str]) -> None:
        refused(self.create(user, {"tolerations": [toleration]}), "muster-placement")
        assert self.create(user, {"tolerations": [toleration]}, "muster-system").status == 201

    def test_ordinary_tolerations(self, user: Client) -> None:
        tolerations = [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"operator": "Exists", "effect": "NoExecute"},
        ]
        reply = self.create(user, {"tolerations": tolerations})
        assert reply.status == 201, reply.message

    def test_tolerations_added_later(self, user: Client) -> None:
        pod = self.create(user, {}).body
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        more = [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}]
        refused(user.request("PATCH", path, more, JSON_PATCH), "muster-placement")
        label = {"metadata": {"labels": {"a": "b"}}}
        assert user.request("PATCH", path, label, MERGE_PATCH).status == 200

    def test_node_name(self, user: Client) -> None:
        refused(self.create(user, {"nodeName": "gpu-1"}), "muster-placement")

    def test_binding(self, strict: Server, user: Client) -> None:
        name = held_node(strict)
        pod = self.create(user, {}).body["metadata"]["name"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": name},
        }
        for path in (f"pods/{pod}/binding", "bindings"):
            refused(user.request("POST", f"/api/v1/namespaces/default/{path}", binding), "muster-placement")
        scheduler = strict.client("system:kube-scheduler")
        reply = scheduler.request("POST", f"/api/v1/namespaces/default/pods/{pod}/binding", binding)
        assert reply.status == 201, reply.message


def test_a_removed_file_shows_in_the_hash_until_it_is_back(strict: Server, root: Client) -> None:
    usual = strict.policy_files()
    before = strict.loaded_hash()
    probe = f"{NODES}?dryRun=All"
    refused(root.request("POST", probe, a_node("open", spec={})))
    try:
        strict.load({name: usual[name] for name in usual if name != "gate.yaml"})
        assert strict.loaded_hash() != before
        assert root.request("POST", probe, a_node("open", spec={})).status == 201
    finally:
        strict.load(usual)
    assert strict.loaded_hash() == before
    refused(root.request("POST", probe, a_node("open", spec={})))
