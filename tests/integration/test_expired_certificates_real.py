"""A control plane all of whose certificates have ended comes back by rotate_certificates.yml, with what it held.

Three real members of etcd, with TLS among each other, and an API server on loopback. The playbook is the real one, on a
fleet whose hosts are this machine; what site.yml does after it, copying and restarting, is done here, by the role's
module where it decides.
Only here: etcd and an API server refuse certificates that have ended, and the real playbook mends them.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.modules import etcd_member
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from .etcd_cluster import tool
from .kube import NO_BINARIES, Client, Part, binaries, ended, free_ports, until
from .kube_files import REPOSITORY

MEMBERS = ("etcd-1", "etcd-2", "etcd-3")
NOTES = "/api/v1/namespaces/default/configmaps"
TIMEOUT_S = 120.0


@dataclass
class Fleet:
    """The controller's state, and each host's copy of its files."""

    directory: Path
    clients: Mapping[str, str]
    peers: Mapping[str, str]
    port: int
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def pki(self) -> Path:
        return self.directory / "state/pki"

    @property
    def leaves(self) -> list[Path]:
        """Every certificate but the CAs'."""
        return sorted(path for path in self.pki.glob("*/*.crt") if path.name != "ca.crt")

    @property
    def health(self) -> etcd_api.Credentials:
        """The controller's of now, as a member's host gets them first."""
        folder = self.pki / "etcd"
        return etcd_api.Credentials(*(str(folder / name) for name in ("ca.crt", "health.crt", "health.key")))

    def playbook(self, path: Path, *options: str) -> None:
        """Run the real ansible-playbook."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yml", str(path), *options],
            cwd=self.directory,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(self.directory / "ansible.cfg"),
                "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "collections"),
                "ANSIBLE_HOME": str(self.directory / "home"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def bring(self, member: str) -> None:
        """A member's files, as the role etcd names them."""
        host = self.directory / member
        host.mkdir(exist_ok=True)
        for name, source in (("ca", "ca"), ("member", f"member-{member}"), ("health", "health")):
            for ending in ("crt", "key") if name != "ca" else ("crt",):
                shutil.copy(self.pki / "etcd" / f"{source}.{ending}", host / f"{name}.{ending}")

    def etcd(self, member: str) -> Part:
        """A member, as its role configures it."""
        host = self.directory / member
        words = [
            str(tool("etcd")), "--name", member, "--data-dir", str(host / "data"),
            "--initial-cluster", ",".join(f"{name}={url}" for name, url in self.peers.items()),
            "--listen-client-urls", self.clients[member], "--advertise-client-urls", self.clients[member],
            "--listen-peer-urls", self.peers[member], "--initial-advertise-peer-urls", self.peers[member],
            "--unsafe-no-fsync",
        ]  # fmt: skip
        for prefix in ("", "peer-"):
            words += [f"--{prefix}client-cert-auth", f"--{prefix}trusted-ca-file", str(host / "ca.crt")]
            words += [f"--{prefix}cert-file", str(host / "member.crt"), f"--{prefix}key-file", str(host / "member.key")]
        return Part(words, self.directory / f"{member}.log")

    def apiserver(self) -> Part:
        """The API server, straight from the controller's files."""
        kubernetes = self.pki / "kubernetes"
        return Part(
            [
                str(tool("kube-apiserver")), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                f"--secure-port={self.port}", f"--etcd-servers={','.join(self.clients.values())}",
                f"--etcd-cafile={self.pki}/etcd/ca.crt", f"--etcd-certfile={self.pki}/etcd/apiserver-client.crt",
                f"--etcd-keyfile={self.pki}/etcd/apiserver-client.key",
                f"--tls-cert-file={kubernetes}/apiserver-api-1.crt",
                f"--tls-private-key-file={kubernetes}/apiserver-api-1.key",
                f"--client-ca-file={kubernetes}/ca.crt", "--service-cluster-ip-range=198.19.128.0/20",
                f"--service-account-key-file={kubernetes}/service-account.pub",
                f"--service-account-signing-key-file={kubernetes}/service-account.key",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                "--authorization-mode=Node,RBAC", "--endpoint-reconciler-type=none",
            ],
            self.directory / "apiserver.log",
        )  # fmt: skip

    def admin(self) -> Client:
        """The break-glass identity."""
        folder = self.pki / "kubernetes"
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(folder / "break-glass.crt", folder / "break-glass.key")
        return Client(self.port, context)

    def ready(self) -> bool:
        """Whether the API server is, to the admin."""
        try:
            return self.admin().request("GET", "/readyz").status == 200
        except OSError:
            return False

    def start(self, name: str, part: Part) -> None:
        """Start a process in the place of the one before."""
        if name in self.parts:
            self.parts[name].kill()
        self.parts[name] = part
        part.start()

    def health_of(self, member: str) -> etcd_api.Health:
        """What a member says."""
        return etcd_api.probe(self.clients[member], self.health, MEMBERS)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Built, running, and with a note in it."""
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    *ports, port = free_ports(7)
    urls = [f"https://127.0.0.1:{number}" for number in ports]
    fleet = Fleet(tmp_path, dict(zip(MEMBERS, urls[:3], strict=True)), dict(zip(MEMBERS, urls[3:], strict=True)), port)
    variables = {
        "fleet_name": "lab", "fleet_state_dir": str(tmp_path / "state"), "fleet_planned_nodes": 10,
        "fleet_api_address": "127.0.0.1", "fleet_service_cidr": "198.19.128.0/20", "ansible_host": "127.0.0.1",
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable,
    }  # fmt: skip
    groups = {"etcd": {"hosts": dict.fromkeys(MEMBERS)}, "kube_apiserver": {"hosts": {"api-1": None}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    roles = ["muster.fleet.fleet", "muster.fleet.pki"]
    play: dict[str, Any] = {"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": roles}
    (tmp_path / "pki.yml").write_text(yaml.safe_dump([play]))
    fleet.playbook(tmp_path / "pki.yml")
    for member in MEMBERS:
        fleet.bring(member)
        fleet.start(member, fleet.etcd(member))
    try:
        until("health", lambda: all(fleet.health_of(member).healthy for member in MEMBERS), TIMEOUT_S)
        fleet.start("apiserver", fleet.apiserver())
        until("the API server", fleet.ready, TIMEOUT_S)
        note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}, "data": {"held": "since before"}}
        assert fleet.admin().request("POST", NOTES, note).status == 201
        yield fleet
    finally:
        with ended(*fleet.parts.values()):
            pass


def expire(leaf: Path) -> None:
    """The same certificate, of the same key and CA, which has ended an hour ago."""
    old = x509.load_pem_x509_certificate(leaf.read_bytes())
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=365)).not_valid_after(now - dt.timedelta(hours=1))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    key = load_pem_private_key((leaf.parent / "ca.key").read_bytes(), None)
    leaf.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))  # type: ignore[arg-type]


def left_of(leaf: Path) -> dt.timedelta:
    """How long a certificate is valid."""
    return x509.load_pem_x509_certificate(leaf.read_bytes()).not_valid_after_utc - dt.datetime.now(dt.UTC)


class Systemd:
    """As much of systemd as the module asks: a unit that is as old as its process."""

    def __init__(self, fleet: Fleet, member: str) -> None:
        self.fleet, self.member, self.restarted = fleet, member, False

    def show(self, _: str) -> Any:
        return SimpleNamespace(started_at=1.0)

    def stale_because(self, *_: object) -> list[str]:
        return [] if self.restarted else ["/etc/etcd/pki/member.crt"]

    def systemctl(self, words: list[str]) -> None:
        assert words[0] == "restart"
        self.fleet.start(self.member, self.fleet.etcd(self.member))
        self.restarted = True


def members(fleet: Fleet) -> list[Part]:
    """The processes of etcd."""
    return [fleet.parts[member] for member in MEMBERS]


def ended_by_itself(part: Part) -> bool:
    return part.running is not None and part.running.poll() is not None


def test_all_certificates_have_ended(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    cas = {path: path.read_bytes() for path in fleet.pki.glob("*/ca.*")}
    for leaf in fleet.leaves:
        expire(leaf)
    assert len(fleet.leaves) > 15
    # As hosts that were off meanwhile, or were rebooted.
    fleet.parts["apiserver"].kill()
    for member in MEMBERS:
        fleet.parts[member].kill()
        fleet.bring(member)
        fleet.parts[member].log.unlink()
    for member in MEMBERS:
        fleet.start(member, fleet.etcd(member))
    fleet.start("apiserver", fleet.apiserver())
    until("refusals", lambda: all("has expired" in part.log.read_text() for part in members(fleet)), TIMEOUT_S)
    # One, because each question waits for an answer that does not come.
    assert not fleet.health_of(MEMBERS[0]).healthy
    until("the API server to give up", lambda: ended_by_itself(fleet.parts["apiserver"]), TIMEOUT_S)
    # Off while the playbook runs: they ask each other without a pause.
    for member in MEMBERS:
        fleet.parts[member].kill()

    fleet.playbook(REPOSITORY / "playbooks/rotate_certificates.yml", "-e", "step=leaves")
    assert min(left_of(leaf) for leaf in fleet.leaves) > dt.timedelta(days=80)
    assert {path: path.read_bytes() for path in cas} == cas

    for member in MEMBERS:
        fleet.parts[member].start()
        fleet.bring(member)
    restarted = []
    for member in MEMBERS:
        systemd = Systemd(fleet, member)
        monkeypatch.setattr(etcd_member, "systemd_unit", systemd)
        given = {
            "name": member, "endpoints": dict(fleet.clients), "unit": "etcd.service", "restart_after": [],
            "leader": True,
            "timeout_s": TIMEOUT_S, "ca": fleet.health.ca, "cert": fleet.health.cert, "key": fleet.health.key,
        }  # fmt: skip
        module: Any = SimpleNamespace(params=given, check_mode=False)
        restarted.append(etcd_member.bring_up_to_date(module)["changed"])
    assert restarted == [True, True, True]
    until("health", lambda: all(fleet.health_of(member).healthy for member in MEMBERS), TIMEOUT_S)
    fleet.start("apiserver", fleet.apiserver())
    until("the API server", fleet.ready, TIMEOUT_S)
    assert fleet.admin().request("GET", f"{NOTES}/note").body["data"] == {"held": "since before"}
