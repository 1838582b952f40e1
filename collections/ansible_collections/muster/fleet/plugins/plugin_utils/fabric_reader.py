"""Where the GPU nodes of an inventory stand in the fabric, and by which addresses they are in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host.places import (
    LEAF_ALIAS,
    NICS,
    metric_labels_of,
    nics_of,
)
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader, Read
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Variables

GROUP = "gpu_nodes"
SSH_PORT = 22


def site_of(reader: InventoryReader) -> dict[str, Any]:
    """What gpu_burnin.fleet.fabric.places.Given has. Raises FleetError for a value of another form."""
    read = reader.read({})
    fleet = read.inventory.fleet
    content: dict[str, Any] = {"nodes": _nodes(reader, read), "logins": _logins(reader, read)}
    if state_dir := str(fleet.get("fleet_state_dir") or ""):
        content["state_dir"] = str(Path(state_dir).expanduser())
        known_hosts = Path(str(fleet.get("fleet_known_hosts") or f"{state_dir}/known_hosts"))
        content["known_hosts"] = str(known_hosts.expanduser())
    if domain := fleet.get("fleet_domain"):
        content["domain"] = str(domain)
    return content


def _logins(reader: InventoryReader, read: Read) -> dict[str, tuple[str, int]]:
    """By GPU node the address and the port under which its host key is pinned."""
    found = {}
    for host in read.inventory.groups.get(GROUP, ()):
        try:
            port = int(Variables(read.homes[host].of(host), reader.resolver).value("ansible_port"))
        except (KeyError, TypeError, ValueError):
            port = SSH_PORT
        found[host] = (str(read.inventory.ansible_hosts.get(host) or host), port)
    return found


def _nodes(reader: InventoryReader, read: Read) -> list[dict[str, Any]]:
    """Each GPU node, as gpu_burnin.fabric.model.Node has it.

    A node without fleet_fabric_nics has one NIC, with the address by which other hosts reach it.
    """
    found, inventory = [], read.inventory
    for host in inventory.groups.get(GROUP, ()):
        place = metric_labels_of(host, inventory.places.get(host))
        expect = inventory.expects.get(host)
        try:
            nics = Variables(read.homes[host].of(host), reader.resolver).value(NICS)
        except KeyError:
            nics = []
        found.append(
            {
                "name": host,
                "leaf": place.get(LEAF_ALIAS, ""),
                **{level: place.get(level, "") for level in ("rack", "spine", "feed")},
                "model": str(expect.get("model") or "") if isinstance(expect, Mapping) else "",
                "nics": nics_of(host, nics, str(inventory.addresses.get(host) or "")),
            }
        )
    return found
