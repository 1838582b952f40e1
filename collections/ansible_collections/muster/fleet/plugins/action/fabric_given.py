"""Action muster.fleet.fabric_given: where the GPU nodes stand in the fabric, for `muster fabric plan` and `run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules.fabric_given import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.action_reader import hosts_of, reader_of
from ansible_collections.muster.fleet.plugins.plugin_utils.fabric_reader import site_of

from gpu_burnin.system.files import write_atomic


class ActionModule(ActionBase):
    """Runs on the controller alone."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Writes the file. Fails for an inventory, or a place of a node, that cannot be read."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        try:
            content = site_of(reader_of(self, task_vars or {}, result))
        except FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        if arguments["limit"]:
            chosen = hosts_of((task_vars or {})["hostvars"]._inventory, arguments["limit"])
            content["nodes"] = [node for node in content["nodes"] if node["name"] in chosen]
        dest = Path(arguments["dest"])
        write_atomic(dest, json.dumps(content).encode(), mode=0o600)
        return {**result, "changed": False, "dest": str(dest)}
