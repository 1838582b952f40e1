"""Action muster.fleet.ssh_probe: first contact with all hosts, from the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules.ssh_probe import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.progress import Progress

try:
    from ansible_collections.muster.fleet.plugins.plugin_utils.first_contact import meet

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error


def beyond_limit(inventory: Any) -> frozenset[str]:
    """The hosts of the inventory that `--limit` leaves out of the whole run; the play's own hosts are localhost."""
    limited = {host.name for host in inventory.get_hosts("all", ignore_restrictions=True)}
    every = inventory.get_hosts("all", ignore_limits=True, ignore_restrictions=True)
    return frozenset(host.name for host in every if host.name not in limited)


class ActionModule(ActionBase):
    """Runs on the controller alone."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Pins new keys; fails with the problems of all hosts, each once."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        if MISSING is not None:
            raise AnsibleActionFail(
                f"the Python of ansible-playbook has no package {(MISSING.name or str(MISSING)).partition('.')[0]}; "
                "install it there: pip install '.[controller]' in a checkout (of a release: 'FILE.whl[controller]')"
            )
        undialled = beyond_limit((task_vars or {})["hostvars"]._inventory)
        dialled = sum(host["name"] not in undialled for host in arguments["hosts"])
        progress = Progress("probed", dialled, self._display.display)
        try:
            result.update(
                meet(arguments, check_mode=self._task.check_mode, on_done=progress.advance, undialled=undialled)
            )
        except FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        for line in result["left_out"]:
            self._display.warning(f"left out of this run: {line}")
        return result
