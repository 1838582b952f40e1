"""Real API servers of two minors beside each other on one etcd: what playbooks/upgrade.yml takes for granted of them.

On demand, by `make upgrade-minor`: the older release is built from its published modules first.

Only here: API servers of two minors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.host.binaries import file_sha256
from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import ask
from ansible_collections.muster.fleet.plugins.module_utils.kube import upgrade_fleet as fleets
from ansible_collections.muster.fleet.plugins.module_utils.kube import upgrade_rules as rules
from ansible_collections.muster.fleet.plugins.modules.upgrade_facts import program

from gpu_burnin.api.names import Names
from gpu_burnin.fleet.mirror.programs import KUBERNETES_VERSION
from tests.integration.gate import NODES, a_node
from tests.integration.kube import (
    Client,
    Part,
    Server,
    api_server,
    apply_ledger,
    beside,
    binaries,
    ended,
    free_ports,
    until,
)
from tests.integration.kube_files import gate_file
from tests.lab.older import OLDER_VERSION, older_dir

SERVER = "kube-apiserver"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
# What a server needs for the gate on its disk, and one of before 1.36 does not know.
FEATURE, CONFIGURATION = "--feature-gates=", "--admission-control-config-file="
GATE = "ManifestBasedAdmissionControlConfig"
COUNT = 50


def program_of(version: str) -> Path:
    """The server of this release. Fails where it is not there: these tests are asked for by name."""
    directory = older_dir() if version == OLDER_VERSION else binaries()
    assert directory is not None and (directory / SERVER).exists(), "run `make upgrade-minor`, which builds it"
    return directory / SERVER


def older(command: Sequence[str]) -> list[str]:
    """A server as it stood before 1.36: the role's flags but for the gate's."""
    rest = [word for word in command[1:] if not word.startswith((FEATURE, CONFIGURATION))]
    return [str(program_of(OLDER_VERSION)), *rest]


def newer(command: Sequence[str], directory: Path) -> list[str]:
    """The same one as the role runs it today."""
    gate = [
        f"{FEATURE}ManifestBasedAdmissionControlConfig=true",
        f"{CONFIGURATION}{directory}/admission/admission.yaml",
    ]
    return [str(program_of(KUBERNETES_VERSION)), *command[1:], *gate]


@dataclass
class Fleet:
    """Two servers on one etcd."""

    servers: list[Server]

    def clients(self, user: str = "root", group: str = "system:masters") -> list[Client]:
        return [server.client(user, [group]) for server in self.servers]

    def upgrade(self, number: int) -> None:
        server = self.servers[number]
        server.apiserver.running.terminate()  # type: ignore[union-attr]
        server.apiserver.running.wait()  # type: ignore[union-attr]
        server.apiserver.command = newer(server.apiserver.command, server.directory)
        server.apiserver.start()
        server.wait_ready()

    def versions(self) -> list[str]:
        return [str(client.request("GET", "/version").body["gitVersion"]) for client in self.clients()]

    def rules(self, closed: bool) -> fleets.Fleet:
        """What the playbook finds out of these processes."""
        new = program_of(KUBERNETES_VERSION)
        sha256 = str(file_sha256(str(new)))
        hosts: dict[str, fleets.Host | None] = {}
        for number, server in enumerate(self.servers, 1):
            process = Path(f"/proc/{server.apiserver.running.pid}/exe")  # type: ignore[union-attr]
            of = program(SERVER, sha256, new.parent, new.parent, process)
            facts = {"programs": {SERVER: of}, "sick": "", "served": True, "leads": False, "room": "", "closed": closed}
            hosts[f"api-{number}"] = fleets.host_of(f"api-{number}", facts)
        return fleets.Fleet({"kube_apiserver": hosts})

    def planned(self, closed: bool) -> tuple[tuple[str, ...], bool, bool]:
        """Servers that are left, and whether admission is to be closed and to be opened."""
        assert rules.problems(self.rules(closed), "control_plane") == []
        planned = rules.plan(self.rules(closed), "control_plane")
        return planned.phases["servers"], planned.close_admission, planned.open_admission

    def untainted(self, name: str) -> list[int]:
        """The status with which each server answers a node without the taint, by a dry run."""
        path = f"{NODES}?dryRun=All"
        return [client.request("POST", path, a_node(name, spec={})).status for client in self.clients()]


@dataclass
class Writer:
    """Creates one object after the other, through the server whose turn it is or the other one."""

    clients: list[Client]
    acknowledged: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    failed: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        turn, last_s = 0, time.monotonic()
        while not self.stop.is_set():
            turn += 1
            name = f"write-{len(self.acknowledged)}"
            body = {"metadata": {"name": name}, "data": {"turn": str(turn)}}
            try:
                status = self.clients[turn % len(self.clients)].request("POST", CONFIG_MAPS, body).status
            except OSError:
                self.failed += 1
                continue
            # A write whose answer was lost may have been done.
            if status in (201, 409):
                now_s = time.monotonic()
                self.longest_gap_s, last_s = max(self.longest_gap_s, now_s - last_s), now_s
                self.acknowledged.append(name)
            else:
                self.failed += 1


@contextmanager
def written(fleet: Fleet) -> Iterator[Writer]:
    """Writes go on meanwhile; afterwards both servers have all that was acknowledged."""
    writer = Writer(fleet.clients())
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield writer
    finally:
        writer.stop.set()
        thread.join()
    assert writer.acknowledged
    for client in fleet.clients():
        there = {one["metadata"]["name"] for one in client.request("GET", CONFIG_MAPS).body["items"]}
        assert set(writer.acknowledged) - there == set()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two servers of the older release, with the fleet's roles and bindings and without the gate on their disks."""
    with api_server(tmp_path_factory.mktemp("api"), command=older) as first:
        second = beside(first)
        with ended(second.apiserver):
            second.apiserver.start()
            second.wait_ready()
            yield Fleet([first, second])


