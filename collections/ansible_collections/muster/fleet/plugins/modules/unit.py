#!/usr/bin/python
"""Ansible module: a systemd unit enabled, running, and not older than its files."""

from __future__ import annotations

import socket

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils import systemd_unit

DOCUMENTATION = r"""
module: unit
short_description: Keep a systemd unit enabled, running and up to date with its files
version_added: "0.1.0"
description:
  - Enables and starts a unit, and restarts it when a file it reads at start is newer than its main process.
    A restart that a killed run still owed is made up for, which a handler cannot do.
  - The unit file and its drop-ins always count as such files; systemd is told to reload them when they changed.
  - Units without a main process (mounts, timers) are started but never restarted.
options:
  name:
    description: Name of the unit, with its ending.
    type: str
    required: true
  enabled:
    description: Start it at boot.
    type: bool
    default: true
  restart_after:
    description: Files, or folders of files, that are read at start.
    type: list
    elements: path
    default: []
  restart:
    description: Restart when stale. False leaves that to another task.
    type: bool
    default: true
  wait:
    description: Wait until systemd says that it is up.
    type: bool
    default: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Run chrony
  muster.fleet.unit:
    name: chrony.service
    restart_after: [/etc/chrony/chrony.conf]
"""

RETURN = r"""
actions:
  description: What was done (or would be, in check mode), of reload, enable, start, restart.
  type: list
  elements: str
  returned: always
stale:
  description: Files newer than the process that was found.
  type: list
  elements: str
  returned: always
"""


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "enabled": {"type": "bool", "default": True},
            "restart_after": {"type": "list", "elements": "path", "default": []},
            "restart": {"type": "bool", "default": True},
            "wait": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    name = module.params["name"]
    try:
        actions, stale = _converge(module)
    except systemd_unit.UnitError as error:
        module.fail_json(msg=f"{socket.gethostname()}: {error}; see `journalctl -u {name}` there.")
    module.exit_json(changed=bool(actions), actions=actions, stale=stale)


def _converge(module: AnsibleModule) -> tuple[list[str], list[str]]:
    given, act = module.params, not module.check_mode
    name, block = given["name"], [] if given["wait"] else ["--no-block"]
    unit = systemd_unit.show(name)
    actions: list[str] = []
    # A new unit file is "not-found" until systemd reads it; reloading first is how one learns.
    if unit.needs_reload:
        actions.append("reload")
    if act and (unit.needs_reload or not unit.loaded):
        systemd_unit.systemctl(["daemon-reload"])
        unit = systemd_unit.show(name)
    if act and not unit.loaded:
        raise systemd_unit.UnitError(f"systemd knows no {name}; install what provides it")
    if given["enabled"] and not unit.enabled:
        actions.append("enable")
        if act:
            systemd_unit.systemctl(["enable", "--", name])
    stale = systemd_unit.stale_because(unit, given["restart_after"])
    if "reload" in actions and unit.started_at is not None and not stale:
        stale = [f"a removed drop-in of {name}"]  # what is gone has no time to compare
    verb = "start" if not unit.running else "restart" if stale and given["restart"] else ""
    if verb:
        actions.append(verb)
        if act:
            systemd_unit.systemctl([verb, *block, "--", name])
    return actions, stale


if __name__ == "__main__":
    main()
