"""The nodes of the inventory as the ledger has them, and those that did not come, for the module node_admission.

On the controller, beside gpu_burnin. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.places import levels_of, nics_of

from gpu_burnin.admission.provision import Wanted
from gpu_burnin.api.machine_power import MachineSpec, Supply
from gpu_burnin.api.record import Hardware, Identity, Place, Proof
from gpu_burnin.api.rendezvous import Nic
from gpu_burnin.system.codec import Misfit, from_json


def wanted_of(node: Mapping[str, Any], key: str, evidence_ttl_s: float) -> Wanted:
    """The entry that an item of the module's nodes asks for. Raises FleetError for a place that cannot be read."""
    identity = Identity(
        key, node["machine_id"], node["allow_simulated"], tuple(node["addresses"]), pod_range=node["pod_range"]
    )
    strategy = "" if node["mig_strategy"] == "none" else node["mig_strategy"]
    plugin = bool(node["device_plugin"])
    hardware = Hardware(
        int(node["expect"].get("gpus") or 0),
        offered=plugin,
        mig_strategy=strategy if plugin else "",
        model=str(node["expect"].get("model") or ""),
    )
    place = Place(**levels_of(node["name"], node["place"]), spine=str(node["place"].get("spine") or ""))
    nics = nics_of(node["name"], node["fabric_nics"], str(next(iter(node["addresses"]), "")))
    fabric = tuple(Nic(nic["rail"], nic["address"]) for nic in nics if nic["address"])
    return Wanted(node["name"], identity, hardware, Proof(node["level"], evidence_ttl_s), place, fabric)


def machines_of(nodes: Sequence[Mapping[str, Any]], wanted: Sequence[Wanted]) -> dict[str, MachineSpec]:
    """The MachinePowers that the module's nodes ask for. Raises FleetError for a power that cannot be read."""
    found: dict[str, MachineSpec] = {}
    for node, one in zip(nodes, wanted, strict=True):
        if not node["power"]:
            continue
        try:
            supply = from_json(Supply, node["power"])
        except Misfit as error:
            raise FleetError(f"{one.name}: fleet_power cannot be read ({error}); correct it") from error
        if supply.provider == "redfish" and not (supply.address and (supply.uuid or supply.serial)):
            raise FleetError(
                f"{one.name}: fleet_power needs address, and uuid or serial of the machine (dmidecode -s system-uuid), "
                "so that no order goes to another one"
            )
        if not (one.hardware.gpus and one.hardware.model):
            raise FleetError(
                f"{one.name}: has fleet_power, and gpu_burnin_expect names not both gpus and model, by which jobs "
                "ask for it"
            )
        found[one.name] = MachineSpec(supply, one.hardware.gpus, one.hardware.model, one.place)
    refuse_twins(found)
    return found


def refuse_twins(machines: Mapping[str, MachineSpec]) -> None:
    """Refuse two machines that are one: an order to one of them would go to the other. Raises FleetError."""
    for what, of in (
        ("BMC", lambda s: (s.address, s.system) if s.address else None),
        ("uuid", lambda s: s.uuid.lower() or None),
        ("serial", lambda s: s.serial.lower() or None),
    ):
        seen: dict[Any, str] = {}
        for name, machine in sorted(machines.items()):
            key = of(machine.supply)
            if key is not None and key in seen:
                raise FleetError(f"{seen[key]}, {name}: have the same {what} in fleet_power; give each its own")
            seen[key] = name


def late(missing: Mapping[str, str], waited_s: float) -> str:
    """What people read of nodes that did not come."""
    if not missing:
        return ""
    head = f"after {waited_s:.0f} s these nodes, whose own gate is open, have not come:"
    return "\n".join([head, *(f"- {sentence}" for sentence in missing.values())])
