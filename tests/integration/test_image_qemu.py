"""Machines that boot from the fleet's image in QEMU: kernel, cloud-init, firmware of PXE, real; kubelet a stand-in.

Only here: a machine comes from its power button to its enrolment, by each way of handing the token over; power cuts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.service.cache import Records
from gpu_burnin.admission.service.certificates import Approver, Requests
from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.api.enrolment import Claim, Enrolment, claim_of, parse_enrolment, parse_handed, request_name
from gpu_burnin.api.names import ADMITTER_USER, PROVISIONER_USER
from gpu_burnin.cli.muster.main import cli
from tests.integration.enrolling import ADMISSIONS, CSRS, ENROLMENTS, NAMES, Bearer, Controller, enrolments_known
from tests.integration.enrolling import Machine as Thief
from tests.integration.kube import NO_BINARIES, Server, api_server, apply_ledger, binaries, until
from tests.integration.qemu_host import BOOT_S, HOST, Image, Machine, image, missing
from tests.support.command_line import called

pytestmark = pytest.mark.soak
_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An API server that machines in QEMU reach."""
    if why := missing() or (NO_BINARIES if binaries() is None else ""):
        pytest.skip(why)
    with api_server(tmp_path_factory.mktemp("api"), names=[HOST]) as server:
        apply_ledger(server)
        with enrolments_known(server):
            yield server


