"""A node in a network of its own: a firewall between it and the control plane that lets through what the docs name.

`docs/operations/networks.md` has the paths. Whatever else is tried is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .fleet import API_SERVERS, Fleet

NODES = ("gpu-1", "gpu-2", "gpu-3", "system-1")
BALANCER, MONITORING = "lb-1", "mon-1"
# Chain, and the chains of a host that ask it.
OUT, IN = "WALL-OUT", "WALL-IN"
HOOKS = ((OUT, "OUTPUT"), (OUT, "FORWARD"), (IN, "INPUT"))


@dataclass(frozen=True)
class Wall:
    """A node's firewall."""

    fleet: Fleet
    node: str

    def dropped(self) -> int:
        """How many packets were dropped in both directions."""
        found = 0
        for chain in (OUT, IN):
            *_, last = self.fleet.must(self.node, f"iptables -w -nvxL {chain}").splitlines()
            packets, _, target, *_ = last.split()
            assert target == "DROP", last
            found += int(packets)
        return found

    def close(self, *rule: str) -> None:
        """Take one of the paths away."""
        self.fleet.must(self.node, f"iptables -w -D {' '.join(rule)}")


def paths(fleet: Fleet) -> list[str]:
    """The rules, in order; the last of each chain drops what is left of the control plane's network."""
    at = fleet.addresses
    api = ",".join(at[name] for name in API_SERVERS)
    nodes = ",".join(at[name] for name in NODES)
    network, controller = fleet.lab.subnet, fleet.lab.subnet.replace(".0/24", ".1")
    return [
        *(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN" for chain in (OUT, IN)),
        f"-A {OUT} -d {nodes} -j RETURN",
        f"-A {IN} -s {nodes} -j RETURN",
        f"-A {OUT} -d {at[BALANCER]},{api} -p tcp --dport 6443 -j RETURN",
        *(f"-A {OUT} -d {api} -p {protocol} --dport 53 -j RETURN" for protocol in ("udp", "tcp")),
        kubelet_path(fleet, "-A"),
        f"-A {IN} -s {controller} -p tcp --dport 22 -j RETURN",
        f"-A {IN} -s {at[MONITORING]} -p tcp --dport 9443 -j RETURN",
        f"-A {OUT} -d {network} -j DROP",
        f"-A {IN} -s {network} -j DROP",
    ]


def kubelet_path(fleet: Fleet, verb: str = "") -> str:
    """The rule for the API servers' way to kubelet."""
    api = ",".join(fleet.addresses[name] for name in API_SERVERS)
    return f"{verb} {IN} -s {api} -p tcp --dport 10250 -j RETURN".strip()


@contextmanager
def walled(fleet: Fleet, nodes: Sequence[str]) -> Iterator[list[Wall]]:
    """These nodes behind a firewall each."""
    try:
        for node in nodes:
            chains = [f"iptables -w -N {chain}" for chain in (OUT, IN)]
            rules = [f"iptables -w {rule}" for rule in paths(fleet)]
            hooks = [f"iptables -w -I {hook} -j {chain}" for chain, hook in HOOKS]
            fleet.must(node, " && ".join([*chains, *rules, *hooks]))
        yield [Wall(fleet, node) for node in nodes]
    finally:
        for node in nodes:
            undo = [f"iptables -w -D {hook} -j {chain}" for chain, hook in HOOKS]
            fleet.ssh(node, "; ".join([*undo, *(f"iptables -w -F {c}; iptables -w -X {c}" for c in (OUT, IN))]))
