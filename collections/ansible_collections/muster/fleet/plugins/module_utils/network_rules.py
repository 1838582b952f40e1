"""The rules of addresses, ranges and ports. Pure functions, no facts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.muster.fleet.plugins.module_utils.endpoints import PORTS, endpoint
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.inventory_data import (
    NODE_GROUPS,
    UNRESOLVED,
    Inventory,
    Network,
    address_of,
    network_of,
    whole,
)
from ansible_collections.muster.fleet.plugins.module_utils.placeholders import placeholders
from ansible_collections.muster.fleet.plugins.module_utils.problems import Problem

from gpu_burnin.system.host_names import SHOWN

# Each set is of one host, so its ports differ.
HOST_PORTS = (
    ("fleet_etcd_client_port", "fleet_etcd_peer_port", "fleet_etcd_metrics_port"),
    ("fleet_api_port",),
    ("fleet_api_server_port",),
)


def fleet_ranges(inventory: Inventory) -> Iterable[Problem]:
    """Pod and service ranges that are no ranges or overlap."""
    networks: dict[str, Network] = {}
    for name in ("fleet_pod_cidr", "fleet_service_cidr"):
        value = inventory.fleet.get(name)
        if value is None:
            continue
        network = network_of(value)
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
            port = whole(inventory.fleet.get(name))
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


def shared_address(inventory: Inventory) -> Iterable[Problem]:
    """An address that several balancers cannot share: a name, or one that a host has for itself."""
    balancers = inventory.groups.get("api_loadbalancer", ())
    value = inventory.fleet.get("fleet_api_address")
    if len(balancers) < 2 or not isinstance(value, str) or any(api_address(inventory)):
        return
    shared = f"the {len(balancers)} hosts of api_loadbalancer share"
    fix = "give an address of the balancers' network that no machine has: they share it"
    if address_of(value) is None:
        yield Problem(
            f"fleet_api_address {value!r} is a name, but {shared} an address",
            fix,
            variable="fleet_api_address",
        )
    owners = [host for host in inventory.hosts if inventory.addresses.get(host) == value]
    if owners:
        yield Problem(
            f"fleet_api_address is the address of {', '.join(owners)}, but {shared} it",
            fix,
            variable="fleet_api_address",
        )


def host_addresses(inventory: Inventory) -> Iterable[Problem]:
    """Addresses that are missing or none, are used twice, or are a node's and IPv6."""
    owners: dict[object, list[str]] = defaultdict(list)
    nodes = frozenset(inventory.members(*NODE_GROUPS))
    # Without ansible_host and fleet_address a host is known by its name (the default of fleet_address).
    without = [host for host in inventory.hosts if inventory.addresses.get(host) in (None, "", host)]
    if without:
        yield Problem(
            "no address",
            "set ansible_host or fleet_address to the address by which other hosts reach it"
            + _formula(without, "ansible_host", "nth_address('10.20.0.0/16')"),
            tuple(without),
            variable="ansible_host",
        )
    for host in inventory.hosts:
        value = inventory.addresses.get(host)
        address = address_of(value)
        if address is None:
            if value not in (None, "", host, UNRESOLVED):
                yield Problem(
                    f"fleet_address {value!r} is not an IP address",
                    "set ansible_host or fleet_address to the address by which other hosts reach it",
                    (host,),
                    variable=_variable(inventory, host),
                )
            continue
        if address.version == 6 and host in nodes:
            yield Problem(
                f"fleet_address {address} is IPv6, but the pod network routes IPv4 between nodes",
                "give the node an IPv4 address",
                (host,),
                variable=_variable(inventory, host),
            )
        owners[address].append(host)
    for address, hosts in owners.items():
        if len(hosts) > 1:
            yield Problem(
                f"have the same fleet_address {address}",
                "give each its own",
                tuple(hosts),
                variable=_variable(inventory, hosts[0]),
            )


def hosts_in_ranges(inventory: Inventory) -> Iterable[Problem]:
    """Hosts whose addresses lie in a range of pods or services."""
    for name in ("fleet_pod_cidr", "fleet_service_cidr"):
        network = network_of(inventory.fleet.get(name))
        if network is None:
            continue
        known = {host: address_of(inventory.addresses.get(host)) for host in inventory.hosts}
        inside = {host: address for host, address in known.items() if address is not None and address in network}
        if inside:
            first = next(iter(inside.values()))
            one = f"fleet_address {first} lies in {name} {network}"
            yield Problem(
                one if len(inside) == 1 else f"have a fleet_address in {name} {network}, the first {first}",
                "choose a range that holds no host",
                tuple(inside),
                variable=name,
            )


def bmc_addresses(inventory: Inventory) -> Iterable[Problem]:
    """BMCs of two machines, or a host's own address: an order to the one would switch the other off."""
    owners: dict[tuple[object, object], list[str]] = defaultdict(list)
    hosts_at: dict[object, list[str]] = defaultdict(list)
    for host in inventory.hosts:
        hosts_at[_place(inventory.addresses.get(host))].append(host)
    for host, value in inventory.bmc_addresses.items():
        place = _place(value)
        if not place:
            continue
        owners[place, inventory.bmc_systems.get(host) or ""].append(host)
        if taken := hosts_at.get(place):
            yield Problem(
                f"repair_bmc_address {value} is the address of {taken[0]} itself",
                "give the address of its BMC",
                (host,),
                variable="repair_bmc_address",
            )
    for (place, _), hosts in owners.items():
        if len(hosts) > 1:
            yield Problem(
                f"have the same repair_bmc_address {place}",
                "give each its own, or repair_bmc_system for machines behind one BMC",
                tuple(hosts),
                variable="repair_bmc_address",
            )


