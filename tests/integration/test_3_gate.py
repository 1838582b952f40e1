"""The gate that site.yml has set up is attacked on each API server, by everyone who might try, and holds.

Each rule, by each way to write and each identity, is attacked on loopback: test_gate_policies.py, test_rights.py.
Only here: identities and API servers are those of the fleet, and so is the kubelet that goes past its host's gate.
"""

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
def test_the_taint_cannot_be_removed(fleet: Fleet, tainted: str, who: str, server: str) -> None:
    refused(attack(fleet, who, server, tainted, "taint", "node", tainted, f"{TAINT}-"))


@pytest.mark.parametrize("server", API_SERVERS)
def test_a_node_cannot_be_created_without_the_taint(fleet: Fleet, server: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-9"}}
    refused(fleet.kubectl("create", "-f", "-", identity="break-glass", server=server, stdin=json.dumps(node)))


def test_a_deleted_node_cannot_come_back_without_the_taint(fleet: Fleet, tainted: str) -> None:
    """The kubelet's own credential may create its Node: with the taint alone."""
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": tainted}}
    credential = fleet.kubelet_kubectl(tainted, "get", "node", tainted, server="api-1")
    assert credential.rc == 0, credential.err
    fleet.must(tainted, "systemctl stop kubelet-by-hand")
    assert fleet.kubectl("delete", "node", tainted, "--wait").rc == 0
    for server in API_SERVERS:
        refused(fleet.kubelet_kubectl(tainted, "create", "-f", "-", server=server, stdin=json.dumps(bare)))


def test_the_everyday_admin_cannot_become_the_admitter(fleet: Fleet) -> None:
    refused(fleet.kubectl("get", "nodes", "--as", "muster:admitter", server="api-1"))
    role = ("create", "clusterrolebinding", "mine", "--clusterrole=cluster-admin", "--group=muster:admins")
    refused(fleet.kubectl(*role, server="api-1"))


def test_anonymous_requests_reach_health_and_nothing_else(fleet: Fleet) -> None:
    url = f"https://{fleet.addresses['api-1']}:6443"
    curl = "curl -sk -o /dev/null -w '%{http_code}' "
    assert fleet.must("lb-1", f"{curl} {url}/readyz") == "200"
    assert fleet.must("lb-1", f"{curl} {url}/api/v1/nodes") == "401"
