"""What the lab is to start, read from an Ansible inventory: hosts with `lab_*` variables."""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.fleet.mirror.commands import run

from .error import LabError
from .packages.machine.scenario import ScenarioError, check
from .paths import state_dir

DISK_SIZE_BYTES = 1 << 30


@dataclass(frozen=True)
class Host:
    """One host; `disk_id` is the name of its local SSD below /dev/disk/by-id, `gpu_scenario` a file in scenarios/.

    `nvidia`: how its stand-in machine differs from a healthy one; None of a host that gets no driver by packages.
    `folders`: those of this machine that it has at the same paths, and cannot write.
    """

    name: str
    address: str
    node: bool
    disk_id: str | None
    gpu_scenario: str | None
    nvidia: dict[str, Any] | None
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Lab:
    """A lab: its name (the inventory's fleet_name), the state directory, the networks, the hosts, and their groups.

    `subnets`: the network of all hosts, or that of the control plane and that of the nodes. `mirror_address`: "" for no
    mirror.
    """

    name: str
    state: Path
    subnets: tuple[str, ...]
    mirror_address: str
    hosts: tuple[Host, ...]
    groups: dict[str, set[str]]

    def subnet_of(self, address: str) -> str:
        """The network that an address is in; LabError for one that is in none."""
        for subnet in self.subnets:
            if ipaddress.ip_address(address) in ipaddress.ip_network(subnet):
                return subnet
        raise LabError(f"lab {self.name}: {address} is in none of its networks ({', '.join(self.subnets)})")


def read_lab(inventories: Sequence[Path]) -> Lab:
    """Read the lab that the inventories, taken together, describe.

    Each host has ansible_host; `lab_node: true` for hosts that run containers, `lab_disk_id` for a local SSD,
    `lab_gpu_scenario` for a fake NVML, `lab_nvidia: {}` for a machine without a driver yet, to which the stand-ins of
    NVIDIA's packages can be installed (its keys: packages/machine/scenario.py). All share fleet_name, lab_subnet,
    lab_mirror_address and, where the nodes have a network of their own (wall.py), lab_node_subnet.
    Raises LabError for anything missing.
    """
    listing = _listing(inventories)
    inventory = inventories[-1]
    variables: dict[str, dict[str, Any]] = listing["_meta"]["hostvars"]
    if not variables:
        raise LabError(f"{inventory}: no hosts in it: name the lab's hosts with ansible_host and lab_* variables")
    first = next(iter(variables.values()))
    hosts = tuple(_host(inventory, name, values) for name, values in sorted(variables.items()))
    name = _need(inventory, "all", first, "fleet_name")
    return Lab(
        name=name,
        state=state_dir(name),
        subnets=(_need(inventory, "all", first, "lab_subnet"), *filter(None, [first.get("lab_node_subnet")])),
        mirror_address=_need(inventory, "all", first, "lab_mirror_address"),
        hosts=hosts,
        groups=_groups(listing),
    )


def read_groups(inventories: Sequence[Path]) -> dict[str, set[str]]:
    """The hosts of every group, those of its children included."""
    return _groups(_listing(inventories))


def _groups(listing: Mapping[str, Any]) -> dict[str, set[str]]:
    def hosts_of(group: str) -> set[str]:
        entry = listing.get(group, {})
        return set(entry.get("hosts", ())).union(*(hosts_of(child) for child in entry.get("children", ())))

    return {group: hosts_of(group) for group in listing if group != "_meta"}


def _listing(inventories: Sequence[Path]) -> dict[str, Any]:
    tool = Path(sys.executable).parent / "ansible-inventory"
    listing: dict[str, Any] = json.loads(run([tool, *(f"--inventory={path}" for path in inventories), "--list"]))
    return listing


def _host(inventory: Path, name: str, values: Mapping[str, Any]) -> Host:
    nvidia = values.get("lab_nvidia")
    try:
        checked = None if nvidia is None else check(nvidia, f"{inventory}: {name}: lab_nvidia")
    except ScenarioError as error:
        raise LabError(str(error)) from None
    return Host(
        name=name,
        address=_need(inventory, name, values, "ansible_host"),
        node=bool(values.get("lab_node", False)),
        disk_id=values.get("lab_disk_id"),
        gpu_scenario=values.get("lab_gpu_scenario"),
        nvidia=checked,
    )


def _need(inventory: Path, host: str, values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        raise LabError(f"{inventory}: {host}: {key} is missing: the lab cannot start without it")
    return str(values[key])
