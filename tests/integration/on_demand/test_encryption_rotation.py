"""The encryption key of the running fleet is replaced while somebody writes: no server restarts, no node is lost.

On demand, by `make lab-operations`: each of its three rounds waits until the servers look at their file, once a minute.

Only here: the whole playbook on two API servers with controller managers and kubelets that work.
"""

from __future__ import annotations

import pytest

from tests.integration.fleet import API_SERVERS, Fleet
from tests.integration.writer import Writer

pytestmark = pytest.mark.soak

NODES = ("gpu-1", "gpu-2", "system-1")


def ready_since(fleet: Fleet, node: str) -> str:
    """Since when kubelet's word has been what it is; another time for one that was Unknown in between."""
    (found,) = [one for one in fleet.get("node", node)["status"]["conditions"] if one["type"] == "Ready"]
    assert found["status"] == "True", found
    return str(found["lastTransitionTime"])


def processes(fleet: Fleet) -> dict[str, str]:
    shown = "systemctl show --property=InvocationID,MainPID kube-apiserver"
    return {host: fleet.must(host, shown) for host in API_SERVERS}


def test_a_new_key_restarts_no_server_and_loses_no_write_and_no_node(fleet: Fleet) -> None:
    before, nodes = processes(fleet), {node: ready_since(fleet, node) for node in NODES}
    old = (fleet.state / "pki/encryption-key").read_text().split()[0]
    with Writer(fleet) as writer:
        done = fleet.playbook(
            "playbooks/rotate_encryption_key.yml", log="encryption-key", confirm="rotate", however_young="true"
        )
    assert done.rc == 0, done.failures
    assert writer.seen.acknowledged and writer.lost() == []
    writer.remove()
    assert processes(fleet) == before
    assert {node: ready_since(fleet, node) for node in NODES} == nodes
    (new, _) = (fleet.state / "pki/encryption-key").read_text().split()
    assert new != old
    for host in API_SERVERS:
        keys = fleet.must(host, "grep -- '- name: ' /etc/kubernetes/encryption.yaml").split()
        assert keys[-1] == new and old not in keys


def test_a_second_run_leaves_a_key_that_is_young(fleet: Fleet) -> None:
    before = (fleet.state / "pki/encryption-key").read_text()
    done = fleet.playbook("playbooks/rotate_encryption_key.yml", log="encryption-key-again", confirm="rotate")
    assert done.rc == 0 and done.changed == {}, done.failures
    assert (fleet.state / "pki/encryption-key").read_text() == before
