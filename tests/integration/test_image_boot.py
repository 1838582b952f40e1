"""The first boot of a machine from the fleet's image: systemd, real; the API server, real; kubelet a stand-in.

Only here: that the units of the image start what they should, in order, and that what waits begins by itself.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.api.enrolment import claim_of, request_name
from gpu_burnin.fleet.image.enrolments import approve, read
from tests.integration.enrolling import CSRS, NAMES, Controller, decided, enrolments_known
from tests.integration.gate import numbers
from tests.integration.image_host import ImageHost, image_host, missing
from tests.integration.kube import Client, Server, until

# A busy machine takes longer to read its units than systemctl waits.
FAILS_ONCE = "[Service]\nExecStartPre=/bin/sh -c 'test -e /run/tried || { touch /run/tried; exit 1; }'\n"
KUBELET = ("journalctl", "-u", "kubelet", "-o", "cat", "--no-pager")


@pytest.fixture
def machine(ledger: Server, tmp_path: Path) -> Iterator[ImageHost]:
    if why := missing():
        pytest.skip(why)
    with enrolments_known(ledger), image_host(ledger, tmp_path / "machine") as host:
        yield host


def test_it_becomes_its_node_once_it_is_let_in(
    ledger: Server, root: Client, machine: ImageHost, tmp_path: Path
) -> None:
    controller = Controller(ledger, tmp_path / "state")
    node = controller.node(f"gpu-{next(numbers)}", address="198.18.8.67")
    handed = controller.token(node).handed
    (machine.root / "etc/muster/enrol").write_text(f"{handed.text}\n")
    fails = machine.root / "etc/systemd/system/muster-enrolled.service.d/fails.conf"
    fails.parent.mkdir()
    fails.write_text(FAILS_ONCE)
    assert (
        not list((machine.root / "etc/ssh").glob("ssh_host_*")) and (machine.root / "etc/machine-id").read_text() == ""
    )
    machine.boot()

    until(
        "its claim", lambda: bool(read(controller.api, NAMES, controller.state.known_hosts).enrolments[node].spec.claim)
    )
    until("the end of the boot", lambda: machine.active("multi-user.target") == "active")
    assert (machine.active("ssh"), machine.active("muster-enrol"), machine.active("kubelet")) == (
        "active",
        "active",
        "inactive",
    )
    known = read(controller.api, NAMES, controller.state.known_hosts)
    claim, own = claim_of(known.enrolments[node]), machine.run("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub")
    assert claim.fingerprint in own and claim.machine_id == machine.run("cat", "/etc/machine-id") != "1" * 32
    said = machine.run("journalctl", "-u", "muster-enrol", "-o", "cat", "--no-pager")
    assert claim.fingerprint in said and handed.secret not in said

    approve(controller.api, NAMES, node, known, controller.state, decided(), lambda *_: "")
    path = f"{CSRS}/{request_name(handed.token)}"
    until("its request", lambda: root.request("GET", path).status == 200)
    csr = root.request("GET", path).body
    csr["status"] = {"conditions": [{"type": "Approved", "status": "True", "reason": "x", "message": "x"}]}
    csr = root.request("PUT", f"{path}/approval", csr).body
    certificate = ledger.authority.issue("anybody")[0].read_bytes()
    csr["status"]["certificate"] = base64.b64encode(certificate).decode()
    assert root.request("PUT", f"{path}/status", csr).status == 200

    until("kubelet", lambda: machine.active("kubelet") == "active")
    assert machine.run("ls", "/run/tried") == "/run/tried"
    assert f"started with --hostname-override={node} --node-ip=198.18.8.67" in machine.run(*KUBELET)
    assert machine.run("hostname") == machine.run("cat", "/etc/hostname") == node
    assert machine.run("ls", "/etc/muster") == "image.json"
    assert "PRIVATE KEY" in machine.run("cat", "/etc/kubernetes/pki/kube-proxy.key")

    machine.boot()
    until("kubelet of the next boot", lambda: machine.active("kubelet") == "active")
    assert machine.active("muster-enrol") == "inactive"
    assert machine.run("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub") == own
