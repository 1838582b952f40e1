"""How the fleet's hosts reach each other: addresses, endpoints, the resolvers of a node. Pure functions."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

Hostvars = Mapping[str, Mapping[str, Any]]

# A DNS name by RFC 1123. The last label is no number: 198.18.7.300 is a mistyped address.
DNS_NAME = re.compile(
    r"(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*(?![0-9]+$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE
)
PORTS = range(1, 65536)
# What glibc's resolver reads of resolv.conf (MAXNS), and kubelet of clusterDNS.
NAME_SERVERS_MAX = 3


def endpoint(address: str, port: int | str, scheme: str = "https") -> str:
    """`https://ADDRESS:PORT`, or `ADDRESS:PORT` without a scheme; an IPv6 address is put into brackets.

    Raises FleetError for an address that is neither an IP address nor a name, and for a port that is none.
    """
    host, number = _url_host(str(address)), _port(port)
    return f"{scheme}://{host}:{number}" if scheme else f"{host}:{number}"


def endpoints(addresses: Mapping[str, str], port: int | str, scheme: str = "https") -> dict[str, str]:
    """The endpoint of each named address, in the order given."""
    return {str(name): endpoint(address, port, scheme) for name, address in addresses.items()}


def addresses(hosts: Iterable[str], hostvars: Hostvars) -> dict[str, str]:
    """`{host: address}` in the order given. Raises FleetError for a host without an address."""
    found: dict[str, str] = {}
    for host in hosts:
        if host not in hostvars:
            raise FleetError(f"{host} is not in the inventory; add it, or correct the name")
        variables = hostvars[host]
        address = variables.get("fleet_address") or variables.get("ansible_host")
        if not address:
            raise FleetError(f"{host} has neither fleet_address nor ansible_host; set ansible_host")
        found[str(host)] = str(address)
    return found


def host_options(hosts: Iterable[str], hostvars: Hostvars, fields: Mapping[str, str]) -> list[dict[str, Any]]:
    """`name` and the `fields` of each host; a field is the path of a variable, such as `result.message`.

    What a host does not have, or has empty or false, is left out, so that the default of a module's option holds.
    """
    found = []
    for host in hosts:
        # Each look into hostvars makes Ansible put the host's variables together anew.
        variables = hostvars[host]
        values = {key: _value(variables, path) for key, path in fields.items()}
        found.append({"name": str(host)} | {key: value for key, value in values.items() if value})
    return found


def name_servers(servers: Iterable[str], node: str) -> list[str]:
    """The resolvers of one node: at most three of `servers`, beginning with one that its name chooses.

    Resolvers ask the first name server first: with one order for all nodes, the first server would serve them all.
    """
    known = list(servers)
    if not known:
        return []
    first = int(hashlib.sha256(node.encode()).hexdigest()[:6], 16) % len(known)
    return (known[first:] + known[:first])[:NAME_SERVERS_MAX]


def _url_host(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        if DNS_NAME.fullmatch(address):
            return address
        raise FleetError(
            f"{address!r} is neither an IP address nor a host name; write it alone, without scheme, brackets or port"
        ) from None
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.scope_id:
        raise FleetError(f"{address} names a link of one host, so others cannot use it; give a global address")
    return f"[{parsed}]"


def _port(port: int | str) -> int:
    try:
        number = int(str(port))
    except ValueError:
        number = 0
    if number not in PORTS:
        raise FleetError(f"{port!r} is not a port; give a number from {PORTS[0]} to {PORTS[-1]}")
    return number


def _value(variables: Mapping[str, Any], path: str) -> Any:
    found: Any = variables
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
