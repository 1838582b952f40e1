"""Hosts with BIRD in network namespaces on one wire, configured by the files that role pod_network renders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.pod_routes import BIRD, ROLE, rendered

PACKETS = Path(__file__).with_name("packets.py")
PROGRAM = ROLE / "files/pod_network_bgp.py"
# Each process of a host has its own /run and /etc/bird: birdc and the program know only these.
INSIDE = 'mount --bind "$0/run" /run && mount --bind "$0/etc" /etc/bird && exec "$@"'
NODES: Mapping[str, tuple[str, str]] = {
    "system-1": ("198.18.59.61", "198.19.61.0/24"),
    "system-2": ("198.18.59.62", "198.19.62.0/24"),
    "gpu-1": ("198.18.59.71", "198.19.71.0/24"),
    "gpu-2": ("198.18.59.72", "198.19.72.0/24"),
}
SYSTEM = ("system-1", "system-2")
# The longest that anything here has taken is 6 s; a machine with other work takes longer.
COMING_S = 90


@dataclass(frozen=True)
class Packets:
    """Two processes, one of which asks and counts."""

    asking: subprocess.Popen[str]
    answering: subprocess.Popen[bytes]

    def counted(self) -> tuple[int, int]:
        """End them; how many were sent, and how many had no answer."""
        self.asking.terminate()
        sent, answered = self.asking.communicate(timeout=10)[0].split()
        self.answering.kill()
        self.answering.wait()
        return int(sent), int(sent) - int(answered)


@dataclass
class Hosts:
    """The namespaces, by a prefix of their names; `variables` are the inventory's."""

    prefix: str
    folder: Path
    variables: Mapping[str, Any]
    nodes: Mapping[str, tuple[str, str]] = field(default_factory=lambda: NODES)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def lay_out(self) -> None:
        """A wire, and each node on it with its bridge of pods."""
        wire = f"{self.prefix}-wire"
        self._ip("netns", "add", wire)
        self._ip("-n", wire, "link", "add", "br0", "up", "type", "bridge")
        for host, (address, range_) in self.nodes.items():
            name = f"{self.prefix}-{host}"
            for part in ("run/bird", "etc"):
                (self.folder / host / part).mkdir(parents=True)
            (self.folder / host / "run/bird").chmod(0o777)
            self._ip("netns", "add", name)
            self._ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", host, "netns", wire)
            self._ip("-n", wire, "link", "set", host, "master", "br0", "up")
            for link in ("lo", "eth0"):
                self._ip("-n", name, "link", "set", link, "up")
            self._ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            self._ip("-n", name, "link", "add", "cni0", "up", "type", "bridge")
            self._ip("-n", name, "address", "add", f"{gateway(range_)}/24", "dev", "cni0")
            self.run(host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            self.configure(host)

    def configure(self, host: str, change: Callable[[str], str] = str, **more: Any) -> None:
        """Write the host's files as the role does; a test that makes a node lie changes the text of bird.conf."""
        given = {**self.variables, "pod_network_bgp_wait_s": 3, **more}
        text = rendered(BIRD, host, self.nodes, SYSTEM, **given)
        (self.folder / host / "etc/bird.conf").write_text(change(text))
        config = rendered("{{ __pod_network_config }}", host, self.nodes, SYSTEM, **given)
        (self.folder / host / "config.json").write_text(json.dumps(config))

    def start(self, *hosts: str) -> None:
        """Start BIRD by the program, as the unit does."""
        for host in hosts:
            with (self.folder / host / "bird.log").open("ab") as log:
                words = self._words(host, sys.executable, str(PROGRAM), "run", str(self.folder / host / "config.json"))
                self.daemons[host] = subprocess.Popen(words, stderr=log, stdout=log)

    def kill(self, host: str) -> None:
        """As a fault does."""
        self.daemons[host].kill()
        self.daemons.pop(host).wait()

    def restart(self, host: str) -> None:
        """As the unit does: the daemon tells its peers that it comes back."""
        self.run(host, "birdc", "graceful", "restart")
        self.daemons.pop(host).wait(30)
        self.start(host)

    def tear_down(self) -> None:
        """Leave nothing."""
        for host in list(self.daemons):
            self.kill(host)
        for name in ("wire", *self.nodes):
            subprocess.run(["ip", "netns", "delete", f"{self.prefix}-{name}"], check=False)

    def run(self, host: str, *words: str, may_fail: bool = False) -> str:
        """What a command prints there."""
        done = subprocess.run(self._words(host, *words), capture_output=True, text=True, check=False)
        assert may_fail or done.returncode == 0, f"{host}: {words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr * may_fail

    def program(self, host: str, command: str, *options: str, may_fail: bool = False) -> str:
        """What pod-network-bgp prints on the host."""
        words = (sys.executable, str(PROGRAM), command, str(self.folder / host / "config.json"), *options)
        return self.run(host, *words, may_fail=may_fail)

    def learnt(self, host: str) -> dict[str, str]:
        """{range: gateway} of BIRD's in the kernel."""
        shown = self.run(host, "ip", "-json", "-4", "route", "show", "proto", "12", "metric", "32")
        return {route["dst"]: route.get("gateway", "") for route in json.loads(shown)}

    def wanted(self, host: str, among: Collection[str] = ()) -> dict[str, str]:
        """What the host should have learnt of these nodes, or of all."""
        return {self.nodes[name][1]: self.nodes[name][0] for name in (among or self.nodes) if name != host}

    def packets(self, host: str, other: str) -> Packets:
        """From the address of a pod to that of one there and back, a hundred a second, until they are counted."""
        source, target = (gateway(self.nodes[name][1]) for name in (host, other))
        answering = subprocess.Popen(self._words(other, sys.executable, str(PACKETS), "answer", target))
        asking = subprocess.Popen(
            self._words(host, sys.executable, str(PACKETS), "ask", source, target), stdout=subprocess.PIPE, text=True
        )
        assert asking.stdout is not None and asking.stdout.readline() == "answered\n"
        return Packets(asking, answering)

    def _words(self, host: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.prefix}-{host}", "sh", "-c", INSIDE, str(self.folder / host), *words]

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)


def gateway(range_: str) -> str:
    """The first address of a range of pods."""
    return range_.replace("0/24", "1")


def comes(question: Callable[[], Any], wanted: Any, within_s: float = COMING_S) -> None:
    """Wait until the answer is the wanted one."""
    until = time.monotonic() + within_s
    while (found := question()) != wanted:
        assert time.monotonic() < until, f"{found} in the place of {wanted}"
        time.sleep(0.1)


def prefix() -> str:
    """Names of this process' namespaces begin so."""
    return f"bgp{os.getpid()}"
