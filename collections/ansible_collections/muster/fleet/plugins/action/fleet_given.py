"""Action muster.fleet.fleet_given: what an inventory says about the size of its fleet, for `muster plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules.fleet_given import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.failure import failure
from ansible_collections.muster.fleet.plugins.plugin_utils.given_reader import GivenReader
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import FleetVariables
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import unreadable
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader
from ansible_collections.muster.fleet.plugins.plugin_utils.progress import Progress
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver

from gpu_burnin.system.codec import to_json
from gpu_burnin.system.files import write_atomic

# The collection's roles lie beside its plugins.
ROLES = Path(__file__).resolve().parents[2] / "roles"


class ActionModule(ActionBase):
    """Runs on the controller alone."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(ARGUMENT_SPEC)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Writes the file. Fails for an inventory that cannot be read, or has no number of planned nodes."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        manager, inventory = self._task.get_variable_manager(), (task_vars or {})["hostvars"]._inventory
        if problems := unreadable(inventory._sources, self._loader.get_basedir(), self._loader):
            raise failure("The inventory cannot be read", problems, None, **result)
        resolver = Resolver(self._templar)
        variables = FleetVariables(manager, inventory, self._loader)
        reader = InventoryReader(variables, resolver, inventory, self._loader, self._advance)
        try:
            given = GivenReader(reader, ROLES, constants.DEFAULT_FORKS).given()
        except FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        dest = Path(arguments["dest"])
        write_atomic(dest, json.dumps(to_json(given)).encode(), mode=0o600)
        return {**result, "changed": False, "dest": str(dest)}

    def _advance(self, what: str, total: int) -> Callable[[int], None]:
        return Progress(what, total, self._display.display).advance