@pytest.fixture(scope="module")
def stored(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """What the older release has stored: by its path, each object as it was read."""
    root, names = fleet.clients()[0], Names()
    for number in range(COUNT):
        name = {"metadata": {"name": f"old-{number}"}}
        assert root.request("POST", CONFIG_MAPS, {**name, "data": {"n": str(number)}}).status == 201
        assert root.request("POST", SECRETS, {**name, "stringData": {"n": str(number)}}).status == 201
    assert root.request("POST", NODES, a_node("old-node")).status == 201
    apply_ledger(fleet.servers[0])
    paths = [f"{kind}/old-{number}" for kind in (CONFIG_MAPS, SECRETS) for number in range(COUNT)]
    crd = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.crd}"
    levels = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations"
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    mine = [
        f"{path}/{one['metadata']['name']}"
        for path in (levels, roles)
        for one in root.request("GET", path).body["items"]
        if one["metadata"]["name"].startswith("muster")
    ]
    assert len(mine) > 2, mine
    return {path: root.request("GET", path).body for path in [*paths, f"{NODES}/old-node", crd, *mine]}


def test_the_programs_are_what_they_are_called() -> None:
    assert [str(ask(program_of(version))) for version in (OLDER_VERSION, KUBERNETES_VERSION)] == [
        OLDER_VERSION,
        KUBERNETES_VERSION,
    ]


@contextmanager
def third(fleet: Fleet, *words: str) -> Iterator[Server]:
    """One more server of the older release, with these words too."""
    (port,) = free_ports(1)
    first = fleet.servers[0]
    own = [f"--secure-port={port}", f"--audit-log-path={first.directory / 'audit-3.log'}", *words]
    part = Part([*older(first.apiserver.command), *own], first.directory / f"apiserver-{port}.log")
    with ended(part):
        part.start()
        yield Server(port, first.directory, first.authority, first.etcd, part)


