"""Two monitoring hosts on loopback: the real Prometheus, Alertmanager and HAProxy with what the roles write."""

from __future__ import annotations

import json
import shlex
import shutil
import ssl
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.lab.image import ensure_image
from tests.support.authority import Authority
from tests.support.monitoring_files import render
from tests.support.server_helpers import QuietHandler, listening

from .kube import Part, ended

# Name, address to the others, and what 127.0.0.1 is on this host.
HOSTS = {"mon-1": ("127.0.77.1", "127.0.78.1"), "mon-2": ("127.0.77.2", "127.0.78.2")}
# Enough for the minutes of a test, little enough to be filled in one.
DISK_MIB = 64
VARIABLES = {
    "fleet_name": "pair",
    "fleet_state_dir": "/nowhere",
    "fleet_planned_nodes": 10,
    "fleet_monitoring_interval_s": 1,
    "__fleet_monitoring_capacity": {"retention_mib": 100},
}


@dataclass
class Host:
    """One of the two: its folder and its processes."""

    name: str
    folder: Path
    parts: dict[str, Part] = field(default_factory=dict)

    def ask(self, port: int, path: str) -> str:
        """What a service of this host answers on its loopback. Raises OSError."""
        with urllib.request.urlopen(f"http://{HOSTS[self.name][1]}:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What its Prometheus says. Raises OSError."""
        found: list[dict[str, Any]] = json.loads(self.ask(9090, f"/api/v1/query?query={quote(expression)}"))["data"][
            "result"
        ]
        return found


@dataclass(frozen=True)
class Pair:
    """Both hosts, who signs for the port of metrics and for the Alertmanagers, and the alerts that were told."""

    hosts: Mapping[str, Host]
    metrics: Authority
    alertmanager: Authority
    told: list[str]

    def client(self, name: str, *, signed: Authority, to: Authority) -> ssl.SSLContext:
        """What a host asks with: whose certificate it has, and whose server it wants."""
        certificate, key = signed.issue(name)
        context = ssl.create_default_context(cafile=str(to.ca))
        context.load_cert_chain(certificate, key)
        return context


def program(name: str, folder: Path, disk_mib: int = 0) -> list[str]:
    """The command of a program of the lab's image, run in there; the folder is its /mnt.

    With `disk_mib` its /mnt/data is a file system of this size, which is gone with the process.
    """
    root = ensure_image()
    disk = f"mount -t tmpfs -o size={disk_mib}m tmpfs {root}/mnt/data && " if disk_mib else ""
    inside = f'mount --bind {shlex.quote(str(folder))} {root}/mnt && {disk}exec chroot {root} {name} "$@"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", inside, name]


@contextmanager
def pair(folder: Path, rules: str) -> Iterator[Pair]:
    """Both run, with one file of rules, until the block ends."""
    authorities = []
    for name in ("metrics", "alertmanager"):
        (folder / name).mkdir()
        authorities.append(Authority(folder / name))
    with _receiver() as (url, told):
        variables = {**VARIABLES, "fleet_monitoring_receiver": {"webhook_configs": [{"url": url}]}}
        rendered = render(folder, {name: {"ansible_host": at} for name, (at, _) in HOSTS.items()}, variables)
        hosts = {name: _host(name, rendered[name], authorities, rules) for name in HOSTS}
        parts = [part for host in hosts.values() for part in host.parts.values()]
        for part in parts:
            part.start()
        with ended(*parts):
            yield Pair(hosts, authorities[0], authorities[1], told)


def _host(name: str, folder: Path, authorities: Sequence[Authority], rules: str) -> Host:
    address, loopback = HOSTS[name]
    (folder / "rules").mkdir()
    (folder / "rules" / "test.yml").write_text(rules)
    metrics, alertmanagers = authorities
    own, peer = metrics.issue(name, peer=address), alertmanagers.issue(name, peer=address)
    files = {
        "port": {"ca.crt": metrics.ca, "server.crt": own[0], "server.crt.key": own[1]},
        "tls": {
            "metrics-ca.crt": metrics.ca, "host.crt": own[0], "host.key": own[1],
            "kubernetes-ca.crt": metrics.ca, "prometheus.crt": own[0], "prometheus.key": own[1],
            "alertmanager-ca.crt": alertmanagers.ca, "alertmanager.crt": peer[0], "alertmanager.key": peer[1],
        },
    }  # fmt: skip
    for place, sources in files.items():
        (folder / place).mkdir()
        for made, source in sources.items():
            shutil.copy(source, folder / place / made)
    for path in folder.glob("*.*"):
        text = path.read_text().replace("/etc/prometheus/", "/mnt/").replace("/etc/muster-metrics/", "/mnt/port/")
        path.write_text(text.replace("127.0.0.1", loopback))
    (folder / "data").mkdir()
    prometheus, alertmanager = (arguments(folder / f"{what}.default") for what in ("prometheus", "alertmanager"))
    commands = {
        "haproxy": ["/usr/sbin/haproxy", "-db", "-f", "/mnt/haproxy.cfg"],
        "alertmanager": [
            "/usr/bin/prometheus-alertmanager", *alertmanager,
            "--config.file=/mnt/alertmanager.yml", "--storage.path=/mnt/alertmanager",
        ],
        "prometheus": [
            "/usr/bin/prometheus", *prometheus, "--config.file=/mnt/prometheus.yml", "--storage.tsdb.path=/mnt/data",
        ],
    }  # fmt: skip
    return Host(
        name,
        folder,
        {
            what: Part(
                [*program(command[0], folder, DISK_MIB if what == "prometheus" else 0), *command[1:]],
                folder / f"{what}.log",
            )
            for what, command in commands.items()
        },
    )


def arguments(path: Path) -> list[str]:
    """Those that the role gives to a program, of its file in /etc/default."""
    line = next(line for line in path.read_text().splitlines() if line.startswith("ARGS="))
    return shlex.split(shlex.split(line.removeprefix("ARGS="))[0])


@contextmanager
def _receiver() -> Iterator[tuple[str, list[str]]]:
    """A webhook; the names of the alerts of each message, as they come."""
    told: list[str] = []

    class Hook(QuietHandler):
        def do_POST(self) -> None:
            told.extend(alert["labels"]["alertname"] for alert in json.loads(self.body())["alerts"])
            self.reply(200)

    with listening(Hook, "127.0.79.1") as url:
        yield f"{url}/", told