def _place(value: Any) -> object:
    """Who is meant by an address, with or without scheme and port; "" for none."""
    if not isinstance(value, str):
        return ""
    try:
        name = urlsplit(value if "://" in value else f"//{value}").hostname or ""
    except ValueError:
        name = ""
    return address_of(value) or address_of(name) or name.lower()


def host_placeholders(inventory: Inventory) -> Iterable[Problem]:
    """Hosts that Ansible would look for at an address of the example."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, value in inventory.ansible_hosts.items():
        for finding in placeholders("ansible_host", value):
            found[finding].append(host)
    for (message, fix), hosts in found.items():
        yield Problem(message, fix, tuple(hosts), variable="ansible_host")


def pod_ranges(inventory: Inventory) -> Iterable[Problem]:
    """Each node's pod range: there, inside fleet_pod_cidr, shared with nobody."""
    pods = network_of(inventory.fleet.get("fleet_pod_cidr"))
    nodes = inventory.members(*NODE_GROUPS)
    without = [host for host in nodes if inventory.pod_ranges.get(host) in (None, "")]
    if without:
        yield Problem(
            "no pod_network_range, which each node needs",
            "give each node its own range inside fleet_pod_cidr, like 10.64.1.0/24"
            + _formula(without, "pod_network_range", "nth_range(fleet_pod_cidr, 24)"),
            tuple(without),
            variable="pod_network_range",
        )
    found: list[tuple[Network, str]] = []
    for host in nodes:
        value = inventory.pod_ranges.get(host)
        network = network_of(value)
        if network is None:
            if value not in (None, "", UNRESOLVED):
                yield Problem(
                    f"pod_network_range {value!r} is not an IP range",
                    "give the node its own range inside fleet_pod_cidr, like 10.64.1.0/24",
                    (host,),
                    variable="pod_network_range",
                )
            continue
        if pods is not None and not _inside(network, pods):
            yield Problem(
                f"pod_network_range {network} is not inside fleet_pod_cidr {pods}",
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


@dataclass(frozen=True)
class PodRoom:
    """For how many nodes fleet_pod_cidr has a range of the size that most nodes have; wider ranges take `more`."""

    pods: Network
    prefix: int
    more: int

    @property
    def room(self) -> int:
        """How many ranges."""
        return int(2 ** (self.prefix - self.pods.prefixlen)) - self.more


def pod_room(inventory: Inventory) -> PodRoom | None:
    """The room for pod ranges; None where the fleet's range, or every node's, is missing or wrong."""
    pods = network_of(inventory.fleet.get("fleet_pod_cidr"))
    given = [network_of(inventory.pod_ranges.get(host)) for host in inventory.members(*NODE_GROUPS)]
    ranges = [network for network in given if network is not None and pods is not None and _inside(network, pods)]
    if pods is None or not ranges:
        return None
    prefix = Counter(network.prefixlen for network in ranges).most_common(1)[0][0]
    size = 2 ** (pods.max_prefixlen - prefix)
    # A wider range takes the place of several.
    return PodRoom(pods, prefix, sum(-(-network.num_addresses // size) - 1 for network in ranges))


def planned_ranges(inventory: Inventory) -> Iterable[Problem]:
    """fleet_pod_cidr must hold a range for every planned node, of the size that most nodes have."""
    planned, found = whole(inventory.fleet.get("fleet_planned_nodes")), pod_room(inventory)
    if planned is None or found is None or planned <= found.room:
        return
    pods, prefix, more = found.pods, found.prefix, found.more
    less = f", less {more} that wider ones take" if more else ""
    yield Problem(
        f"fleet_pod_cidr {pods} has room for {found.room} pod ranges of /{prefix} "
        f"(2^({prefix} - {pods.prefixlen}){less}), but fleet_planned_nodes is {planned}",
        f"take a /{prefix - (planned + more - 1).bit_length()} or wider, give nodes smaller ranges, or plan fewer",
        variable="fleet_pod_cidr",
    )


def _variable(inventory: Inventory, host: str) -> str:
    """The variable that gives the host its address."""
    is_same = inventory.addresses.get(host) == inventory.ansible_hosts.get(host)
    return "ansible_host" if is_same else "fleet_address"


def _formula(hosts: Sequence[str], name: str, expression: str) -> str:
    """The variable for all hosts of a range at once, where more miss it than anybody writes down."""
    if len(hosts) <= SHOWN:
        return ""
    return f'; for a range of hosts, in group_vars: {name}: "{{{{ inventory_hostname | muster.fleet.{expression} }}}}"'


def _end(network: Network) -> tuple[int, int]:
    return network.version, int(network.broadcast_address)


def _overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and one.overlaps(other)


def _inside(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.network_address in outer and inner.prefixlen >= outer.prefixlen
