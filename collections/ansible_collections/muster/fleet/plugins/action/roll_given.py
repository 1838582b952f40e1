"""Action muster.fleet.roll_given: the nodes of an inventory that a roll is for, for `muster roll`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.places import levels_of
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED
from ansible_collections.muster.fleet.plugins.modules.roll_given import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.action_reader import hosts_of, reader_of
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader, Read

from gpu_burnin.fleet.feeds.limits import LIMITS, OTHERS
from gpu_burnin.fleet.waves.grants import EXTENDED, MODE
from gpu_burnin.system.files import write_atomic

_BURNIN = Path(__file__).resolve().parents[2] / "roles/gpu_burnin/defaults/main.yml"
# Words of ssh(1) by which hosts are reached through another one.
_JUMPS = ("ProxyJump", "ProxyCommand", "-J ")
_SSH_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")


class ActionModule(ActionBase):
    """Runs on the controller alone."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Writes the file. Fails for an inventory that cannot be read, has no fleet_state_dir or no such hosts."""
        known = task_vars or {}
        result: dict[str, Any] = super().run(tmp, known)
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        reader = reader_of(self, known, result)
        inventory, read = reader.source, reader.read({})
        state_dir = read.inventory.fleet.get("fleet_state_dir")
        if not state_dir:
            raise AnsibleActionFail(
                "fleet_state_dir is not set; set it in group_vars/all to a folder of the controller, for the roll"
            )
        chosen = hosts_of(inventory, arguments["limit"])
        nodes = [name for group in arguments["groups"] for name in read.inventory.groups.get(group, ())]
        group = arguments["canary_group"]
        if group and group not in read.inventory.groups:
            raise AnsibleActionFail(f"the inventory has no group {group}; name one of its groups as the canary group")
        content = {
            "state_dir": str(Path(str(state_dir)).expanduser()),
            "inventory_dir": str(known.get("inventory_dir") or _folder(inventory)),
            "nodes": [
                {"name": name, "model": _model(read.inventory.expects.get(name))}
                for name in dict.fromkeys(nodes)
                if name in chosen
            ],
            "canary": list(read.inventory.groups[group]) if group else None,
            "jumps": _jumps(inventory),
        }
        if group := arguments["worker_group"]:
            content["workers"] = _workers(reader, read, group, nodes)
        if arguments["power"]:
            content["power"] = _power(reader, read, [node["name"] for node in content["nodes"]])
        dest = Path(arguments["dest"])
        write_atomic(dest, json.dumps(content).encode(), mode=0o600)
        return {**result, "changed": False, "dest": str(dest)}


def _model(expect: object) -> str:
    return str(expect.get("model") or "") if isinstance(expect, Mapping) else ""


def _folder(inventory: Any) -> str:
    source = Path(str((inventory._sources or ["."])[0])).absolute()
    return str(source if source.is_dir() else source.parent)


def _jumps(inventory: Any) -> bool:
    """Whether a host, or a group, is reached through a jump host."""
    owners: Iterable[Any] = (*inventory.groups.values(), *inventory.hosts.values())
    said = (str(owner.vars.get(name, "")) for owner in owners for name in _SSH_ARGUMENTS)
    return any(word in text for text in said for word in _JUMPS)


def _workers(reader: InventoryReader, read: Read, group: str, nodes: Iterable[str]) -> list[str]:
    """The hosts of a group in the form of --worker."""
    names = read.inventory.groups.get(group, ())
    if not names:
        raise AnsibleActionFail(f"the inventory has no hosts in a group {group}; name the group of its workers")
    if both := sorted(set(names) & set(nodes)):
        raise AnsibleActionFail(
            f"{both[0]} is a node of the roll and in the group {group}; a worker is another machine"
        )
    values = _values(reader, read, ("ansible_host", "ansible_user", "ansible_port", "muster_roll_shards"))
    found = []
    for name in names:
        host, user, port, shards = (values[key].get(name) for key in values)
        login = f"{user}@{host or name}" if user else str(host or name)
        found.append(f"{login}{f':{port}' if port else ''}{f'={shards}' if shards else ''}")
    return found


def _power(reader: InventoryReader, read: Read, nodes: Sequence[str]) -> dict[str, Any]:
    """How many nodes may swing their power where, and which of these do: gpu_burnin.fleet.waves.grants.Power."""
    usual, fleet = reader.file(_BURNIN), read.inventory.fleet
    values = _values(reader, read, (MODE, OTHERS, EXTENDED))
    nodes = [name for name in nodes if name in read.inventory.groups.get("gpu_nodes", ())]
    try:
        places = {name: levels_of(name, read.inventory.places.get(name) or {}) for name in nodes}
    except FleetError as error:
        raise AnsibleActionFail(str(error)) from error
    of_nodes = {key: [values[key].get(name, usual[key]) for name in nodes] for key in values}
    return {
        "by_feed": fleet.get(LIMITS) or {},
        # The play's first host has a word for all, and workers' shards begin with others.
        "others": min(map(int, of_nodes[OTHERS]), default=int(usual[OTHERS])),
        "extended_s": max(map(float, of_nodes[EXTENDED]), default=0.0),
        "scaled": str(fleet.get("fleet_scale", False)).lower() in ("true", "yes", "1"),
        "feeds": {name: place.get("feed", "") for name, place in places.items()},
        "modes": dict(zip(nodes, map(str, of_nodes[MODE]), strict=True)),
    }


def _values(reader: InventoryReader, read: Read, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Variables of all hosts. Raises AnsibleActionFail for one that cannot be resolved."""
    found = reader.host_values(read.scopes, names, len(read.homes))
    for name, values in found.items():
        if unknown := [host for host, value in values.items() if value is UNRESOLVED]:
            raise AnsibleActionFail(f"{name} of {unknown[0]} cannot be resolved, and workers need it; correct it")
    return found
