"""Two real API servers on one etcd get another encryption key under a writer: nothing is lost, nothing stays behind.

Only here: API servers read and write all along a rotation that ends at each point.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.etcd import restore as etcd_restore
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.pki import encryption_keys
from ansible_collections.muster.fleet.plugins.modules import encryption_key, encryption_scan

from gpu_burnin.admission.client import ApiError, KubeApi, Object
from gpu_burnin.admission.rewrite import count, rewrite
from gpu_burnin.system.files import write_atomic

from .etcd_cluster import NO_TOOLS, tool, tools
from .kube import NO_BINARIES, Client, Server, api_server, beside, binaries, ended, until
from .kube_files import REPOSITORY, defaults, render

SECRETS = "/api/v1/namespaces/default/secrets"
COUNT = 200
# Between two updates: dozens of them fall into each restart, and the servers have time for what is tested.
PAUSE_S = 0.1


@dataclass
class Host:
    """One API server with its file, and which content its process has read."""

    name: str
    server: Server
    file: Path
    loaded: str

    def write(self, content: str) -> None:
        # The server looks at it when it likes.
        write_atomic(self.file, content.encode())

    def restart(self) -> None:
        if self.loaded != (content := self.file.read_text()):
            self.server.apiserver.kill()
            self.server.apiserver.start()
            self.server.wait_ready()
            self.loaded = content


@dataclass
class Module:
    """As much of AnsibleModule as the step needs."""

    params: Mapping[str, Any]
    check_mode: bool = False


class Killed(Exception):
    """The run ended here."""


class Cut(KubeApi):
    """Ends after so many writes."""

    left = COUNT // 2

    def replace(self, path: str, document: Object, what: str = "") -> Object:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return super().replace(path, document, what)


@dataclass
class Fleet:
    """What playbooks/rotate_encryption_key.yml has, without Ansible and systemd."""

    directory: Path
    hosts: list[Host]
    etcd: etcd_api.Api
    admin: Path

    @property
    def key_file(self) -> Path:
        return self.directory / "encryption-key"

    def stored(self) -> dict[str, int]:
        found: dict[str, int] = encryption_scan.stored(self.etcd)
        return found

    def step(self, name: str) -> None:
        given = {
            "path": str(self.key_file),
            "step": name,
            "hosts": [host.name for host in self.hosts],
            "servers": {host.name: encryption_keys.of_server(host.file.read_text()) for host in self.hosts},
            "stored": self.stored(),
            "resources": ["secrets"],
            "however_young": False,
        }
        encryption_key.rotate(Module(given))

    def content(self) -> str:
        variables = {**defaults("kube_apiserver"), "kube_apiserver_pki_dir": str(self.directory)}
        return render("kube_apiserver", "encryption.yaml.j2", variables)

    def keys(self) -> list[str]:
        return [key.name for key in encryption_keys.parse(self.key_file.read_text(), "")]

    def rewrite(self, api: type[KubeApi] = KubeApi) -> None:
        if len(self.keys()) > 1:
            rewrite(api(self.admin), "secrets")

    def actions(self) -> list[Callable[[], None]]:
        """The plays, cut where a run may end."""
        bring: list[Callable[[], None]] = []
        for host in self.hosts:
            bring += [lambda host=host: host.write(self.content()), host.restart]  # type: ignore[misc]
        add, lead, drop = (lambda name=name: self.step(name) for name in ("add", "lead", "drop"))
        return [add, *bring, lead, *bring, self.rewrite, drop, *bring]

    def run(self, actions: int | None = None) -> None:
        """All that is left, or the first actions of it."""
        for action in self.actions()[:actions]:
            action()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    directory = tmp_path_factory.mktemp("fleet")
    with api_server(directory, "--encryption-provider-config-automatic-reload=true") as first:
        second = beside(first)
        with ended(second.apiserver):
            second.apiserver.start()
            second.wait_ready()
            files = (directory / "encryption.yaml", directory / "encryption-2.yaml")
            hosts = [
                Host(f"api-{number}", server, file, file.read_text())
                for number, (server, file) in enumerate(zip((first, second), files, strict=True), 1)
            ]
            certificate, key = first.authority.issue("health")
            credentials = etcd_api.Credentials(str(first.authority.ca), str(certificate), str(key))
            url = next(word for word in first.apiserver.command if word.startswith("--etcd-servers="))
            api = etcd_api.connect(url.partition("=")[2], credentials, 30.0)
            yield Fleet(directory, hosts, api, second.kubeconfig("admin", ["muster:admins"]))


@dataclass
class Snapshot:
    """One of etcd, of a time when all was under the fleet's first key."""

    database: Path
    name: str = "kept"
    value: int = 7


