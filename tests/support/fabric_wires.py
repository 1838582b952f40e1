"""Hosts as network namespaces, with a NIC on each of some wires; a router between two of them that takes less."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

NET = "198.18"
# The third part of the addresses: one for each rail, and that of the far side of the router.
RAILS, FAR = (61, 62), 63


@dataclass
class Wires:
    """The namespaces, by a prefix of their names. Host i has the address NET.RAIL.(i + 1) on each rail."""

    hosts: int
    rails: int = 1
    prefix: str = field(default_factory=lambda: f"fab{os.getpid()}")
    made: list[str] = field(default_factory=list)

    @property
    def namespaces(self) -> Sequence[str]:
        """By host."""
        return [self._name(f"h{number}") for number in range(self.hosts)]

    @property
    def addresses(self) -> Sequence[Mapping[int, str]]:
        """By host: its address on each rail."""
        return [
            {rail: f"{NET}.{RAILS[rail]}.{number + 1}" for rail in range(self.rails)} for number in range(self.hosts)
        ]

    def lay_out(self) -> None:
        """One wire for each rail, and every host on it."""
        wire = self._make("wire")
        for number, name in enumerate(self.namespaces):
            self._make(f"h{number}")
            for rail in range(self.rails):
                if not number:
                    _ip("-n", wire, "link", "add", f"br{rail}", "up", "type", "bridge")
                self._plug(wire, f"p{number}-{rail}", name, f"eth{rail}", f"{self.addresses[number][rail]}/24")
                _ip("-n", wire, "link", "set", f"p{number}-{rail}", "master", f"br{rail}")

    def lay_out_around_router(self, mtu: int) -> Sequence[Mapping[int, str]]:
        """Two hosts with a router between; its interface to the second one takes less than both hosts' do, and that
        the router says so is lost. Their addresses."""
        router = self._make("wire")
        far = [f"{NET}.{RAILS[0]}.1", f"{NET}.{FAR}.1"]
        for number, net in enumerate((RAILS[0], FAR)):
            name = self._make(f"h{number}")
            self._plug(router, f"p{number}", name, "eth0", f"{far[number]}/24")
            _ip("-n", router, "address", "add", f"{NET}.{net}.254/24", "dev", f"p{number}")
            _ip("-n", name, "route", "add", "default", "via", f"{NET}.{net}.254")
        _ip("-n", router, "link", "set", "p1", "mtu", str(mtu))
        self.inside("wire", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.inside("wire", "iptables", "-A", "OUTPUT", "-p", "icmp", "-j", "DROP")
        return [{0: address} for address in far]

    def inside(self, name: str, *words: str) -> None:
        """Run a command in "wire", or in "h0", "h1" ..."""
        _ip("netns", "exec", self._name(name), *words)

    def received_bytes(self, name: str, port: str) -> int:
        """What has come to an interface of "wire", or of "h0", "h1" ..."""
        words = ["ip", "-n", self._name(name), "-json", "-statistics", "link", "show", "dev", port]
        [found] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        return int(found["stats64"]["rx"]["bytes"])

    def tear_down(self) -> None:
        """Leave nothing."""
        for name in self.made:
            subprocess.run(["ip", "netns", "delete", name], check=False)

    def _name(self, part: str) -> str:
        return f"{self.prefix}-{part}"

    def _make(self, part: str) -> str:
        name = self._name(part)
        _ip("netns", "add", name)
        self.made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")
        return name

    @staticmethod
    def _plug(wire: str, port: str, name: str, nic: str, address: str) -> None:
        _ip("link", "add", nic, "netns", name, "type", "veth", "peer", "name", port, "netns", wire)
        _ip("-n", wire, "link", "set", port, "up")
        _ip("-n", name, "link", "set", nic, "up")
        _ip("-n", name, "address", "add", address, "dev", nic)


@contextmanager
def wires(hosts: int, rails: int = 1) -> Iterator[Wires]:
    """Nothing is laid out yet."""
    found = Wires(hosts, rails)
    try:
        yield found
    finally:
        found.tear_down()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
