"""The rules of routes by BGP: one way for all nodes, peers that are there, numbers that are some. Pure functions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import (
    NODE_GROUPS,
    UNRESOLVED,
    Inventory,
    Network,
    address_of,
    network_of,
    whole,
)
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem

MODE, ROUTES = "pod_network_routing", "pod_network_manage_routes"
ASN, PEERS = "pod_network_bgp_asn", "pod_network_bgp_peers"
REFLECTORS, NODES = "pod_network_bgp_reflectors", "pod_network_bgp_nodes"
# What the inventory's reader reads of each host for these rules.
VARIABLES = (MODE, ROUTES, ASN, PEERS, REFLECTORS, NODES)
# RFC 6793, RFC 7607 (0), RFC 4893 (23456), RFC 7300 (the last ones of both sizes).
RESERVED_ASNS = (0, 23456, 65535, 4294967295)
LAST_ASN = 4294967295
# Ansible's words for no.
FALSE = ("false", "no", "off", "n", "f", "0", "0.0")


def pod_routing(inventory: Inventory) -> Iterable[Problem]:
    """Every problem of the way in which nodes learn each other's ranges."""
    values = inventory.pod_routing
    nodes = inventory.members(*NODE_GROUPS)
    mode = values.get(MODE, {})
    by_bgp = [host for host in nodes if mode.get(host) == "bgp"]
    if not by_bgp:
        return
    others = [host for host in nodes if mode.get(host) not in ("bgp", UNRESOLVED)]
    if others:
        fewer, more = sorted((others, by_bgp), key=len)
        yield Problem(
            f"{MODE} is {mode.get(fewer[0], 'static')}, but on {len(more)} nodes {mode.get(more[0], 'static')}: nodes "
            "of the one do not hear of new ones of the other",
            "set it once, in group_vars/all.yml",
            tuple(fewer),
            variable=MODE,
        )
    yield from _own_settings(values, by_bgp)
    yield from _peers(inventory, by_bgp)
    yield from _reflectors(inventory, by_bgp)
    yield from _lengths(inventory, by_bgp)


def _own_settings(values: Mapping[str, Mapping[str, Any]], nodes: Sequence[str]) -> Iterable[Problem]:
    """What a node says about itself."""
    for value, hosts in _alike(values.get(ROUTES, {}), nodes):
        if str(value).lower() in FALSE:
            yield Problem(
                f"{ROUTES} is false, but {MODE} is bgp, which sets routes",
                f"leave {ROUTES} out, or set {MODE} to static where your routers alone know the ranges",
                hosts,
                variable=ROUTES,
            )
    for value, hosts in _alike(values.get(ASN, {}), nodes):
        if value is not UNRESOLVED and not _is_asn(value):
            yield Problem(f"{ASN} is {value!r}, which is no number of an autonomous system", _ASN_FIX, hosts, ASN)
    without = [host for host in nodes if not values.get(PEERS, {}).get(host) and not _of(values, REFLECTORS, host)]
    if without:
        yield Problem(
            f"{MODE} is bgp, but {PEERS} and {REFLECTORS} are empty, so nobody would hear of the node",
            f"give the leaf switches of each rack in {PEERS}, or two nodes in {REFLECTORS}",
            tuple(without),
            variable=MODE,
        )


def _peers(inventory: Inventory, nodes: Sequence[str]) -> Iterable[Problem]:
    """Routers beside the nodes."""
    owners = {address_of(inventory.addresses.get(host)): host for host in inventory.hosts}
    for value, hosts in _alike(inventory.pod_routing.get(PEERS, {}), nodes):
        seen = set()
        for peer in value if isinstance(value, list) else ():
            given = peer if isinstance(peer, Mapping) else {}
            address = address_of(given.get("address"))
            if address is None or address.version != 4:
                message, fix = f"{given.get('address')!r} is no IPv4 address", "give the router's in the node's network"
            elif address in owners:
                message = f"{address} is {owners[address]}, a host of the fleet"
                fix = f"name it in {REFLECTORS}, or give the address of a router"
            elif address in seen:
                message, fix = f"{address} stands twice", "name each router once"
            elif not _is_asn(given.get("asn")):
                message, fix = f"{address} has asn {given.get('asn')!r}, which is no number of one", _ASN_FIX
            else:
                seen.add(address)
                continue
            yield Problem(f"{PEERS}: {message}", fix, hosts, variable=PEERS)