@pytest.fixture(scope="module")
def snapshot(fleet: Fleet) -> Snapshot:
    """Taken before the key is replaced for the first time; its secret is gone from etcd afterwards."""
    if not tools():
        pytest.skip(NO_TOOLS)
    made, client = Snapshot(fleet.directory / "snapshot.db"), fleet.hosts[0].server.client("root", ["system:masters"])
    assert fleet.keys() == ["muster"]
    assert client.request("POST", SECRETS, secret(made.name, made.value)).status == 201
    words = [f"--endpoints={word(fleet, '--listen-client-urls')}", "snapshot", "save", str(made.database)]
    subprocess.run([tool("etcdctl"), *words], check=True, capture_output=True)
    assert client.request("DELETE", f"{SECRETS}/{made.name}").status == 200
    return made


def word(fleet: Fleet, flag: str) -> str:
    """What etcd was given for a flag."""
    found = next(one for one in fleet.hosts[0].server.etcd.command if one.startswith(f"{flag}="))
    return found.partition("=")[2]


def put_back(fleet: Fleet, made: Snapshot) -> None:
    """As playbooks/etcd_restore.yml: the servers are stopped, and etcd has the snapshot's data."""
    for host in fleet.hosts:
        host.server.apiserver.kill()
    etcd = fleet.hosts[0].server.etcd
    etcd.kill()
    places = etcd_restore.Places(Path(word(fleet, "--data-dir")), "20261123T050000Z")
    peers = word(fleet, "--initial-cluster")
    member = etcd_restore.Member("test", peers, "second", peers.partition("=")[2], 1_000_000_000, getpass.getuser())
    digest = hashlib.sha256(made.database.read_bytes()).hexdigest()
    etcd_restore.prepare(places, made.database, digest, member, tool=str(tool("etcdutl")))
    etcd_restore.exchange(places)
    etcd.start()


def secret(name: str, value: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"n": str(value)}}


def number(one: Mapping[str, Any]) -> int:
    return int(base64.b64decode(one["data"]["n"]))


@dataclass
class Writer:
    """Counts up in one secret after the other, through either server, and remembers what was acknowledged."""

    clients: list[Client]
    acknowledged: dict[str, int] = field(default_factory=dict)
    writes: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        turn = 0
        while not self.stop.wait(PAUSE_S):
            turn += 1
            name = f"s-{turn % COUNT}"
            client = self.clients[turn % len(self.clients)]
            try:
                read = client.request("GET", f"{SECRETS}/{name}")
                if read.status != 200:
                    continue
                value = number(read.body) + 1
                body = {**read.body, "stringData": {"n": str(value)}}
                if client.request("PUT", f"{SECRETS}/{name}", body).status == 200:
                    self.acknowledged[name] = value
                    self.writes += 1
            except OSError:
                # This server is being restarted.
                continue


@contextmanager
def written(fleet: Fleet) -> Iterator[Writer]:
    """Writes go on meanwhile; afterwards both servers read every secret, with all that was acknowledged."""
    clients = [host.server.client("root", ["system:masters"]) for host in fleet.hosts]
    for index in range(COUNT):
        assert clients[0].request("POST", SECRETS, secret(f"s-{index}", 0)).status == 201
    writer = Writer(clients)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield writer
    finally:
        writer.stop.set()
        thread.join()
    for client in clients:
        items = client.request("GET", SECRETS).body["items"]
        there = {one["metadata"]["name"]: number(one) for one in items}
        assert len(there) == COUNT
        behind = {name: value for name, value in writer.acknowledged.items() if there[name] < value}
        assert not behind
    print(f"{writer.writes} updates acknowledged, 0 lost")


def test_before_anything_an_admin_is_told_that_the_certificate_has_ended(fleet: Fleet) -> None:
    server = fleet.hosts[1].server
    assert count(KubeApi(server.kubeconfig("admin", ["muster:admins"])), "secrets") >= 0
    with pytest.raises(ApiError, match=r"Unauthorized.*in the kubeconfig has ended.*site\.yml renews"):
        count(KubeApi(server.kubeconfig("admin", ["muster:admins"], ended=True)), "secrets")
    with pytest.raises(ApiError, match=r"look up|list secrets"):
        count(KubeApi(server.kubeconfig("nobody")), "secrets")


@pytest.mark.usefixtures("snapshot")
def test_a_run_that_ends_at_each_point_goes_on_and_nothing_is_lost(fleet: Fleet) -> None:
    with written(fleet) as writer:
        assert fleet.stored() == {"muster": COUNT}
        actions = fleet.actions()
        middle = actions.index(fleet.rewrite)
        for ended_after in range(len(actions)):
            fleet.run(ended_after)
            if ended_after == middle:
                # The new key writes everywhere, and most of what it has not written is under the old one.
                with pytest.raises(FleetError, match="are still under the key muster; run again"):
                    fleet.step("drop")
                with pytest.raises(Killed):
                    fleet.rewrite(Cut)
        before = writer.writes
        fleet.run()
        (name,) = fleet.keys()
        assert name != "muster" and fleet.stored() == {name: COUNT}
        assert before > 0
        processes = [host.server.apiserver.running for host in fleet.hosts]
        fleet.run()
        assert [host.server.apiserver.running for host in fleet.hosts] == processes
    assert {encryption_keys.of_server(host.loaded)[0].split()[0] for host in fleet.hosts} == {name}


