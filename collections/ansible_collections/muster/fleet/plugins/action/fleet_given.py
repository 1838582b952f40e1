"""Action muster.fleet.fleet_given: what an inventory says about the size of its fleet, for `muster plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules.fleet_given import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.action_reader import reader_of
from ansible_collections.muster.fleet.plugins.plugin_utils.given_reader import GivenReader

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
        reader = reader_of(self, task_vars or {}, result)
        try:
            given = GivenReader(reader, ROLES, constants.DEFAULT_FORKS).given()
        except FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        dest = Path(arguments["dest"])
        write_atomic(dest, json.dumps(to_json(given)).encode(), mode=0o600)
        return {**result, "changed": False, "dest": str(dest)}
