"""Every rule of the gate is attacked on each API server, by everyone who might try, and holds."""

from __future__ import annotations

import json

import pytest

from .fleet import API_SERVERS, Done, Fleet, wait_until

TAINT = "muster.dev/preflight"
READY = "muster.node-restriction.kubernetes.io/ready"
ATTACKERS = ("admin", "break-glass", "kubelet")


def attack(fleet: Fleet, who: str, server: str, node: str, *arguments: str) -> Done:
    """Run kubectl as one of the attackers: the everyday admin, system:masters, or the node's own kubelet."""
    if who == "kubelet":
        return fleet.kubelet_kubectl(node, *arguments, server=server)
    return fleet.kubectl(*arguments, identity=who, server=server)


def refused(done: Done) -> None:
    """The API server itself said no, by the gate or by NodeRestriction: not a typing error, not a lost connection."""
    assert done.rc != 0, done.out
    assert "forbidden" in done.err.lower() and "Unable to connect" not in done.err, done.err


@pytest.fixture(scope="module")
def tainted(fleet: Fleet) -> str:
    """gpu-3 with its kubelet started by hand, past the local gate: registered, and never admitted."""
    fleet.must("gpu-3", "systemctl stop kubelet; systemctl reset-failed kubelet || true")
    command = fleet.must(
        "gpu-3", "systemctl show kubelet -p ExecStart --value | sed 's/.*argv\\[\\]=\\([^;]*\\);.*/\\1/'"
    )
    fleet.must("gpu-3", f"systemd-run --unit kubelet-by-hand --collect {command.strip()}")
    admit = fleet.playbook("playbooks/admit.yml", log="admit-by-hand")
    assert admit.rc == 0, admit.failures
    wait_until("gpu-3 to register", lambda: fleet.kubectl("get", "node", "gpu-3").rc == 0, timeout_s=60)
    again = fleet.playbook("playbooks/admit.yml", log="admit-by-hand-again")
    assert again.rc == 0, again.failures
    return "gpu-3"


def test_a_kubelet_started_by_hand_registers_tainted_and_stays_so(fleet: Fleet, tainted: str) -> None:
    assert {f"{TAINT}:NoSchedule", f"{TAINT}:NoExecute"} <= fleet.node_taints(tainted)
    node = fleet.get("node", tainted)
    assert READY not in node["metadata"]["labels"]
    conditions = {c["type"]: c for c in node["status"]["conditions"]}
    assert conditions["GPUVerified"]["status"] != "True"


@pytest.mark.parametrize("server", API_SERVERS)
@pytest.mark.parametrize("who", ATTACKERS)
class TestNode:
    """Attacks on the Node object."""

    def test_the_taint_cannot_be_removed(self, fleet: Fleet, tainted: str, who: str, server: str) -> None:
        refused(attack(fleet, who, server, tainted, "taint", "node", tainted, f"{TAINT}-"))

    def test_one_effect_of_the_taint_cannot_be_removed(self, fleet: Fleet, tainted: str, who: str, server: str) -> None:
        refused(attack(fleet, who, server, tainted, "taint", "node", tainted, f"{TAINT}:NoExecute-"))

    def test_the_ready_label_cannot_be_set(self, fleet: Fleet, tainted: str, who: str, server: str) -> None:
        refused(attack(fleet, who, server, tainted, "label", "node", tainted, f"{READY}=true"))

    def test_the_condition_cannot_be_forged(self, fleet: Fleet, tainted: str, who: str, server: str) -> None:
        condition = {"type": "GPUVerified", "status": "True", "reason": "PASS", "message": "trust me"}
        patch = json.dumps({"status": {"conditions": [condition]}})
        refused(attack(fleet, who, server, tainted, "patch", "node", tainted, "--subresource=status", "-p", patch))

    def test_an_admitted_node_cannot_take_another_boot_id(self, fleet: Fleet, who: str, server: str) -> None:
        info = fleet.get("node", "gpu-2")["status"]["nodeInfo"]
        patch = json.dumps({"status": {"nodeInfo": {**info, "bootID": "00000000-0000-4000-8000-000000000000"}}})
        refused(attack(fleet, who, server, "gpu-2", "patch", "node", "gpu-2", "--subresource=status", "-p", patch))


@pytest.mark.parametrize("server", API_SERVERS)
@pytest.mark.parametrize("who", ("admin", "break-glass"))
def test_a_node_cannot_be_created_without_the_taint(fleet: Fleet, who: str, server: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-9"}}
    refused(fleet.kubectl("create", "-f", "-", identity=who, server=server, stdin=json.dumps(node)))


def test_a_deleted_node_cannot_come_back_without_the_taint(fleet: Fleet, tainted: str) -> None:
    """The kubelet's own credential may create its Node: with the taint alone."""
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": tainted}}
    credential = fleet.kubelet_kubectl(tainted, "get", "node", tainted, server="api-1")
    assert credential.rc == 0, credential.err
    fleet.must(tainted, "systemctl stop kubelet-by-hand")
    assert fleet.kubectl("delete", "node", tainted, "--wait").rc == 0
    for server in API_SERVERS:
        refused(fleet.kubelet_kubectl(tainted, "create", "-f", "-", server=server, stdin=json.dumps(bare)))


@pytest.mark.parametrize("server", API_SERVERS)
@pytest.mark.parametrize("who", ("admin", "break-glass"))
def test_the_gate_cannot_be_seen_or_deleted_through_the_api(fleet: Fleet, who: str, server: str) -> None:
    done = fleet.kubectl(
        "delete", "validatingadmissionpolicy", "muster-node-gate.static.k8s.io", identity=who, server=server
    )
    assert done.rc != 0 and "not found" in done.err.lower(), done.err


@pytest.mark.parametrize("server", API_SERVERS)
def test_the_everyday_admin_cannot_become_the_admitter(fleet: Fleet, server: str) -> None:
    refused(fleet.kubectl("get", "nodes", "--as", "muster:admitter", server=server))
    role = ("create", "clusterrolebinding", "mine", "--clusterrole=cluster-admin", "--group=muster:admins")
    refused(fleet.kubectl(*role, server=server))


def test_anonymous_requests_reach_health_and_nothing_else(fleet: Fleet) -> None:
    url = f"https://{fleet.addresses['api-1']}:6443"
    curl = "curl -sk -o /dev/null -w '%{http_code}' "
    assert fleet.must("lb-1", f"{curl} {url}/readyz") == "200"
    assert fleet.must("lb-1", f"{curl} {url}/api/v1/nodes") == "401"
