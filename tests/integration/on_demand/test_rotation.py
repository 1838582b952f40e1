"""All CAs and certificates of the running fleet are replaced while somebody writes: nothing is lost, no node leaves.

On demand, by `make lab-operations`: site.yml runs three times for it.

Only here: all CAs of a fleet on hosts are replaced, with kubelets that work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet import Done, Fleet, run, wait_until
from tests.integration.writer import Writer
from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY

pytestmark = pytest.mark.soak

CAS = ("etcd", "kubernetes", "kubelet", "front-proxy", "metrics", "alertmanager")
NODES = ("gpu-1", "gpu-2", "system-1")
STEPS = ("trust", "reissue", "drop")


def rotate(fleet: Fleet, step: str) -> Done:
    """The command of the runbook, with two playbooks."""
    tool = Path(sys.executable).parent / "ansible-playbook"
    both = [str(REPOSITORY / "playbooks/rotate_certificates.yml"), str(REPOSITORY / "site.yml")]
    done = run([str(tool), "-i", str(LAB_INVENTORY), *both, "-e", f"step={step}"], cwd=REPOSITORY)
    (fleet.lab.state / f"logs/certificates-{step}.log").write_text(done.out + done.err)
    return done


def certificates(fleet: Fleet) -> dict[str, bytes]:
    """Each certificate on the controller that counts, and none that is prepared."""
    pki = fleet.state / "pki"
    found = {str(path.relative_to(pki)): path.read_bytes() for path in pki.glob("*/*.crt")}
    return {name: content for name, content in found.items() if not name.endswith("/next.crt")}


@pytest.fixture(scope="module")
def replaced(fleet: Fleet) -> Iterator[dict[str, Any]]:
    """The three steps under a writer; what was there before, and the results."""
    before = certificates(fleet)
    kubelets = {node: _kubelet_serial(fleet, node) for node in NODES}
    uids = {node: fleet.get("node", node)["metadata"]["uid"] for node in NODES}
    results = {}
    with Writer(fleet) as writer:
        for step in STEPS:
            results[step] = rotate(fleet, step)
            if results[step].rc != 0:
                break
    print(f"replacing {len(CAS)} CAs: {writer}")
    yield {"before": before, "kubelets": kubelets, "uids": uids, "results": results, "writer": writer}
    writer.remove()


def _kubelet_serial(fleet: Fleet, node: str) -> str:
    return fleet.must(node, "openssl x509 -noout -serial -issuer -in /var/lib/kubelet/pki/kubelet-client-current.pem")


def test_a_step_that_would_cut_off_hosts_is_refused_and_names_them(fleet: Fleet) -> None:
    """The hosts were never told of a successor: it was made on the controller only."""
    made = fleet.playbook("playbooks/rotate_certificates.yml", log="certificates-made", step="trust")
    assert made.rc == 0, made.failures
    between = certificates(fleet)
    refused = fleet.playbook("playbooks/rotate_certificates.yml", log="certificates-refused", step="reissue")
    assert refused.rc != 0 and certificates(fleet) == between
    told = " ".join(refused.failures)
    assert "etcd-1: /etc/etcd/pki/ca.crt" in told and "Run step trust again" in told, told


def test_the_three_steps_reach_their_end_and_lose_no_write(fleet: Fleet, replaced: dict[str, Any]) -> None:
    for step in STEPS:
        assert replaced["results"][step].rc == 0, (step, replaced["results"][step].out[-3000:])
    assert replaced["writer"].seen.acknowledged
    assert replaced["writer"].lost() == []


def test_nothing_of_the_old_cas_is_left(fleet: Fleet, replaced: dict[str, Any]) -> None:
    after = certificates(fleet)
    assert after.keys() == replaced["before"].keys()
    assert [name for name in after if after[name] == replaced["before"][name]] == []
    for ca in CAS:
        assert after[f"{ca}/ca.crt"].count(b"BEGIN CERTIFICATE") == 1
    for host in fleet.addresses:
        found = fleet.must(host, "cat $(find /etc /var/lib/kubelet/pki -name '*.crt' -o -name '*-current.pem') || true")
        for ca in CAS:
            old = replaced["before"][f"{ca}/ca.crt"].decode().split("-----")[2]
            assert old not in found, f"{host} still trusts the old CA {ca}"


def test_the_nodes_stayed_and_their_kubelets_have_certificates_of_the_new_ca(
    fleet: Fleet, replaced: dict[str, Any]
) -> None:
    for node in NODES:

        def ready(node: str = node) -> bool:
            return fleet.condition(node, "Ready") == "True"

        assert fleet.get("node", node)["metadata"]["uid"] == replaced["uids"][node]
        wait_until(f"{node} to be Ready", ready, timeout_s=120)
        assert _kubelet_serial(fleet, node) != replaced["kubelets"][node]
        # Through the API server to the kubelet: both sides show certificates of new CAs.
        seen = fleet.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/healthz", identity="break-glass")
        assert seen.out == "ok", seen.err


def test_a_run_after_it_changes_nothing(fleet: Fleet, replaced: dict[str, Any]) -> None:
    again = fleet.playbook("playbooks/rotate_certificates.yml", log="certificates-again", step="drop")
    assert again.rc == 0 and again.changed == {}, again.failures
