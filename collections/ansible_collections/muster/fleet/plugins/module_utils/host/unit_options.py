"""Options of the modules that keep a systemd unit running, and the unit as they ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit

UNIT_OPTIONS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "enabled": {"type": "bool", "default": True},
    "start": {"type": "bool", "default": True},
    **systemd_unit.RESTART_OPTIONS,
    "restart": {"type": "bool", "default": True},
    "restart_because": {"type": "str", "default": ""},
    "wait": {"type": "bool", "default": True},
}


def keep_running(module: AnsibleModule, given: Mapping[str, Any]) -> systemd_unit.Decision:
    """Bring the unit up as asked. Raises FleetError with its last log lines."""
    wanted = systemd_unit.Wanted(
        unit=given["name"],
        restart_after=given["restart_after"],
        enabled=given["enabled"],
        start=given["start"],
        restart=given["restart"],
        restart_because=given["restart_because"],
        wait=given["wait"],
    )
    try:
        decision = systemd_unit.bring_up(wanted, act=not module.check_mode)
    except FleetError as error:
        raise FleetError(str(error), log=systemd_unit.log_tail(wanted.unit)) from error
    if given["restart_because"] and "restart" in decision.actions:
        done = "would be restarted" if module.check_mode else "was restarted"
        module.warn(f"{given['restart_because']}: {wanted.unit} {done}")
    return decision
