"""The inventory's own rules: groups, sizes, names, and those of its networks. Pure functions, no facts."""

from __future__ import annotations

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Iterable

from ansible_collections.muster.fleet.plugins.module_utils.preflight.calendar import VARIABLE as CALENDAR
from ansible_collections.muster.fleet.plugins.module_utils.preflight.calendar import calendar
from ansible_collections.muster.fleet.plugins.module_utils.preflight.feed_rules import feed_limits
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import (
    CONTROL_GROUPS,
    KNOWN_GROUPS,
    NODE_GROUPS,
    UNRESOLVED,
    Inventory,
    address_of,
    whole,
)
from ansible_collections.muster.fleet.plugins.module_utils.preflight.network_rules import (
    api_address,
    bmc_addresses,
    fleet_ports,
    fleet_ranges,
    host_addresses,
    host_placeholders,
    hosts_in_ranges,
    planned_ranges,
    pod_ranges,
    shared_address,
)
from ansible_collections.muster.fleet.plugins.module_utils.preflight.pod_routing_rules import pod_routing
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.module_utils.preflight.team_rules import host_places, teams
from ansible_collections.muster.fleet.plugins.module_utils.preflight.traffic_rules import traffic

from gpu_burnin.admission.calendar import CalendarError
from gpu_burnin.fleet.plan.sizing import NODES_PER_API_SERVER, api_servers
from gpu_burnin.system.host_names import name_hosts

REQUIRED_GROUPS = ("etcd", "etcd_events", "kube_apiserver")
BUILT_IN_GROUPS = ("all", "ungrouped")
# Raft wants an odd number; etcd's own advice stops at seven (etcd FAQ, "maximum cluster size").
ETCD_SIZES = (1, 3, 5, 7)
# A label of RFC 1123: a host's name is also its Node's name and stands in certificates.
LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
# Linux's limit for a hostname, in characters.
HOSTNAME_MAX = 64
SIMILAR = 0.8


def check_sizes(inventory: Inventory) -> list[Problem]:
    """The problems of the rules about numbers and ranges alone, for an inventory that is still being written."""
    rules = (group_sizes, fleet_ranges, hosts_in_ranges, pod_ranges, planned_ranges, planned_nodes)
    return [problem for rule in rules for problem in rule(inventory)]


