"""Where the GPU nodes of an inventory stand in the fabric, and by which addresses they are in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.places import LEAF_ALIAS, metric_labels_of
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Variables

NICS = "fleet_fabric_nics"
GROUP = "gpu_nodes"


def nodes_of(reader: InventoryReader) -> list[dict[str, Any]]:
    """Each GPU node, as gpu_burnin.fleet.fabric.model.Node has it. Raises FleetError for a value of another form.

    A node without fleet_fabric_nics has one NIC, with the address by which other hosts reach it.
    """
    read = reader.read({})
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


def nics_of(host: str, given: object, address: str) -> list[dict[str, Any]]:
    """A host's NICs of the fabric. Raises FleetError for what is none."""
    if not given:
        return [{"rail": 0, "address": address}]
    example = "give a list such as [{rail: 0, address: 192.0.2.1}]"
    if not isinstance(given, list):
        raise FleetError(f"{host}: {NICS} is {given!r}; {example}")
    found = []
    for nic in given:
        rail = nic.get("rail") if isinstance(nic, Mapping) else None
        if not isinstance(rail, int) or isinstance(rail, bool) or rail < 0 or not nic.get("address"):
            raise FleetError(f"{host}: {NICS} has {nic!r}; {example}")
        found.append({"rail": rail, "address": str(nic["address"])})
    return found
