"""A real etcd of three members on loopback, with TLS for clients, and the snapshots of roles/etcd_backup from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api

from tests.support.authority import Authority

from .kube import Part, binaries, free_ports, until
from .kube_files import REPOSITORY

NO_TOOLS = "no etcd, etcdctl, etcdutl, age and rclone: `apt-get install age rclone`, and fill the cache with `make lab`"
# What a member that joins others is started with.
JOIN = ("--initial-cluster-state", "existing")
PROGRAM = REPOSITORY / "roles/etcd_backup/files/etcd_backup.py"


def tools() -> bool:
    """Whether everything is here that snapshots need."""
    place = binaries()
    return (
        place is not None
        and all((place / name).exists() for name in ("etcdctl", "etcdutl"))
        and all(shutil.which(name) for name in ("age", "age-keygen", "rclone"))
    )


@dataclass
class Cluster:
    """The members by name, and what a client needs."""

    directory: Path
    credentials: list[str]
    clients: dict[str, str]
    peers: dict[str, str]
    options: list[str]
    parts: dict[str, Part] = field(default_factory=dict)

    def data_dir(self, member: str) -> Path:
        """Where a member has its data."""
        return self.directory / member / "data"

    @property
    def api_credentials(self) -> etcd_api.Credentials:
        """As the collection's client takes them."""
        return etcd_api.Credentials(*self.credentials[1::2])

    def apis(self, timeout_s: float) -> dict[str, etcd_api.Api]:
        """The collection's client of each member."""
        return {name: etcd_api.connect(url, self.api_credentials, timeout_s) for name, url in self.clients.items()}

    def joining(self, member: str) -> bool:
        """Whether a member was started to join others."""
        return tuple(self.parts[member].command[-2:]) == JOIN

    def start(self) -> None:
        """Start every member, and wait until each answers a read that needs a majority."""
        for member, client in self.clients.items():
            peer = self.peers[member]
            self.parts[member] = Part(
                [
                    str(tool("etcd")), "--name", member, "--data-dir", str(self.data_dir(member)),
                    "--listen-client-urls", client, "--advertise-client-urls", client,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", self.initial_cluster, "--initial-cluster-token", "first", *self.options,
                ],
                self.directory / f"{member}.log",
            )  # fmt: skip
            self.parts[member].start()
        for member in self.clients:
            until(f"health of {member}", lambda member=member: self.ctl(member, "get", "x").returncode == 0)  # type: ignore[misc]

    def stop(self) -> None:
        """End every member."""
        for part in self.parts.values():
            part.kill()

    @property
    def initial_cluster(self) -> str:
        """As etcd and etcdutl take it."""
        return ",".join(f"{name}={url}" for name, url in self.peers.items())

    def ctl(self, member: str, *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
        """etcdctl against one member."""
        argv = [str(tool("etcdctl")), *self.credentials, "--endpoints", self.clients[member], "--command-timeout", "5s"]
        done = subprocess.run([*argv, *words], input=stdin, capture_output=True, check=False)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def get(self, member: str, key: str) -> dict[str, Any]:
        """The answer to a read of one key."""
        answer: dict[str, Any] = json.loads(self.ctl(member, "get", key, "-w", "json").stdout)
        return answer

    def everything(self, member: str) -> dict[str, dict[str, Any]]:
        """Every key with its value, its revisions and its lease, in etcd's own words."""
        answer = json.loads(self.ctl(member, "get", "", "--prefix", "-w", "json").stdout)
        return {one["key"]: one for one in answer["kvs"]}

    def leader(self) -> str:
        """The name of the leader."""
        for member in self.clients:
            status = json.loads(self.ctl(member, "endpoint", "status", "-w", "json").stdout)[0]["Status"]
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise AssertionError("no leader")


def tool(name: str) -> Path:
    """One of etcd's binaries."""
    place = binaries()
    assert place is not None
    return place / name


@contextmanager
def etcd_cluster(directory: Path, names: tuple[str, str, str] = ("etcd-1", "etcd-2", "etcd-3")) -> Iterator[Cluster]:
    """Three members with one key written."""
    authority = Authority(directory)
    # For both sides, as the role's: a member's JSON gateway is a client of the member.
    certificate, key = authority.issue("etcd", peer="127.0.0.1")
    client_certificate, client_key = authority.issue("health")
    ports = free_ports(6)
    ca = str(directory / "ca.crt")
    cluster = Cluster(
        directory,
        ["--cacert", ca, "--cert", str(client_certificate), "--key", str(client_key)],
        {name: f"https://127.0.0.1:{port}" for name, port in zip(names, ports[:3], strict=True)},
        {name: f"http://127.0.0.1:{port}" for name, port in zip(names, ports[3:], strict=True)},
        # Members are killed here, and never the machine: what they have written is there without a sync.
        [
            "--unsafe-no-fsync",
            "--cert-file",
            str(certificate),
            "--key-file",
            str(key),
            "--trusted-ca-file",
            ca,
            "--client-cert-auth",
        ],
    )
    try:
        cluster.start()
        cluster.ctl(names[0], "put", "muster", "before")
        yield cluster
    finally:
        cluster.stop()


@dataclass
class Backups:
    """What the role installs for each member, with a folder of this machine as the bucket."""

    cluster: Cluster
    directory: Path
    identity: Path
    bucket: Path

    def environment(self) -> dict[str, str]:
        """With etcd's binaries on the path."""
        return {
            "PATH": f"{tool('etcdctl').parent}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.directory),
        }

    def run(self, member: str, *words: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        """The program as one member's timer or an administrator starts it."""
        home = self.directory / member
        (home / "textfiles").mkdir(parents=True, exist_ok=True)
        credentials = self.cluster.credentials
        config = {
            "fleet": "lab", "cluster": "main", "member": member, "endpoints": self.cluster.clients,
            "ca": credentials[1], "cert": credentials[3], "key": credentials[5], "period_s": 3600, "tick_s": 300,
            "recipients": str(self.directory / "recipients"), "directory": str(home), "keep_local": 1,
            "keep_count": 2, "keep_days": 30, "textfile": str(home / "textfiles/muster_etcd_backup.prom"),
            "place": {"kind": "bucket", "path": str(self.bucket), "config": str(self.directory / "rclone.conf")},
        }  # fmt: skip
        path = home / "config.json"
        path.write_text(json.dumps({**config, **changes}))
        argv = [sys.executable, str(PROGRAM), "--config", str(path), *words]
        return subprocess.run(argv, env=self.environment(), capture_output=True, text=True, check=False)

    def metrics(self, member: str) -> Mapping[str, float]:
        """Value by name, without labels."""
        path = self.directory / member / "textfiles/muster_etcd_backup.prom"
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        return {line.partition("{")[0].removeprefix("muster_etcd_backup_"): float(line.split()[-1]) for line in lines}

    def there(self) -> list[str]:
        """The names at the second place."""
        return sorted(path.name for path in self.bucket.iterdir())


def set_up(cluster: Cluster, directory: Path) -> Backups:
    """Key, recipients and an empty second place."""
    directory.mkdir()
    identity = directory / "identity"
    subprocess.run(["age-keygen", "-o", str(identity)], capture_output=True, check=True)
    public = subprocess.run(["age-keygen", "-y", str(identity)], capture_output=True, text=True, check=True).stdout
    (directory / "recipients").write_text(public)
    (directory / "rclone.conf").write_text("[second-place]\ntype = local\n")
    bucket = directory / "bucket"
    bucket.mkdir()
    return Backups(cluster, directory, identity, bucket)


def healthy(cluster: Cluster) -> None:
    """Three voters, each healthy, and none that joins any more."""
    for name, url in cluster.clients.items():
        health = etcd_api.wait_healthy(
            lambda url=url: etcd_api.probe(url, cluster.api_credentials, list(cluster.clients)),
            60,
        )
        assert health.healthy, (name, health.reason)
        assert not cluster.joining(name)