@pytest.fixture(scope="module")
def disk(plane: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with image(plane, tmp_path_factory.mktemp("image") / "made") as made:
        yield made


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    """What the machines of the image have said of themselves."""
    return []


class Fleet:
    """The controller as people have it: its commands and its state directory."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.state, self.tokens = directory / "state", directory / "tokens"
        (self.state / "kubeconfig").mkdir(parents=True)
        kubeconfig = server.kubeconfig(PROVISIONER_USER)
        (self.state / "kubeconfig/provisioner.kubeconfig").write_bytes(kubeconfig.read_bytes())

    def muster(self, *words: str | Path, rc: int = 0) -> str:
        """What a command of `muster image` prints."""
        done = called(cli, "image", *words, "--state", self.state)
        assert done.returncode == rc, done.stderr
        return done.stdout + done.stderr

    def token(self, node: str, address: str) -> Path:
        """The files of a new token for a new node."""
        Controller(self.server, self.directory).node(node, address)
        self.muster("token", node, "--output", self.tokens)
        return self.tokens / node

    def enrolment(self, node: str) -> Enrolment:
        """As the cluster has it."""
        return parse_enrolment(self.server.client(PROVISIONER_USER).request("GET", f"{ENROLMENTS}/{node}").body)

    def sign(self, node: str) -> None:
        """What admitter and controller-manager do with the request of the node's machine."""
        name = request_name(self.enrolment(node).spec.token)
        admitter, root = self.server.client(ADMITTER_USER), self.server.client("root", ["system:masters"])
        until("its request", lambda: admitter.request("GET", f"{CSRS}/{name}").status == 200, BOOT_S)
        requests, records = Requests(), Records(NAMES)
        requests.put(admitter.request("GET", f"{CSRS}/{name}").body)
        records.put(admitter.request("GET", f"{ADMISSIONS}/{node}").body)
        api = KubeApi(self.server.kubeconfig(ADMITTER_USER))
        Approver(api, NAMES, requests, records, {}, Journal(), Metrics()).reconcile(name)
        csr = root.request("GET", f"{CSRS}/{name}").body
        assert csr["status"]["conditions"][0]["type"] == "Approved"
        made = self.server.authority.sign(base64.b64decode(csr["spec"]["request"]))
        csr["status"]["certificate"] = base64.b64encode(made).decode()
        assert root.request("PUT", f"{CSRS}/{name}/status", csr).status == 200

    def let_in(self, node: str, machine: Machine) -> None:
        """As a person does who stands before the console."""
        mark = waits(machine, node)
        assert f"{node}: the machine enrolled with the host key" in self.muster("approve", f"{node}=SHA256:other", rc=1)
        self.muster("approve", f"{node}={mark}", "--reason", "read on its console")
        self.sign(node)
        until("its enrolment", lambda: machine.on_console(f"{node}: enrolled: "), BOOT_S)


@pytest.fixture
def fleet(plane: Server, tmp_path: Path) -> Fleet:
    return Fleet(plane, tmp_path)


@pytest.fixture
def machine(disk: Image, tmp_path: Path) -> Iterator[Machine]:
    """A machine of the image, switched off. pytest keeps the folders of three runs, but not its disk."""
    made = Machine(disk, tmp_path / "machine")
    yield made
    made.disk.unlink()


def waits(machine: Machine, node: str) -> str:
    """The fingerprint on the console of a machine that waits for its approval."""
    until("its claim", lambda: machine.on_console(f"{node}: waits for its approval"), BOOT_S)
    print(f"{node}: waits after {machine.spent}")
    marks = re.findall(rf"{node}: this machine's host key is (SHA256:[^\s;]+)", machine.console)
    return str(marks[-1])


def is_node(machine: Machine, node: str, address: str) -> None:
    """It has its name, address and keys, tests itself, and holds kubelet back for the reason that is right."""
    words = (
        "cat /run/gpu-burnin/progress.log; journalctl -u gpu-burnin-boot -u gpu-burnin-run -u kubelet -o cat --no-pager"
    )
    until("the burn-in", lambda: machine.shows(words, "no GPU can be tested (--backend auto): libnvidia-ml"), BOOT_S)
    until("the gate", lambda: machine.shows(words, "closed: no burn-in has been completed here"), BOOT_S)
    print(f"{node}: is tested after {machine.spent}")
    assert machine.run("hostname; cat /etc/hostname").split() == [node, node]
    assert f"--hostname-override={node} --node-ip={address}" in machine.run("cat /etc/systemd/system/kubelet.service")
    assert machine.run("ls /etc/muster") == "image.json"
    assert machine.run("systemctl is-active ssh muster-enrol") == "active\ninactive"
    # Others may take longer than systemd waits for them where the machine is emulated.
    assert machine.run("systemctl list-units --failed --plain --no-legend 'muster*' ssh.service") == ""


def is_like_no_other(claims: list[Claim], claim: Claim) -> None:
    """Of the machines of this image that were met before."""
    claims.append(claim)
    assert len({one.host_key for one in claims}) == len({one.machine_id for one in claims}) == len(claims)


def test_by_cloud_init_through_a_power_cut_and_a_reboot(machine: Machine, fleet: Fleet, claims: list[Claim]) -> None:
    files = fleet.token("gpu-1", "198.18.8.71")
    with machine.on(seed=files):
        mark = waits(machine, "gpu-1")
    with machine.on(seed=files):
        fleet.let_in("gpu-1", machine)
        is_node(machine, "gpu-1", "198.18.8.71")
        enrolled, claim = fleet.enrolment("gpu-1"), claim_of(fleet.enrolment("gpu-1"))
        assert mark == claim.fingerprint and mark in machine.run(f"ssh-keygen -lf {_KEY}")
        assert claim.machine_id == machine.run("cat /etc/machine-id")
        is_like_no_other(claims, claim)
        secret = (files / "kernel-argument").read_text().strip().rpartition(".")[2]
        # The agent logs each command that it runs: this one is not what it looks for.
        seen = machine.run(f"journalctl --no-pager | grep -c '[{secret[0]}]{secret[1:]}'")
        assert secret not in machine.console and seen == "0"
    with machine.on(seed=files):
        until("the next boot", machine.is_up, BOOT_S)
        assert machine.run("systemctl is-active muster-enrol ssh") == "inactive\nactive"
        assert mark in machine.run(f"ssh-keygen -lf {_KEY}") and machine.run("hostname") == "gpu-1"
        assert machine.run("ls /var/log/journal") == claim.machine_id
        assert fleet.enrolment("gpu-1") == enrolled


def test_by_pxe_once_a_thief_has_used_its_token(
    machine: Machine, fleet: Fleet, claims: list[Claim], tmp_path: Path
) -> None:
    files = fleet.token("gpu-2", "198.18.8.72")
    argument = (files / "kernel-argument").read_text().strip()
    thief, handed = Thief.new(tmp_path / "thief"), parse_handed(argument.partition("=")[2])
    assert thief.enrols(Bearer(fleet.server.client(None), handed)).status == 200
    first = claim_of(fleet.enrolment("gpu-2")).fingerprint
    with machine.on(argument=argument):
        used = f"gpu-2: the token of this machine was used before it came, by one with the host key {first}"
        until("its being refused", lambda: machine.on_console(used), BOOT_S)
    fleet.muster("refuse", "gpu-2", "--reason", "not the key on its console")
    fleet.muster("token", "gpu-2", "--again", "--output", fleet.tokens)
    with machine.on(argument=(files / "kernel-argument").read_text().strip()):
        fleet.let_in("gpu-2", machine)
        is_node(machine, "gpu-2", "198.18.8.72")
        enrolled, claim = fleet.enrolment("gpu-2"), claim_of(fleet.enrolment("gpu-2"))
        assert claim.fingerprint in machine.run(f"ssh-keygen -lf {_KEY}")
        is_like_no_other(claims, claim)
        # By the firmware again, which hands the used token over.
        machine.reboot()
        until("the reboot", lambda: machine.on_console("Linux version", times=2), BOOT_S)
        until("its end", machine.is_up, BOOT_S)
        assert machine.run("systemctl is-active muster-enrol; hostname") == "inactive\ngpu-2"
        assert fleet.enrolment("gpu-2") == enrolled
