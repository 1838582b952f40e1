"""Attacks on the gate, against a real API server: each rule must hold for everyone but the admitter.

Only here: each rule of the gate, by each identity and each way to write; test_3_gate.py asks each server of a fleet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.gate import (
    EVIDENCE,
    EXECUTE,
    FABRIC,
    FABRIC_TEST,
    NODES,
    QUARANTINE,
    READY,
    SCHEDULE,
    VERIFIED,
    a_node,
    admitted_node,
    attacker,
    held_node,
    kubelet,
    merge,
    numbers,
    refused,
)
from tests.integration.kube import APPLY, JSON_PATCH, STRATEGIC_PATCH, Client, Reply, Server, api_server, binaries
from tests.integration.kube_files import policy_hash

ATTACKERS = ["root", "admin", "kubelet"]


class TestCreate:
    @pytest.mark.parametrize("who", ATTACKERS)
    @pytest.mark.parametrize(
        "taints",
        [
            [],
            [SCHEDULE],
            [EXECUTE],
            [{**SCHEDULE, "key": "muster.dev/preflight2"}, EXECUTE],
            [{**SCHEDULE, "effect": "PreferNoSchedule"}, EXECUTE],
            [SCHEDULE, EXECUTE, QUARANTINE],
        ],
    )
    def test_only_with_the_whole_taint(self, server: Server, who: str, taints: list[dict[str, str]]) -> None:
        name = f"new-{next(numbers)}"
        node = a_node(name, spec={"taints": taints})
        refused(attacker(server, who, name).request("POST", NODES, node))

    def test_with_the_taint_and_others(self, server: Server) -> None:
        name = f"new-{next(numbers)}"
        node = a_node(name, spec={"taints": [{"key": "a/b", "effect": "NoSchedule"}, EXECUTE, SCHEDULE]})
        assert kubelet(server, name).request("POST", NODES, node).status == 201

    def test_dry_run_is_refused_too(self, root: Client) -> None:
        refused(root.request("POST", f"{NODES}?dryRun=All", a_node("probe", spec={})))

    def test_by_apply(self, root: Client) -> None:
        refused(root.request("PATCH", f"{NODES}/applied?fieldManager=x", a_node("applied", spec={}), APPLY))

    def test_by_a_generated_name(self, root: Client) -> None:
        node = a_node("x", metadata={"generateName": "system-1"}, spec={})
        refused(root.request("POST", NODES, node))

    @pytest.mark.parametrize(
        "change",
        [
            {"labels": {READY: "true"}},
            {"annotations": {"muster.dev/admitted": "now"}},
            {"annotations": {EVIDENCE: "forged"}},
        ],
    )
    def test_without_marks(self, root: Client, change: dict[str, Any]) -> None:
        refused(root.request("POST", NODES, a_node("marked", metadata={"name": "marked", **change})))

    def test_without_the_condition(self, server: Server) -> None:
        name = f"new-{next(numbers)}"
        refused(kubelet(server, name).request("POST", NODES, a_node(name, status={"conditions": [VERIFIED]})))

    def test_again_after_deletion(self, server: Server, admitter: Client, root: Client) -> None:
        name = admitted_node(server, admitter)
        assert root.request("DELETE", f"{NODES}/{name}").status == 200
        refused(kubelet(server, name).request("POST", NODES, a_node(name, spec={})))


class TestTaints:
    @pytest.mark.parametrize("who", ATTACKERS)
    @pytest.mark.parametrize(
        "taints",
        [
            [],
            [SCHEDULE],
            [EXECUTE],
            [SCHEDULE, {**EXECUTE, "effect": "PreferNoSchedule"}],
            [{**SCHEDULE, "value": "x"}, EXECUTE],
            [{"key": "a/b", "effect": "NoSchedule"}, EXECUTE],
            [SCHEDULE, EXECUTE, QUARANTINE],
            [SCHEDULE, EXECUTE, {"key": "muster.dev/other", "effect": "NoSchedule"}],
            [SCHEDULE, {**EXECUTE, "timeAdded": "2040-01-01T00:00:00Z"}],
        ],
    )
    def test_of_a_held_node_stay(self, server: Server, who: str, taints: list[dict[str, str]]) -> None:
        name = held_node(server)
        reply = merge(attacker(server, who, name), name, {"spec": {"taints": taints}})
        # NodeRestriction may see a kubelet's attempt first.
        refused(reply, "forbidden" if who == "kubelet" else "only the admitter changes muster.dev taints")

    @pytest.mark.parametrize("content_type", [JSON_PATCH, STRATEGIC_PATCH, APPLY, "PUT"])
    def test_by_every_way_to_write(self, server: Server, root: Client, content_type: str) -> None:
        name = held_node(server)
        path = f"{NODES}/{name}"
        if content_type == "PUT":
            node = root.request("GET", path).body
            node["spec"]["taints"] = []
            reply = root.request("PUT", path, node)
        elif content_type == JSON_PATCH:
            reply = root.request("PATCH", path, [{"op": "remove", "path": "/spec/taints"}], JSON_PATCH)
        elif content_type == STRATEGIC_PATCH:
            reply = root.request("PATCH", path, {"spec": {"taints": None}}, STRATEGIC_PATCH)
        else:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": [QUARANTINE]}}
            reply = root.request("PATCH", f"{path}?fieldManager=x&force=true", node, APPLY)
        refused(reply)

    def test_cannot_be_dropped_through_the_status(self, server: Server, root: Client) -> None:
        name = held_node(server)
        merge(root, name, {"spec": {"taints": []}, "status": {"phase": "Running"}}, "/status")
        taints = root.request("GET", f"{NODES}/{name}").body["spec"]["taints"]
        assert SCHEDULE in taints and EXECUTE in taints

    @pytest.mark.parametrize("who", ATTACKERS)
    @pytest.mark.parametrize("taint", [SCHEDULE, EXECUTE, QUARANTINE])
    def test_cannot_be_forged(self, server: Server, admitter: Client, who: str, taint: dict[str, str]) -> None:
        name = admitted_node(server, admitter)
        reply = merge(attacker(server, who, name), name, {"spec": {"taints": [taint]}})
        refused(reply, "forbidden" if who == "kubelet" else "only the admitter")

    def test_of_quarantine_are_the_admitters(self, server: Server, admitter: Client, root: Client) -> None:
        name = admitted_node(server, admitter)
        assert merge(admitter, name, {"spec": {"taints": [QUARANTINE]}}).status == 200
        refused(merge(root, name, {"spec": {"taints": []}}))
        assert merge(admitter, name, {"spec": {"taints": []}}).status == 200

    def test_of_others_and_cordon_are_free(self, server: Server, admin: Client) -> None:
        name = held_node(server)
        taints = [{"key": "a/b", "effect": "NoSchedule"}, EXECUTE, SCHEDULE]
        reply = merge(admin, name, {"spec": {"taints": taints, "unschedulable": True}})
        assert reply.status == 200, reply.message
        assert merge(admin, name, {"spec": {"taints": [SCHEDULE, EXECUTE], "unschedulable": None}}).status == 200


class TestMarks:
    @pytest.mark.parametrize("subresource", ["", "/status"])
    @pytest.mark.parametrize("who", ATTACKERS)
    @pytest.mark.parametrize("value", ["false", None])
    def test_labels_stay(self, server: Server, admitter: Client, who: str, value: str | None, subresource: str) -> None:
        name = admitted_node(server, admitter)
        change = {"metadata": {"labels": {READY: value}}}
        refused(merge(attacker(server, who, name), name, change, subresource), "forbidden")

    @pytest.mark.parametrize("subresource", ["", "/status"])
    @pytest.mark.parametrize("who", ATTACKERS)
    def test_labels_cannot_be_forged(self, server: Server, who: str, subresource: str) -> None:
        name = held_node(server)
        for label in (READY, "muster.node-restriction.kubernetes.io/verdict"):
            reply = merge(attacker(server, who, name), name, {"metadata": {"labels": {label: "pass"}}}, subresource)
            # RBAC may see an admin's attempt first, and NodeRestriction a kubelet's.
            refused(reply, "muster-node-gate" if who == "root" else "forbidden")

    def test_other_labels_are_free(self, server: Server, admin: Client) -> None:
        assert merge(admin, held_node(server), {"metadata": {"labels": {"team": "red"}}}).status == 200

    @pytest.mark.parametrize("subresource", ["", "/status"])
    @pytest.mark.parametrize("who", ["root", "kubelet"])
    @pytest.mark.parametrize("value", ["later", None])
    def test_admitted_annotation_stays(
        self, server: Server, admitter: Client, who: str, value: str | None, subresource: str
    ) -> None:
        name = admitted_node(server, admitter)
        change = {"metadata": {"annotations": {"muster.dev/admitted": value}}}
        refused(merge(attacker(server, who, name), name, change, subresource))

    @pytest.mark.parametrize("key", [EVIDENCE, FABRIC])
    def test_evidence_and_views_are_the_nodes_own(
        self, server: Server, root: Client, admitter: Client, key: str
    ) -> None:
        name = held_node(server)
        mine = {"metadata": {"annotations": {key: "signed"}}}
        assert merge(kubelet(server, name), name, mine).status == 200
        refused(merge(root, name, {"metadata": {"annotations": {key: "older"}}}))
        refused(merge(root, name, {"metadata": {"annotations": {key: None}}}))
        refused(merge(kubelet(server, held_node(server)), name, mine), "forbidden")
        assert merge(admitter, name, {"metadata": {"annotations": {key: None}}}).status == 200

    @pytest.mark.parametrize("who", ATTACKERS)
    @pytest.mark.parametrize("value", ["another", None])
    def test_only_the_admitter_asks_for_a_test_with_other_nodes(
        self, server: Server, admitter: Client, who: str, value: str | None
    ) -> None:
        name = held_node(server)
        refused(merge(attacker(server, who, name), name, {"metadata": {"annotations": {FABRIC_TEST: "mine"}}}))
        assert merge(admitter, name, {"metadata": {"annotations": {FABRIC_TEST: "one"}}}).status == 200
        refused(merge(attacker(server, who, name), name, {"metadata": {"annotations": {FABRIC_TEST: value}}}))

    @pytest.mark.parametrize("who", ["root", "kubelet"])
    @pytest.mark.parametrize(
        "change",
        [
            {"status": "False"},
            {"reason": "OTHER"},
            {"message": "other"},
            {"lastTransitionTime": "2040-01-01T00:00:00Z"},
            {"lastHeartbeatTime": "2040-01-01T00:00:00Z"},
            {"$patch": "delete"},
        ],
    )
    def test_condition_stays(self, server: Server, admitter: Client, who: str, change: dict[str, str]) -> None:
        name = admitted_node(server, admitter)
        body = {"status": {"conditions": [{"type": "GPUVerified", **change}]}}
        client = attacker(server, who, name)
        refused(client.request("PATCH", f"{NODES}/{name}/status", body, STRATEGIC_PATCH), "only the admitter sets")

    @pytest.mark.parametrize("who", ATTACKERS)
    def test_condition_cannot_be_forged(self, server: Server, who: str) -> None:
        name = held_node(server)
        body = {"status": {"conditions": [VERIFIED]}}
        reply = attacker(server, who, name).request("PATCH", f"{NODES}/{name}/status", body, STRATEGIC_PATCH)
        refused(reply, "cannot patch" if who == "admin" else "only the admitter sets")

    def test_heartbeat_is_free(self, server: Server, admitter: Client) -> None:
        name = admitted_node(server, admitter)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        body = {"status": {"conditions": [ready], "nodeInfo": {"kubeletVersion": "v1.36.4"}}}
        reply = kubelet(server, name).request("PATCH", f"{NODES}/{name}/status", body, STRATEGIC_PATCH)
        assert reply.status == 200, reply.message


class TestBoot:
    @staticmethod
    def boot(client: Client, name: str, boot_id: str) -> Reply:
        body = {"status": {"nodeInfo": {"bootID": boot_id}}}
        return client.request("PATCH", f"{NODES}/{name}/status", body, STRATEGIC_PATCH)

    def test_is_free_while_the_taint_is_on(self, server: Server) -> None:
        name = held_node(server)
        assert self.boot(kubelet(server, name), name, "boot-2").status == 200

    @pytest.mark.parametrize("who", ATTACKERS)
    @pytest.mark.parametrize("boot_id", ["boot-2", ""])
    def test_needs_the_taint_again(self, server: Server, admitter: Client, who: str, boot_id: str) -> None:
        name = admitted_node(server, admitter)
        word = "cannot patch" if who == "admin" else "has booted again"
        refused(self.boot(attacker(server, who, name), name, boot_id), word)
        assert merge(admitter, name, {"spec": {"taints": [SCHEDULE]}}).status == 200
        assert self.boot(kubelet(server, name), name, "boot-2").status == 200

    def test_first_id_needs_it_too(self, server: Server, admitter: Client, root: Client) -> None:
        name = f"gpu-{next(numbers)}"
        assert root.request("POST", NODES, a_node(name, status={})).status == 201
        assert merge(admitter, name, {"spec": {"taints": []}}).status == 200
        refused(self.boot(kubelet(server, name), name, "boot-1"), "has booted again")

    def test_quarantine_is_no_licence(self, server: Server, admitter: Client) -> None:
        name = admitted_node(server, admitter)
        assert merge(admitter, name, {"spec": {"taints": [QUARANTINE]}}).status == 200
        refused(self.boot(kubelet(server, name), name, "boot-2"), "has booted again")


class TestSystemNode:
    def test_is_exempt_from_the_taint_only(self, server: Server, root: Client, admitter: Client) -> None:
        own = kubelet(server, "system-1")
        assert own.request("POST", NODES, a_node("system-1", spec={})).status == 201
        assert TestBoot.boot(own, "system-1", "boot-2").status == 200
        refused(merge(root, "system-1", {"metadata": {"labels": {READY: "true"}}}))
        refused(merge(root, "system-1", {"spec": {"taints": [QUARANTINE]}}))
        body = {"status": {"conditions": [VERIFIED]}}
        refused(root.request("PATCH", f"{NODES}/system-1/status", body, STRATEGIC_PATCH))

    @pytest.mark.parametrize("name", ["system-10", "system-1.lab", "xsystem-1"])
    def test_is_known_by_its_exact_name(self, root: Client, name: str) -> None:
        refused(root.request("POST", NODES, a_node(name, spec={})))


class TestPolicies:
    @pytest.mark.parametrize("kind", ["validatingadmissionpolicies", "validatingadmissionpolicybindings"])
    def test_are_out_of_reach(self, root: Client, admin: Client, kind: str) -> None:
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}"
        name = "muster-node-gate.static.k8s.io"
        assert root.request("GET", path).body["items"] == []
        assert root.request("GET", f"{path}/{name}").status == 404
        assert root.request("DELETE", f"{path}/{name}").status == 404
        assert admin.request("DELETE", f"{path}/{name}").status in (403, 404)

    def test_loaded_ones_are_those_on_disk(self, server: Server) -> None:
        assert server.loaded_hash() == policy_hash(server.policies)


def test_no_binaries_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_BINARIES", str(tmp_path))
    assert binaries() is None
    with pytest.raises(FileNotFoundError, match="MUSTER_BINARIES"), api_server(tmp_path):
        pass
