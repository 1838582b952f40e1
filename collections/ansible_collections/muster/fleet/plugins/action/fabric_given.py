"""Action muster.fleet.fabric_given: where the GPU nodes stand in the fabric, for `muster fabric plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules.fabric_given import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.fabric_reader import FabricReader
from ansible_collections.muster.fleet.plugins.plugin_utils.failure import failure
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import FleetVariables
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import unreadable
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader
from ansible_collections.muster.fleet.plugins.plugin_utils.progress import Progress
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver

from gpu_burnin.system.files import write_atomic


class ActionModule(ActionBase):
    """Runs on the controller alone."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Writes the file. Fails for an inventory, or a place of a node, that cannot be read."""
        known = task_vars or {}
        result: dict[str, Any] = super().run(tmp, known)
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        inventory = known["hostvars"]._inventory
        if problems := unreadable(inventory._sources, self._loader.get_basedir(), self._loader):
            raise failure("The inventory cannot be read", problems, None, **result)
        variables = FleetVariables(self._task.get_variable_manager(), inventory, self._loader)
        resolver = Resolver(self._templar)
        reader = InventoryReader(variables, resolver, inventory, self._loader, self._advance)
        try:
            nodes = FabricReader(reader, resolver).nodes()
        except FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        dest = Path(arguments["dest"])
        write_atomic(dest, json.dumps({"nodes": nodes}).encode(), mode=0o600)
        return {**result, "changed": False, "dest": str(dest)}

    def _advance(self, what: str, total: int) -> Callable[[int], None]:
        return Progress(what, total, self._display.display).advance
