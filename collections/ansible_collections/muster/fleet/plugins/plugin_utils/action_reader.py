"""The inventory of an action's run, whole, for actions that write what a command of `muster` plans from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.plugin_utils.failure import failure
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import FleetVariables
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import unreadable
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader
from ansible_collections.muster.fleet.plugins.plugin_utils.progress import Progress
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver


def reader_of(action: ActionBase, task_vars: Mapping[str, Any], result: Mapping[str, Any]) -> InventoryReader:
    """The reader of the inventory that a task's action runs with. Raises what `failure` makes for a file of it that
    cannot be read."""
    inventory, loader = task_vars["hostvars"]._inventory, action._loader

    def advance(what: str, total: int) -> Callable[[int], None]:
        return Progress(what, total, action._display.display).advance

    if problems := unreadable(inventory._sources, loader.get_basedir(), loader):
        raise failure("The inventory cannot be read", problems, None, **result)
    variables = FleetVariables(action._task.get_variable_manager(), inventory, loader)
    return InventoryReader(variables, Resolver(action._templar), inventory, loader, advance)


def hosts_of(inventory: Any, limit: str) -> set[str]:
    """The hosts of a limit, as --limit has it; all of them for "". Raises AnsibleActionFail."""
    try:
        inventory.subset(limit or None)
        return {host.name for host in inventory.get_hosts("all", ignore_restrictions=True)}
    except AnsibleError as error:
        raise AnsibleActionFail(f"--limit {limit} cannot be used ({error})") from error
