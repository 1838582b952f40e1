"""Action muster.fleet.roll_given: the nodes of an inventory that a roll is for, for `muster roll`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.modules.roll_given import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.action_reader import hosts_of, reader_of
from ansible_collections.muster.fleet.plugins.plugin_utils.roll_reader import power_of, sealed_in, workers_of

from gpu_burnin.system.files import write_atomic

# Words of ssh(1) by which hosts are reached through another one.
_JUMPS = re.compile(r"ProxyJump|ProxyCommand|(^|\s)-J")
_SSH_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")


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
            content["workers"] = workers_of(reader, read, group, nodes)
        if arguments["power"]:
            content["power"] = power_of(reader, read, [node["name"] for node in content["nodes"]])
            content["sealed"] = sealed_in(inventory._sources or (), self._loader)
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
    return any(_JUMPS.search(text) for text in said)