def test_the_older_one_does_not_start_with_the_roles_flags(fleet: Fleet) -> None:
    """So a site.yml with older pins has no API server, and none without its gate: GATE_SINCE."""
    configuration = f"{CONFIGURATION}{fleet.servers[0].directory}/admission/admission.yaml"
    with third(fleet, configuration, f"{FEATURE}{GATE}=true") as server, pytest.raises(RuntimeError) as ends:
        server.wait_ready()
    assert f"unrecognized feature gate: {GATE}" in str(ends.value)


def test_without_the_feature_it_starts_and_takes_no_notice_of_the_policies(fleet: Fleet) -> None:
    """The feature's name is all that keeps it from serving with an open gate: it reads the same configuration."""
    with third(fleet, f"{CONFIGURATION}{fleet.servers[0].directory}/admission/admission.yaml") as server:
        server.wait_ready()
        assert Fleet([server]).untainted("open") == [201]


def test_an_older_fleet_has_its_gate_as_objects_which_an_admin_may_delete(fleet: Fleet) -> None:
    root, directory = fleet.clients()[0], fleet.servers[0].directory
    assert fleet.untainted("no-gate") == [201, 201]
    objects = [
        one
        for one in yaml.safe_load_all(gate_file("gate.yaml", directory).replace(".static.k8s.io", ".muster.dev"))
        if one["kind"] in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    ]
    paths = {
        f"{POLICIES}/validatingadmission{'policies' if one['kind'].endswith('Policy') else 'policybindings'}": one
        for one in objects[:2]
    }
    for path, one in paths.items():
        assert root.request("POST", path, one).status == 201
    until("the objects to be in force", lambda: fleet.untainted("gate-as-objects") == [403, 403], 60)
    for path, one in paths.items():
        assert root.request("DELETE", f"{path}/{one['metadata']['name']}").status == 200
    until("the gate to be open again", lambda: fleet.untainted("gate-deleted") == [201, 201], 60)


def test_one_server_after_the_other_under_a_writer(fleet: Fleet, stored: dict[str, dict[str, Any]]) -> None:
    def readable() -> None:
        for client in fleet.clients():
            for path, before in stored.items():
                # managedFields and versions of storage are the servers' own.
                now = client.request("GET", path).body
                assert now["metadata"]["uid"] == before["metadata"]["uid"], (path, now)
                assert [now.get(key) for key in ("data", "spec", "rules")] == [
                    before.get(key) for key in ("data", "spec", "rules")
                ], path

    old, new = f"v{OLDER_VERSION}", f"v{KUBERNETES_VERSION}"
    with written(fleet) as writer:
        assert fleet.versions() == [old, old]
        assert fleet.planned(closed=False) == (("api-1", "api-2"), True, True)
        fleet.upgrade(0)
        # Half of the way: the new one refuses an untainted node, the old one takes it. So admission is closed.
        assert fleet.versions() == [new, old]
        assert fleet.untainted("mixed") == [403, 201]
        assert fleet.planned(closed=True) == (("api-2",), True, True)
        readable()
        # What the new one has written the old one reads, and the other way round.
        for number, client in enumerate(fleet.clients()):
            body = {"metadata": {"name": f"mixed-{number}"}, "stringData": {"n": "1"}}
            assert client.request("POST", SECRETS, body).status == 201
        for client in fleet.clients():
            assert [client.request("GET", f"{SECRETS}/mixed-{number}").status for number in (0, 1)] == [200, 200]
        fleet.upgrade(1)
        assert fleet.versions() == [new, new]
        assert fleet.untainted("done") == [403, 403]
        # A run that was cut here has only admission left.
        assert fleet.planned(closed=True) == ((), False, True)
        assert fleet.planned(closed=False) == ((), False, False)
        readable()
    print(
        f"{OLDER_VERSION} -> {KUBERNETES_VERSION}: {len(writer.acknowledged)} writes acknowledged, 0 lost, "
        f"{writer.failed} refused by the server that changed, longest gap {writer.longest_gap_s:.2f} s"
    )