def check(inventory: Inventory) -> list[Problem]:
    """Every problem of the inventory by its own rules."""
    rules = (
        group_names,
        group_files,
        host_files,
        group_sizes,
        exclusive_groups,
        homeless_hosts,
        host_names,
        fleet_ranges,
        fleet_ports,
        api_address,
        shared_address,
        host_addresses,
        hosts_in_ranges,
        bmc_addresses,
        host_placeholders,
        pod_ranges,
        pod_routing,
        planned_ranges,
        planned_nodes,
        maintenance_windows,
        one_device_plugin,
        host_places,
        feed_limits,
        teams,
        traffic,
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
        if meant := _meant_by(group):
            yield Problem(f"the group {group} is not one that Muster uses", f"did you mean {meant}?")


def _meant_by(group: str) -> str:
    """The group of Muster's whose misspelt name this looks like; a part of one (gpu_nodes_west) or a second is none."""
    if group in KNOWN_GROUPS or group in BUILT_IN_GROUPS or re.search("[0-9]", group):
        return ""
    near = difflib.get_close_matches(group, KNOWN_GROUPS, n=1, cutoff=SIMILAR)
    return near[0] if near and not group.startswith(f"{near[0]}_") else ""


def group_files(inventory: Inventory) -> Iterable[Problem]:
    """Files of variables that Ansible never reads, since their group's name is misspelt."""
    for place, group in inventory.group_files.items():
        if group not in inventory.groups and (meant := _meant_by(group)):
            message = f"there is no group {group}, so nobody reads this file"
            yield Problem(message, f"did you mean {meant}?", where=place)


def host_files(inventory: Inventory) -> Iterable[Problem]:
    """Files of variables that Ansible never reads, since their host's name is misspelt.

    The numbers of both names are the same: the file of a host that is gone is no slip of its neighbour's.
    """
    known = set(inventory.hosts)
    alike: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for host in inventory.hosts:
        letters, numbers = _parts(host)
        alike[numbers][letters] = host
    for place, host in inventory.host_files.items():
        letters, numbers = _parts(host)
        near = difflib.get_close_matches(letters, alike[numbers], n=1, cutoff=SIMILAR)
        if near and host not in known:
            message = f"there is no host {host}, so nobody reads this file"
            yield Problem(message, f"did you mean {alike[numbers][near[0]]}?", where=place)


def _parts(host: str) -> tuple[str, tuple[str, ...]]:
    """A host's name with 0 for each of its numbers, and these without leading zeros."""
    numbers = re.findall("[0-9]+", host)
    return re.sub("[0-9]+", "0", host), tuple(number.lstrip("0") for number in numbers)


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
    planned = whole(inventory.fleet.get("fleet_planned_nodes"))
    wanted = api_servers(planned or 0, may_be_single=alone)
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
    members = {group: frozenset(inventory.groups.get(group, ())) for group in exclusive}
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host in inventory.members(*exclusive):
        groups = tuple(group for group in exclusive if host in members[group])
        if len(groups) > 1:
            found[groups].append(host)
    for host in inventory.members("monitoring"):
        groups = tuple(group for group in NODE_GROUPS if host in members[group])
        if groups:
            found[("monitoring", *groups)].append(host)
    for groups, hosts in found.items():
        fix = "a host may be in one of them only: take it out of the others"
        yield Problem(f"is in the exclusive groups {' and '.join(groups)}", fix, tuple(hosts))


def homeless_hosts(inventory: Inventory) -> Iterable[Problem]:
    """A host that no group gives a job."""
    placed = set(inventory.members(*KNOWN_GROUPS))
    hosts = tuple(host for host in inventory.hosts if host not in placed)
    if hosts:
        yield Problem("is in no group of Muster's", f"list it under one of {', '.join(KNOWN_GROUPS)}", hosts)


def host_names(inventory: Inventory) -> Iterable[Problem]:
    """Names that cannot be a hostname, a Node's name and a name in a certificate at once."""
    for host in inventory.hosts:
        if address_of(host) is not None:
            yield Problem(
                "the host's name is an address", "name the host, and give the address as ansible_host", (host,)
            )
        elif len(host) > HOSTNAME_MAX or not all(LABEL.match(label) for label in host.split(".")):
            yield Problem(
                "is not a valid host name (RFC 1123, lower case, at most 64 characters)",
                "rename the host: letters a-z, digits and hyphens",
                (host,),
            )


def planned_nodes(inventory: Inventory) -> Iterable[Problem]:
    """More nodes than planned: the control plane is sized from the plan."""
    planned = whole(inventory.fleet.get("fleet_planned_nodes"))
    nodes = len(inventory.members(*NODE_GROUPS))
    if planned is not None and planned < nodes:
        yield Problem(
            f"fleet_planned_nodes is {planned}, but the inventory has {nodes} nodes",
            f"set it to {nodes} or more",
            variable="fleet_planned_nodes",
        )


def maintenance_windows(inventory: Inventory) -> Iterable[Problem]:
    """A calendar of maintenance that cannot be read, or that names what is not in the inventory."""
    try:
        calendar(inventory.fleet.get(CALENDAR), inventory.groups)
    except CalendarError as error:
        yield Problem(str(error), "docs/operations/maintenance.md has an example", variable=CALENDAR)


def one_device_plugin(inventory: Inventory) -> Iterable[Problem]:
    """Another value of the device plugin on some GPU nodes: one DaemonSet serves them all."""
    nodes = inventory.groups.get("gpu_nodes", ())
    for name, values in inventory.device_plugin.items():
        by_value: dict[str, list[str]] = defaultdict(list)
        for host in nodes:
            if values.get(host, UNRESOLVED) is not UNRESOLVED:
                by_value[json.dumps(values[host], sort_keys=True, default=str)].append(host)
        if len(by_value) > 1:
            # The variables of a plugin's environment may be secrets.
            plain = not any(value.startswith("{") for value in by_value)
            ordered = sorted(by_value.items(), key=lambda item: len(item[1]), reverse=True)
            said = " and ".join(f"{value if plain else 'one'} on {name_hosts(hosts)}" for value, hosts in ordered)
            yield Problem(
                f"{name} is {said}, but one DaemonSet serves all GPU nodes",
                "give all of gpu_nodes the same value",
                tuple(host for _, hosts in ordered[1:] for host in hosts),
                variable=name,
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