def _reflectors(inventory: Inventory, nodes: Sequence[str]) -> Iterable[Problem]:
    """Nodes that tell the others, and from whom they hear."""
    values = inventory.pod_routing
    groups = list(_alike(values.get(REFLECTORS, {}), nodes))
    for value, hosts in groups:
        missing = [name for name in value if name not in nodes] if isinstance(value, list) else []
        for name in missing:
            known = "is no node with BGP" if name in inventory.hosts else "is no host of the inventory"
            yield Problem(
                f"{REFLECTORS} names {name}, which {known}",
                "name nodes of system_nodes or gpu_nodes that take part",
                hosts,
                variable=REFLECTORS,
            )
    if len(groups) > 1:
        fewest = min(groups, key=lambda group: len(group[1]))
        yield Problem(
            f"{REFLECTORS} is another one than on other nodes, so the two parts would not hear of each other",
            "set it once, in group_vars/all.yml",
            fewest[1],
            variable=REFLECTORS,
        )
    reflected = [host for host in nodes if _of(values, REFLECTORS, host)]
    numbers = list(_alike(values.get(ASN, {}), reflected))
    if len(numbers) > 1:
        number, hosts = min(numbers, key=lambda one: len(one[1]))
        message = f"{ASN} is {number!r}, but reflectors and their nodes have one number"
        yield Problem(message, "set it once, in group_vars/all.yml", hosts, variable=ASN)
    yield from _listened_to(inventory, reflected)


def _listened_to(inventory: Inventory, nodes: Sequence[str]) -> Iterable[Problem]:
    """The networks that reflectors take sessions from hold all nodes."""
    for value, hosts in _alike(inventory.pod_routing.get(NODES, {}), nodes):
        networks: list[Network] = []
        for one in value if isinstance(value, list) else ():
            network = network_of(one)
            if network is None or network.version != 4:
                yield Problem(f"{NODES}: {one!r} is no IPv4 network", "write it like 10.20.0.0/16", hosts, NODES)
                return
            networks.append(network)
        known = {host: address_of(inventory.addresses.get(host)) for host in hosts}
        outside = [host for host, at in known.items() if at and not any(at in network for network in networks)]
        if outside:
            yield Problem(
                f"fleet_address {known[outside[0]]} lies in none of {NODES}, so no reflector would take its session",
                f"add its network to {NODES} ({', '.join(map(str, networks)) or 'empty'})",
                tuple(outside),
                variable=NODES,
            )


def _lengths(inventory: Inventory, nodes: Sequence[str]) -> Iterable[Problem]:
    """Ranges of one length: another one is refused wherever it is announced."""
    by_length: dict[int, list[str]] = defaultdict(list)
    for host in nodes:
        network = network_of(inventory.pod_ranges.get(host))
        if network is not None:
            by_length[network.prefixlen].append(host)
    if len(by_length) > 1:
        usual = max(by_length, key=lambda length: len(by_length[length]))
        for length, hosts in by_length.items():
            if length != usual:
                others = len(by_length[usual])
                yield Problem(
                    f"pod_network_range is a /{length}, but those of {others} nodes with BGP are /{usual}",
                    "give all nodes ranges of one length: announcements of another one are refused",
                    tuple(hosts),
                    variable="pod_network_range",
                )


def _alike(values: Mapping[str, Any], hosts: Iterable[str]) -> Iterable[tuple[Any, tuple[str, ...]]]:
    """Each value with the hosts that have it."""
    found: dict[str, tuple[Any, list[str]]] = {}
    for host in hosts:
        value = values.get(host)
        found.setdefault(json.dumps(value, default=str, sort_keys=True), (value, []))[1].append(host)
    return [(value, tuple(members)) for value, members in found.values()]


def _of(values: Mapping[str, Mapping[str, Any]], name: str, host: str) -> Any:
    return values.get(name, {}).get(host)


def _is_asn(value: Any) -> bool:
    number = whole(value)
    return not isinstance(value, bool) and number is not None and 0 < number < LAST_ASN and number not in RESERVED_ASNS


_ASN_FIX = "give a number from 1 to 4294967294, a private one from 64512 to 65534 or from 4200000000 on"
