"""What pods are told of leaving is the admitter's word, and the admitter's only one to a pod, on a real API server.

Only here: who may write the annotation DOMAIN/leave of a pod, by each way that brings annotations, and what else of a
pod the admitter may change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.decide.draining import leave_annotation
from gpu_burnin.admission.service.cache import Pods
from gpu_burnin.admission.service.pod_notes import PodNotes
from gpu_burnin.admission.view import Pod
from gpu_burnin.api.names import ADMITTER_USER, Names
from gpu_burnin.api.record import DrainRequest
from tests.integration.gate import admitted_node, kubelet, refused
from tests.integration.kube import APPLY, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client, Reply, Server
from tests.integration.kube_files import gate_file

LEAVE = Names().leave
PODS = "/api/v1/namespaces/leaving/pods"
TOLD = {"metadata": {"annotations": {LEAVE: "now"}}}
ONLY = "only the admitter changes the annotation muster.dev/leave of a pod"
NOTHING = "the admitter changes nothing of a pod but the annotation muster.dev/leave"
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def leaving(server: Server) -> Iterator[Server]:
    """The server with the policy, and a namespace for pods."""
    usual = server.policy_files()
    server.load({**usual, "pods.yaml": gate_file("pods.yaml", server.directory)})
    root = server.client("break-glass", ["system:masters"])
    root.request(
        "POST",
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leaving"}},
    )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    root.request("POST", "/api/v1/namespaces/leaving/serviceaccounts", account)
    yield server
    server.load(usual)


def a_pod(name: str, **metadata: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x"}], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def made(client: Client, **metadata: Any) -> str:
    name = f"p-{next(numbers)}"
    reply = client.request("POST", PODS, a_pod(name, **metadata))
    assert reply.status == 201, reply.message
    return name


def patched(client: Client, name: str, change: Any, kind: str = MERGE_PATCH, sub: str = "") -> Reply:
    return client.request("PATCH", f"{PODS}/{name}{sub}", change, kind)


@pytest.mark.usefixtures("leaving")
class TestOthers:
    def test_make_no_pod_that_is_told(self, root: Client, admitter: Client) -> None:
        refused(root.request("POST", PODS, a_pod("p-told", annotations={LEAVE: "now"})), ONLY)
        refused(
            root.request("PATCH", f"{PODS}/p-told?fieldManager=x", a_pod("p-told", **TOLD["metadata"]), APPLY), ONLY
        )
        assert admitter.request("POST", PODS, a_pod("p-told")).status == 403

    @pytest.mark.parametrize("kind", [MERGE_PATCH, STRATEGIC_PATCH])
    @pytest.mark.parametrize("sub", ["", "/status"])
    def test_tell_none_and_take_nothing_back(self, root: Client, admitter: Client, kind: str, sub: str) -> None:
        name = made(root, annotations={"a": "b"})
        refused(patched(root, name, TOLD, kind, sub), ONLY)
        assert patched(admitter, name, TOLD).status == 200
        for notes in ({LEAVE: None}, {LEAVE: "later"}, None):
            refused(patched(root, name, {"metadata": {"annotations": notes}}, MERGE_PATCH, sub), ONLY)
        # Whatever else they change of a pod that is told, they go on changing.
        assert patched(root, name, {"metadata": {"annotations": {"a": "c"}}}, kind, sub).status == 200

    def test_tell_none_by_json_patch_or_whole(self, root: Client) -> None:
        name = made(root)
        refused(
            patched(root, name, [{"op": "add", "path": "/metadata/annotations", "value": {LEAVE: "x"}}], JSON_PATCH),
            ONLY,
        )
        whole = root.request("GET", f"{PODS}/{name}").body
        whole["metadata"]["annotations"] = {LEAVE: "x"}
        refused(root.request("PUT", f"{PODS}/{name}", whole), ONLY)

    @pytest.mark.parametrize("way", ["/api/v1/namespaces/leaving/bindings", f"{PODS}/NAME/binding"])
    def test_tell_none_by_a_binding(self, leaving: Server, root: Client, admitter: Client, way: str) -> None:
        node, name = admitted_node(leaving, admitter), made(root)
        binding: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "annotations": {LEAVE: "x"}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = way.replace("NAME", name)
        refused(root.request("POST", path, binding), ONLY)
        binding["metadata"]["annotations"] = {"a": "b"}
        assert root.request("POST", path, binding).status == 201
        # Nor does the kubelet of the pod's own node.
        own = kubelet(leaving, node)
        assert patched(own, name, TOLD, STRATEGIC_PATCH, "/status").status == 403
        assert patched(own, name, {"status": {"phase": "Running"}}, STRATEGIC_PATCH, "/status").status == 200


@pytest.mark.usefixtures("leaving")
class TestAdmitter:
    @pytest.mark.parametrize(
        "change",
        [
            {"metadata": {"labels": {"team": "red"}}},
            {"metadata": {"annotations": {LEAVE: "x", "muster.dev/hold-until": "checkpoint"}}},
            {"metadata": {"annotations": {"a": None}}},
            {"metadata": {"finalizers": ["a.example/b"]}},
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}},
            {"spec": {"activeDeadlineSeconds": 1}},
            {"spec": {"containers": [{"name": "c", "image": "other"}]}},
        ],
    )
    def test_changes_nothing_else(self, root: Client, admitter: Client, change: dict[str, Any]) -> None:
        name = made(root, annotations={"a": "b"}, labels={"app": "c"})
        refused(patched(admitter, name, change), NOTHING)

    def test_has_no_other_way(self, root: Client, admitter: Client) -> None:
        name = made(root)
        for sub in ("/status", "/resize", "/ephemeralcontainers"):
            assert patched(admitter, name, TOLD, MERGE_PATCH, sub).status == 403
        assert admitter.request("DELETE", f"{PODS}/{name}").status == 403

    def test_tells_a_pod_and_takes_it_back_as_its_service_does(self, leaving: Server, root: Client) -> None:
        ask = DrainRequest("2026-11-22T11:00:00Z", "2026-11-29T12:00:00Z", "XID 79 on GPU-1")
        api = KubeApi(leaving.kubeconfig(ADMITTER_USER))
        notes = PodNotes(api, Names(), Pods("", LEAVE), frozenset({"leaving"}))
        for metadata in ({}, {"annotations": {"a": "b"}}):
            name = made(root, **metadata)
            pod = Pod("leaving", name, root.request("GET", f"{PODS}/{name}").body["metadata"]["uid"])
            notes.write([pod], ask)
            found = root.request("GET", f"{PODS}/{name}").body["metadata"]["annotations"]
            assert found == {**metadata.get("annotations", {}), LEAVE: leave_annotation(ask)}
            # Another pod of the same name is not told.
            notes.write([Pod("leaving", name, "another", leave=leave_annotation(ask))], None)
            assert root.request("GET", f"{PODS}/{name}").body["metadata"]["annotations"] == found
            notes.write([Pod("leaving", name, pod.uid, leave=leave_annotation(ask))], None)
            assert LEAVE not in root.request("GET", f"{PODS}/{name}").body["metadata"].get("annotations", {})
            notes.write([Pod("leaving", "is-gone", "u")], ask)
