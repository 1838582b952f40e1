"""The inventory's own rules: groups, sizes, names, addresses, ranges. Pure functions, no facts."""

from __future__ import annotations

import difflib
import ipaddress
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.endpoints import PORTS, endpoint
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.problems import Problem

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CONTROL_GROUPS = ("etcd", "etcd_events", "kube_apiserver", "api_loadbalancer")
NODE_GROUPS = ("gpu_nodes", "system_nodes")
KNOWN_GROUPS = (*CONTROL_GROUPS, *NODE_GROUPS, "monitoring")
REQUIRED_GROUPS = ("etcd", "etcd_events", "kube_apiserver")
BUILT_IN_GROUPS = ("all", "ungrouped")
# Raft wants an odd number; etcd's own advice stops at seven (etcd FAQ, "maximum cluster size").
ETCD_SIZES = (1, 3, 5, 7)
# The plan for standalone API servers: one per 1,500 nodes, at least two.
NODES_PER_API_SERVER = 1500
# Each set is of one host, so its ports differ.
HOST_PORTS = (
    ("fleet_etcd_client_port", "fleet_etcd_peer_port", "fleet_etcd_metrics_port"),
    ("fleet_api_port",),
    ("fleet_api_server_port",),
)
# A label of RFC 1123: a host's name is also its Node's name and stands in certificates.
LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
# Linux's limit for a hostname, in characters.
HOSTNAME_MAX = 64
SIMILAR = 0.8


@dataclass(frozen=True)
class Inventory:
    """What the rules look at. Values may be of any type: wrong ones are findings, not errors."""

    groups: Mapping[str, Sequence[str]]
    addresses: Mapping[str, Any] = field(default_factory=dict)
    pod_ranges: Mapping[str, Any] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)
    patterns: Sequence[str] = ()

    @property
    def hosts(self) -> list[str]:
        """Every host once, in order."""
        return list(dict.fromkeys(itertools.chain(self.groups.get("all", ()), *self.groups.values())))

    def members(self, *groups: str) -> list[str]:
        """The hosts of these groups, each once."""
        return list(dict.fromkeys(host for group in groups for host in self.groups.get(group, ())))


def check(inventory: Inventory) -> list[Problem]:
    """Every problem of the inventory by its own rules."""
    rules = (
        group_names,
        group_sizes,
        exclusive_groups,
        homeless_hosts,
        host_names,
        fleet_ranges,
        fleet_ports,
        api_address,
        host_addresses,
        pod_ranges,
        planned_nodes,
        play_patterns,
    )
    return [problem for rule in rules for problem in rule(inventory)]


def group_names(inventory: Inventory) -> Iterable[Problem]:
    """Groups that must exist, and groups whose name looks like a misspelt one."""
    for group in REQUIRED_GROUPS:
        if not inventory.groups.get(group):
            yield Problem(f"the group {group} has no host", f"list at least one host under {group}")
    if not inventory.members(*NODE_GROUPS):
        yield Problem("no host is a node", "list hosts under gpu_nodes or system_nodes")
    for group in inventory.groups:
        if group in KNOWN_GROUPS or group in BUILT_IN_GROUPS:
            continue
        near = difflib.get_close_matches(group, KNOWN_GROUPS, n=1, cutoff=SIMILAR)
        if near:
            yield Problem(f"the group {group} is not one that Muster uses", f"did you mean {near[0]}?")


