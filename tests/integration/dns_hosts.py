"""A node with two pods, the cluster's name server and one of the site, in network namespaces.

CoreDNS on the node is real, with the Corefile and the rules of role node_dns; both name servers are stand-ins.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .kube import Part, binaries, until
from .kube_files import REPOSITORY, defaults, render

PROGRAM = REPOSITORY / "roles/node_dns/files/node_dns.py"
ADDRESS = "169.254.20.10"
DOMAIN = "cluster.local"
# Of the cluster and of the site, beyond the node; both on 198.18.90.0/24.
CLUSTER, SITE, NODE = "198.18.90.31", "198.18.90.53", "198.18.90.61"
PODS, POD_RANGE = ("198.19.61.2", "198.19.61.3"), "198.19.61.0/24"
START_S = 20.0


def missing() -> str:
    """Why it cannot run here; "" where it can."""
    place = binaries()
    if place is None or not (place / "coredns").exists():
        return "no coredns: set MUSTER_BINARIES, or fill the cache with `make lab`"
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("ip", "iptables")):
        return "network namespaces need root, iproute2 and iptables"
    return ""


@dataclass
class Hosts:
    """The namespaces, and what runs in them."""

    directory: Path
    prefix: str
    parts: dict[str, Part] = field(default_factory=dict)

    def namespace(self, name: str) -> str:
        """The name of a namespace: node, beyond, pod-0, pod-1."""
        return f"{self.prefix}-{name}"

    def inside(self, name: str, *command: str) -> list[str]:
        """A command in a namespace."""
        return ["ip", "netns", "exec", self.namespace(name), *command]

    def run(self, name: str, *command: str) -> str:
        """Run a command in a namespace to its end, and give what it prints. Raises AssertionError."""
        done = subprocess.run(self.inside(name, *command), capture_output=True, text=True, check=False, cwd=REPOSITORY)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def make(self) -> None:
        """Namespaces and the wires between them. Raises CalledProcessError."""
        for name in ("node", "beyond", "pod-0", "pod-1"):
            subprocess.run(["ip", "netns", "add", self.namespace(name)], check=True)
            self.run(name, "ip", "link", "set", "lo", "up")
        self.wire("beyond", "198.18.90.1", [CLUSTER, SITE], NODE)
        for number, pod in enumerate(PODS):
            self.wire(f"pod-{number}", pod, [], f"198.19.61.{101 + number}")
            self.run(f"pod-{number}", "ip", "route", "add", "default", "via", f"198.19.61.{101 + number}")
        self.run("node", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.run("beyond", "ip", "route", "add", POD_RANGE, "via", NODE)
        # What nobody has goes to a router that says nothing of it. A namespace may begin as the machine is set.
        self.run("beyond", "sysctl", "-qw", "net.ipv4.ip_forward=0")
        self.run("node", "ip", "route", "add", "default", "via", "198.18.90.1")

    def wire(self, name: str, address: str, more: list[str], node: str) -> None:
        """A wire between the node, by its address `node`, and another namespace."""
        ends = f"to-{name}", "eth0"
        peer = ["peer", "name", ends[1], "netns", self.namespace(name)]
        self.run("node", "ip", "link", "add", ends[0], "type", "veth", *peer)
        for one in (address, *more):
            self.run(name, "ip", "address", "add", f"{one}/32", "dev", ends[1])
        self.run(name, "ip", "link", "set", ends[1], "up")
        self.run("node", "ip", "address", "add", f"{node}/32", "dev", ends[0])
        self.run("node", "ip", "link", "set", ends[0], "up")
        self.run(name, "ip", "route", "add", node, "dev", ends[1])
        for one in (address, *more):
            self.run("node", "ip", "route", "add", one, "dev", ends[0], "src", node)

    def remove(self) -> None:
        """End what runs, and remove the namespaces."""
        for part in self.parts.values():
            with suppress(ProcessLookupError):
                part.kill()
        for name in ("node", "beyond", "pod-0", "pod-1"):
            subprocess.run(["ip", "netns", "delete", self.namespace(name)], check=False, capture_output=True)

    def serve(self, name: str, address: str, *options: str) -> None:
        """Run a stand-in for a name server beyond the node, and wait until it answers."""
        command = [sys.executable, "-m", "tests.support.dns_stand_in", address, str(self.counts_file(name)), *options]
        self.parts[name] = Part(self.inside("beyond", *command), self.directory / f"{name}.log")
        self.parts[name].start()
        until(
            f"{name} to answer", lambda: self.talk("beyond", "ask", address, "a.org")[0].startswith("NOERROR"), START_S
        )

    def counts_file(self, name: str) -> Path:
        """Where a stand-in writes how often it was asked."""
        return self.directory / f"{name}.json"

    def counts(self, name: str) -> dict[str, int]:
        """How often a stand-in was asked for each name; what it was asked long ago is in it."""
        found: dict[str, int] = json.loads(self.counts_file(name).read_text())
        return found

    def talk(self, name: str, act: str, *words: str) -> Any:
        """What `dns_client` prints there."""
        return json.loads(self.run(name, sys.executable, "-m", "tests.integration.dns_client", act, *words))

    def rules(self, act: str = "up", **changes: Any) -> list[str]:
        """The role's program on the node, with its configuration; the lines that it prints."""
        data = {"address": ADDRESS, "pods": POD_RANGE, "servers": [CLUSTER], "max_qps": 1000, **changes}
        path = self.directory / "config.json"
        path.write_text(json.dumps(data))
        return self.run("node", sys.executable, str(PROGRAM), act, str(path)).splitlines()

    def start(self, servers: tuple[str, ...] = (SITE,), wait: bool = True, **changes: Any) -> None:
        """Start the node's CoreDNS with the role's Corefile, and wait until it is ready."""
        path = self.directory / "Corefile"
        path.write_text(render("node_dns", "Corefile.j2", corefile_values(servers, changes)))
        place = binaries()
        assert place is not None
        command = self.inside("node", str(place / "coredns"), "-conf", str(path))
        self.parts["node"] = Part(command, self.directory / "coredns.log")
        self.parts["node"].start()
        if wait:
            until("the node to answer", lambda: self.talk("node", "ask", ADDRESS, "a.org")[0] != "refused", START_S)

    def metric(self, name: str) -> float:
        """The value of a metric without labels of the node's CoreDNS."""
        ask = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen('http://127.0.0.1:9154/metrics').read())"
        lines = self.run("node", sys.executable, "-c", ask).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def kill(self) -> None:
        """Kill the node's CoreDNS as the kernel would."""
        self.parts.pop("node").kill()


def corefile_values(servers: tuple[str, ...], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the role's Corefile."""
    return {
        **defaults("node_dns"),
        "node_dns_address": ADDRESS,
        "node_dns_domain": DOMAIN,
        "node_dns_networks": ["198.19.0.0/17", "198.19.128.0/20"],
        "node_dns_servers": [CLUSTER],
        "node_dns_metrics_port": 9154,
        "__node_dns_state": {"servers": list(servers), "source": "/etc/resolv.conf"},
        **changes,
    }


@contextmanager
def dns_hosts(directory: Path) -> Iterator[Hosts]:
    """The namespaces with nothing in them yet."""
    hosts = Hosts(directory, f"dns{os.getpid()}")
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()
