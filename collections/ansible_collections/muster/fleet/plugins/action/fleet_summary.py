"""Action muster.fleet.fleet_summary: one screen at the end of a run, and a list of all hosts where they are many."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules.fleet_summary import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.failure import write_list
from ansible_collections.muster.fleet.plugins.plugin_utils.fleet_screen import (
    HOSTS_SHOWN,
    Surroundings,
    listed,
    screen,
)
from ansible_collections.muster.fleet.plugins.plugin_utils.host_states import host_states, without_backup

from gpu_burnin.system.clock import rfc3339_s


class ActionModule(ActionBase):
    """Runs on the controller alone."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The text as `msg`, shown without -v."""
        known = task_vars or {}
        result: dict[str, Any] = super().run(tmp, known)
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        hostvars, groups = known["hostvars"], known["groups"]
        try:
            states = host_states(arguments["hosts"], hostvars.raw_get, groups, arguments["well"])
        except FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        state_dir = Path(arguments["state_dir"])
        list_file = ""
        if len(states) > HOSTS_SHOWN:
            path = state_dir / arguments["list_name"]
            check = ", by a run with --check" if self._task.check_mode else ""
            if write_list(path, listed(states, f"{len(states):,} hosts, {rfc3339_s(datetime.now(UTC))}{check}")):
                list_file = str(path)
            else:
                self._display.warning(
                    f"{path} cannot be written, so each host has a line here; look at disk and rights"
                )
        around = Surroundings(
            state_dir=str(state_dir),
            inventory=[str(source) for source in known.get("ansible_inventory_sources", ())],
            without_backup=without_backup(groups, hostvars),
        )
        # No change: what it writes is the run's report.
        result.update(changed=False, msg=screen(states, around, list_file), _ansible_verbose_always=True)
        return result
