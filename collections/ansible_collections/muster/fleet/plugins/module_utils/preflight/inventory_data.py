"""The inventory as its rules see it: plain data, and how to read the values in it."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

CONTROL_GROUPS = ("etcd", "etcd_events", "kube_apiserver", "api_loadbalancer")
NODE_GROUPS = ("gpu_nodes", "system_nodes")
KNOWN_GROUPS = (*CONTROL_GROUPS, *NODE_GROUPS, "monitoring")

# The value of a variable whose template cannot be resolved, which is told where variables are checked.
UNRESOLVED = object()


@dataclass(frozen=True)
class Inventory:
    """What the rules look at. Values may be of any type: wrong ones are findings, not errors."""

    groups: Mapping[str, Sequence[str]]
    addresses: Mapping[str, Any] = field(default_factory=dict)
    pod_ranges: Mapping[str, Any] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)
    patterns: Sequence[str] = ()
    ansible_hosts: Mapping[str, Any] = field(default_factory=dict)
    # Files and folders under group_vars, as shown, with the group that each is for.
    group_files: Mapping[str, str] = field(default_factory=dict)
    # The same of host_vars and hosts.
    host_files: Mapping[str, str] = field(default_factory=dict)
    # BMCs of hosts, and the machine of each behind one that has several.
    bmc_addresses: Mapping[str, Any] = field(default_factory=dict)
    bmc_systems: Mapping[str, Any] = field(default_factory=dict)
    # {variable of the one DaemonSet that serves all GPU nodes: {host: value}}.
    device_plugin: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # {variable of how nodes learn each other's ranges: {host: value}}.
    pod_routing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Where each host stands, and what the burn-in expects of it.
    places: Mapping[str, Any] = field(default_factory=dict)
    expects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hosts(self) -> list[str]:
        """Every host once, in order."""
        return list(dict.fromkeys(itertools.chain(self.groups.get("all", ()), *self.groups.values())))

    def members(self, *groups: str) -> list[str]:
        """The hosts of these groups, each once."""
        return list(dict.fromkeys(host for group in groups for host in self.groups.get(group, ())))


def whole(value: Any) -> int | None:
    """The value as a whole number, or None when it is none."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def address_of(value: Any) -> Address | None:
    """The value as an IP address, or None when it is none."""
    try:
        return ipaddress.ip_address(str(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def network_of(value: Any) -> Network | None:
    """The value as a range of addresses with its prefix and without host bits, or None when it is none."""
    try:
        return ipaddress.ip_network(str(value)) if isinstance(value, str) and "/" in value else None
    except ValueError:
        return None
