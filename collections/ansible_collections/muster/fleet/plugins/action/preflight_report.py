"""Action muster.fleet.preflight_report: all hosts' facts judged together, on the controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.preflight.absent_nodes import left_out
from ansible_collections.muster.fleet.plugins.module_utils.preflight.rules import Host, Limits, check, doubts
from ansible_collections.muster.fleet.plugins.modules.preflight_report import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.failure import failure, forget

LIST_NAME = "preflight-problems.txt"


def host_of(registered: Any) -> Host | None:
    """The registered result of muster.fleet.preflight as a Host; None when the host gave no facts."""
    if not isinstance(registered, Mapping) or not isinstance(registered.get("facts"), Mapping):
        return None
    return Host(
        facts=registered["facts"],
        limits=Limits(**registered["limits"]),
        is_node=bool(registered["is_node"]),
    )


def is_unreachable(registered: Any) -> bool:
    """Whether Ansible could not reach the host of this result."""
    return isinstance(registered, Mapping) and bool(registered.get("unreachable"))


class ActionModule(ActionBase):
    """Runs on the controller alone."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fails with every problem of every host in one message."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        hostvars = (task_vars or {})["hostvars"]
        found = {name: hostvars.raw_get(name).get(arguments["facts"]) for name in arguments["hosts"]}
        silent = [name for name, registered in found.items() if is_unreachable(registered)]
        off = set(arguments["switched_off"])
        lost, nodes = ([name for name in names if name not in off] for names in (silent, arguments["nodes"]))
        absent, too_many = left_out(lost, nodes, arguments["max_unreachable_share"])
        absent = [name for name in silent if name in absent or name in off]
        hosts = {name: host_of(registered) for name, registered in found.items() if name not in absent}
        problems = [*too_many, *check(hosts)]
        result.update(changed=False, msg=f"{len(hosts)} hosts are fit", absent=absent)
        for doubt in doubts(hosts):
            self._display.warning(doubt.line())
        list_file = self._list_file(task_vars or {})
        if problems:
            title = f"{len(hosts)} hosts were looked at and nothing was touched"
            named = [{"hosts": list(one.hosts), "message": f"{one.message}; {one.fix}"} for one in problems]
            raise failure(title, problems, list_file, faults=named)
        forget(list_file)
        return result

    def _list_file(self, task_vars: dict[str, Any]) -> Path | None:
        """Where all problems are when they are too many for a screen: in the fleet's state."""
        try:
            return Path(str(self._templar.template(task_vars["fleet_state_dir"]))).expanduser() / LIST_NAME
        except (KeyError, AnsibleError):
            return None