def test_an_old_snapshot_is_read_with_its_key_and_put_under_the_new_one(fleet: Fleet, snapshot: Snapshot) -> None:
    """The words of docs/operations/encryption-key.md: the line of the old key, the restore, the rotation again."""
    fleet.run()
    (new,) = fleet.keys()
    (line,) = fleet.directory.joinpath("encryption-key.dropped").read_text().splitlines()
    fleet.key_file.write_text(f"{fleet.key_file.read_text()}{line}\n")
    put_back(fleet, snapshot)
    # With the files that they have, the servers know the new key alone: what is in etcd is lost on them.
    first = fleet.hosts[0].server
    first.apiserver.start()
    client = first.client("root", ["system:masters"])
    until("an answer", lambda: answers(client))
    assert client.request("GET", f"{SECRETS}/{snapshot.name}").status == 500
    with pytest.raises(ApiError):
        count(KubeApi(fleet.admin), "secrets")
    # The restore brings the keys before it starts a server.
    for host in fleet.hosts:
        host.write(fleet.content())
        host.restart()
        client = host.server.client("root", ["system:masters"])
        assert number(client.request("GET", f"{SECRETS}/{snapshot.name}").body) == snapshot.value
    assert set(fleet.stored()) == {"muster"}
    fleet.run()
    assert fleet.keys() == [new] and set(fleet.stored()) == {new}
    for host in fleet.hosts:
        client = host.server.client("root", ["system:masters"])
        assert number(client.request("GET", f"{SECRETS}/{snapshot.name}").body) == snapshot.value


@pytest.mark.slow
def test_a_server_reads_a_new_key_while_it_runs_and_says_so(fleet: Fleet) -> None:
    """Each looks at its file once a minute; rotate_read.yml waits for the hash that it shows then."""
    host = fleet.hosts[1]
    variables = yaml.safe_load((REPOSITORY / "roles/kube_apiserver/vars/main.yml").read_text())
    client = host.server.client("root", ["system:masters"])

    def has_read() -> bool:
        shown = f'{variables["__kube_apiserver_keys_read"]}sha256:{hashlib.sha256(host.file.read_bytes()).hexdigest()}"'
        return re.search(shown, client.request("GET", "/metrics").message) is not None

    metrics = client.request("GET", "/metrics").message
    assert 'name="encryption-provider-config-automatic-reload-controller"' in metrics and has_read()
    process, old = host.server.apiserver.running, encryption_keys.parse(fleet.key_file.read_text(), "")
    new = encryption_keys.made(b"n" * 32, datetime.now(UTC) + timedelta(seconds=1))
    fleet.key_file.write_text(encryption_keys.text_of([*old, new]))
    assert hashlib.sha256(fleet.content().encode()).hexdigest() not in metrics
    host.write(fleet.content())
    until("the new key's being read", has_read, 90)
    fleet.key_file.write_text(encryption_keys.text_of([new, *old]))
    fleet.hosts[0].write(fleet.content())
    fleet.hosts[0].restart()
    writes = fleet.hosts[0].server.client("root", ["system:masters"])
    assert writes.request("POST", SECRETS, secret("under-the-new-key", 5)).status == 201
    assert fleet.stored()[new.name] == 1
    assert number(client.request("GET", f"{SECRETS}/under-the-new-key").body) == 5
    assert host.server.apiserver.running is process
    host.loaded = host.file.read_text()
    fleet.run()
    assert fleet.keys() == [new.name]


def answers(client: Client) -> bool:
    try:
        return client.request("GET", "/livez/ping").status == 200
    except OSError:
        return False


def test_a_key_that_is_gone_is_told_before_anything_is_done(fleet: Fleet) -> None:
    client = fleet.hosts[0].server.client("root", ["system:masters"])
    assert client.request("POST", SECRETS, secret("s", 1)).status == 201
    wrong = base64.b64encode(b"w" * 32).decode()
    fleet.key_file.write_text(f"muster-20200101t000000z {wrong}\n")
    with pytest.raises(FleetError, match=r"api-1 writes with the key muster.*, which is not in the controller's file"):
        fleet.run()
    for host in fleet.hosts:
        host.write(fleet.content())
    with pytest.raises(FleetError, match=r"\d+ under muster.*; put these keys back from your backup"):
        fleet.run()
    assert fleet.keys() == ["muster-20200101t000000z"]