def group_sizes(inventory: Inventory) -> Iterable[Problem]:
    """Odd etcd sizes; no single member without permission; enough API servers."""
    alone = inventory.fleet.get("fleet_allow_single_members") is True
    for group in ("etcd", "etcd_events"):
        members = inventory.groups.get(group, ())
        if members and len(members) not in ETCD_SIZES:
            yield Problem(
                f"the group {group} has {len(members)} hosts, but an etcd cluster has 1, 3, 5 or 7",
                f"add or remove hosts under {group}",
                tuple(members),
            )
    if len(inventory.groups.get("etcd", ())) == 1 and not alone:
        yield Problem(
            "the group etcd has a single host, so that one lost machine loses the cluster",
            "list three, or set fleet_allow_single_members: true",
            tuple(inventory.groups["etcd"]),
        )
    servers = inventory.groups.get("kube_apiserver", ())
    planned = _whole(inventory.fleet.get("fleet_planned_nodes"))
    wanted = max(1 if alone else 2, -(-(planned or 0) // NODES_PER_API_SERVER))
    if servers and len(servers) < wanted:
        yield Problem(
            f"the group kube_apiserver has {len(servers)} of the {wanted} hosts that the plan needs "
            f"(one per {NODES_PER_API_SERVER} nodes, at least two)",
            f"list {wanted} hosts under kube_apiserver"
            + ("" if wanted > 2 else ", or set fleet_allow_single_members: true"),
            tuple(servers),
        )
    if len(servers) > 1 and not inventory.groups.get("api_loadbalancer"):
        address = inventory.fleet.get("fleet_api_address")
        if address in [inventory.addresses.get(host) for host in servers]:
            yield Problem(
                "fleet_api_address is the address of one API server of several",
                "give a balancer's address, or list a host under api_loadbalancer",
                variable="fleet_api_address",
            )


def exclusive_groups(inventory: Inventory) -> Iterable[Problem]:
    """A host in two groups that must not share one."""
    exclusive = (*CONTROL_GROUPS, *NODE_GROUPS)
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host in inventory.members(*exclusive):
        groups = tuple(group for group in exclusive if host in inventory.groups.get(group, ()))
        if len(groups) > 1:
            found[groups].append(host)
    for host in inventory.members("monitoring"):
        groups = tuple(group for group in NODE_GROUPS if host in inventory.groups.get(group, ()))
        if groups:
            found[("monitoring", *groups)].append(host)
    for groups, hosts in found.items():
        yield Problem(f"is in the exclusive groups {' and '.join(groups)}", "keep it in one of them", tuple(hosts))


def homeless_hosts(inventory: Inventory) -> Iterable[Problem]:
    """A host that no group gives a job."""
    placed = set(inventory.members(*KNOWN_GROUPS))
    hosts = tuple(host for host in inventory.hosts if host not in placed)
    if hosts:
        yield Problem("is in no group of Muster's", f"list it under one of {', '.join(KNOWN_GROUPS)}", hosts)


def host_names(inventory: Inventory) -> Iterable[Problem]:
    """Names that cannot be a hostname, a Node's name and a name in a certificate at once."""
    for host in inventory.hosts:
        if _address(host) is not None:
            yield Problem(
                "the host's name is an address", "name the host, and give the address as ansible_host", (host,)
            )
        elif len(host) > HOSTNAME_MAX or not all(LABEL.match(label) for label in host.split(".")):
            yield Problem(
                "is not a valid host name (RFC 1123, lower case, at most 64 characters)",
                "rename the host: letters a-z, digits and hyphens",
                (host,),
            )


def fleet_ranges(inventory: Inventory) -> Iterable[Problem]:
    """Pod and service ranges that are no ranges or overlap."""
    networks: dict[str, Network] = {}
    for name in ("fleet_pod_cidr", "fleet_service_cidr"):
        value = inventory.fleet.get(name)
        if value is None:
            continue
        network = _network(value)
        if network is None:
            yield Problem(
                f"{name} {value!r} is not an IP range",
                "write network/prefix without host bits, like 10.64.0.0/12",
                variable=name,
            )
        else:
            networks[name] = network
    if len(networks) == 2 and _overlap(networks["fleet_pod_cidr"], networks["fleet_service_cidr"]):
        yield Problem(
            f"fleet_service_cidr {networks['fleet_service_cidr']} overlaps fleet_pod_cidr {networks['fleet_pod_cidr']}",
            "choose ranges that share no address",
            variable="fleet_service_cidr",
        )


def fleet_ports(inventory: Inventory) -> Iterable[Problem]:
    """Ports that are none, or that two listeners of one host share."""
    for names in HOST_PORTS:
        taken: dict[int, str] = {}
        for name in names:
            port = _whole(inventory.fleet.get(name))
            if port is None:
                continue
            if port not in PORTS:
                yield Problem(
                    f"{name} is {port}, which is not a port", f"give one from {PORTS[0]} to {PORTS[-1]}", variable=name
                )
            elif port in taken:
                yield Problem(f"{name} is {port}, which {taken[port]} is too", "give each its own port", variable=name)
            taken.setdefault(port, name)


def api_address(inventory: Inventory) -> Iterable[Problem]:
    """An address of the API that no URL can be made of."""
    value = inventory.fleet.get("fleet_api_address")
    try:
        if isinstance(value, str):
            endpoint(value, PORTS[0])
    except FleetError as error:
        message, _, fix = str(error).partition("; ")
        yield Problem(f"fleet_api_address {message}", fix, variable="fleet_api_address")


def host_addresses(inventory: Inventory) -> Iterable[Problem]:
    """Addresses that are none, are used twice, or lie in a range of pods or services."""
    owners: dict[object, list[str]] = defaultdict(list)
    for host in inventory.hosts:
        value = inventory.addresses.get(host)
        address = _address(value)
        if address is None:
            yield Problem(
                f"fleet_address {value!r} is not an IP address" if value else "has no fleet_address",
                "set ansible_host or fleet_address to the address by which other hosts reach it",
                (host,),
                variable="fleet_address",
            )
            continue
        owners[address].append(host)
        for name in ("fleet_pod_cidr", "fleet_service_cidr"):
            network = _network(inventory.fleet.get(name))
            if network is not None and address in network:
                yield Problem(
                    f"fleet_address {address} lies in {name} {network}",
                    "choose a range that holds no host",
                    (host,),
                    variable=name,
                )
    for address, hosts in owners.items():
        if len(hosts) > 1:
            yield Problem(
                f"have the same fleet_address {address}",
                "give each its own",
                tuple(hosts),
                variable="fleet_address",
            )


def pod_ranges(inventory: Inventory) -> Iterable[Problem]:
    """Each node's pod range: there, inside fleet_pod_cidr, shared with nobody."""
    whole = _network(inventory.fleet.get("fleet_pod_cidr"))
    found: list[tuple[Network, str]] = []
    for host in inventory.members(*NODE_GROUPS):
        value = inventory.pod_ranges.get(host)
        network = _network(value)
        if network is None:
            yield Problem(
                f"pod_network_range {value!r} is not an IP range" if value else "is a node without pod_network_range",
                "give the node its own range inside fleet_pod_cidr, like 10.64.1.0/24",
                (host,),
                variable="pod_network_range",
            )
            continue
        if whole is not None and not _inside(network, whole):
            yield Problem(
                f"pod_network_range {network} is not inside fleet_pod_cidr {whole}",
                "choose a range inside it",
                (host,),
                variable="pod_network_range",
            )
        found.append((network, host))
    # In order of the first address an overlap is always with the widest range seen so far.
    found.sort(key=lambda item: (item[0].version, int(item[0].network_address), item[0].prefixlen))
    widest: tuple[Network, str] | None = None
    for network, host in found:
        if widest is not None and _overlap(widest[0], network):
            yield Problem(
                f"pod_network_range {network} overlaps {widest[0]} of {widest[1]}",
                "give each node its own range",
                (host,),
                variable="pod_network_range",
            )
        if widest is None or _end(network) > _end(widest[0]):
            widest = (network, host)


def planned_nodes(inventory: Inventory) -> Iterable[Problem]:
    """More nodes than planned: the control plane is sized from the plan."""
    planned = _whole(inventory.fleet.get("fleet_planned_nodes"))
    nodes = len(inventory.members(*NODE_GROUPS))
    if planned is not None and planned < nodes:
        yield Problem(
            f"fleet_planned_nodes is {planned}, but the inventory has {nodes} nodes",
            f"set it to {nodes} or more",
            variable="fleet_planned_nodes",
        )


def play_patterns(inventory: Inventory) -> Iterable[Problem]:
    """Words of the plays' host patterns that name neither a group nor a host."""
    known = {*KNOWN_GROUPS, *BUILT_IN_GROUPS, *inventory.groups, *inventory.hosts, "localhost"}
    for pattern in dict.fromkeys(inventory.patterns):
        for word in re.split(r"[:,]\s*", pattern):
            name = word.lstrip("!&")
            if name and name not in known and not re.search(r"[*?\[\]~{]", name):
                yield Problem(
                    f"a play is for {name!r}, which is neither a group nor a host", "correct the play's hosts line"
                )


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _address(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(str(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def _network(value: Any) -> Network | None:
    try:
        return ipaddress.ip_network(str(value)) if isinstance(value, str) and "/" in value else None
    except ValueError:
        return None


def _end(network: Network) -> tuple[int, int]:
    return network.version, int(network.broadcast_address)


def _overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)


def _inside(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.network_address in outer and inner.prefixlen >= outer.prefixlen
