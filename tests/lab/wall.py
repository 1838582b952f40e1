"""The firewall between the control plane's network and the nodes' network: docs/operations/networks.md as rules.

This machine is the router between the two. What is not named there is dropped and remembered, in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as File

from gpu_burnin.fleet.mirror.commands import run, succeeds

from .model import Lab

ESTABLISHED = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
# A table of the kernel keeps who was dropped for this long: longer than any lab lives.
REMEMBERED_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Path:
    """Connections that pass: from these addresses or networks to those, by a protocol, to a port."""

    name: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    protocol: str
    port: int

    def rule(self) -> list[str]:
        """As arguments of iptables."""
        sources, targets = ",".join(self.sources), ",".join(self.targets)
        return ["-s", sources, "-d", targets, "-p", self.protocol, "--dport", str(self.port), "-j", "ACCEPT"]


def paths(lab: Lab) -> tuple[Path, ...]:
    """What the page names, but for the controller: that is this machine, which has an address in each network."""
    _, nodes = lab.subnets
    at = {host.name: host.address for host in lab.hosts}

    def of(group: str) -> tuple[str, ...]:
        return tuple(sorted(at[name] for name in lab.groups[group]))

    api = of("kube_apiserver")
    return (
        Path("nodes to the API by its balancer", (nodes,), of("api_loadbalancer"), "tcp", 6443),
        Path("pods to the API servers", (nodes,), api, "tcp", 6443),
        Path("names of the cluster", (nodes,), api, "udp", 53),
        Path("long answers of names", (nodes,), api, "tcp", 53),
        Path("API servers to kubelets", api, (nodes,), "tcp", 10250),
        Path("monitoring to the hosts' numbers", of("monitoring"), (nodes,), "tcp", 9443),
        Path("packages and programs", (nodes,), (lab.mirror_address,), "tcp", 80),
    )


def build(lab: Lab) -> None:
    """Make the firewall; one that stands stays as it is, with its counters."""
    if succeeds(["iptables", "-w", "-n", "-L", _chain(lab)]):
        return
    for table, rules in _tables(lab).items():
        _iptables(table, "-N", _chain(lab))
        for rule in rules:
            _iptables(table, "-A", _chain(lab), *rule)
        for hook in _hooks(lab, table):
            _iptables(table, "-I", *hook)


def remove(lab: Lab) -> None:
    """Remove it; fine when there is none, or half of one."""
    for table in _tables(lab):
        for hook in _hooks(lab, table):
            if succeeds(["iptables", "-w", "-t", table, "-C", *hook]):
                _iptables(table, "-D", *hook)
        if succeeds(["iptables", "-w", "-t", table, "-n", "-L", _chain(lab)]):
            _iptables(table, "-F", _chain(lab))
            _iptables(table, "-X", _chain(lab))


def close(lab: Lab, path: Path) -> None:
    """Take a path away, for connections that stand too."""
    _iptables("filter", "-I", _chain(lab), *path.rule()[:-1], "DROP")


def reopen(lab: Lab, path: Path) -> None:
    """Give a path back that `close` took away."""
    _iptables("filter", "-D", _chain(lab), *path.rule()[:-1], "DROP")


def traffic(lab: Lab) -> tuple[dict[str, int], list[str]]:
    """How many packets opened a connection on each path, by its name; and what was dropped for lack of one, each as
    "ADDRESS -> ADDRESS:PORT" (port 0: neither TCP nor UDP)."""
    listing = run(["iptables", "-w", "-n", "-v", "-x", "-L", _chain(lab)]).splitlines()
    counts = [int(line.split()[0]) for line in listing[2:]]
    opened: dict[str, int] = {}
    # A rule with several addresses is listed once for each pair of them.
    rest = iter(counts[1:])
    for path in paths(lab):
        opened[path.name] = sum(next(rest) for _ in range(len(path.sources) * len(path.targets)))
    # "expires-in address:port->address:port credit ..."; the first port is not kept.
    flows = (line.split()[1] for line in File(f"/proc/net/ipt_hashlimit/{_chain(lab)}").read_text().splitlines())
    return opened, sorted(flow.replace(":0->", " -> ") for flow in flows)


def _chain(lab: Lab) -> str:
    return f"muster-{lab.name}"


def _hooks(lab: Lab, table: str) -> list[list[str]]:
    control, nodes = lab.subnets
    hook = {"filter": "FORWARD", "nat": "POSTROUTING"}[table]
    return [[hook, "-s", one, "-d", other, "-j", _chain(lab)] for one, other in ((control, nodes), (nodes, control))]


def _tables(lab: Lab) -> dict[str, list[list[str]]]:
    """The rules of each table. A router leaves addresses as they are, podman does not."""
    name, expire = ("--hashlimit-name", _chain(lab)), ("--hashlimit-htable-expire", str(REMEMBERED_MS))
    remember = ["-m", "hashlimit", "--hashlimit-above", "1/hour", "--hashlimit-mode", "srcip,dstip,dstport"]
    dropped = [[*remember, *name, *expire, "-j", "DROP"], ["-j", "DROP"]]
    wall = [[*ESTABLISHED, "-j", "ACCEPT"], *(path.rule() for path in paths(lab)), *dropped]
    return {"filter": wall, "nat": [["-j", "ACCEPT"]]}


def _iptables(table: str, *words: str) -> None:
    run(["iptables", "-w", "-t", table, *words])
