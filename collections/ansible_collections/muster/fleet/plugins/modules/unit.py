#!/usr/bin/python
"""Ansible module: a systemd unit enabled, running, and not older than its files."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.unit_options import UNIT_OPTIONS, keep_running

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
  state:
    description: V(absent) stops the unit, has no boot start it, and removes its file from /etc/systemd/system.
    type: str
    choices: [present, absent]
    default: present
  enabled:
    description: Start it at boot.
    type: bool
    default: true
  start:
    description: Start it when it does not run. False leaves that to the next boot, or to who waits for its end.
    type: bool
    default: true
  restart:
    description: Restart when stale. False leaves that to another task.
    type: bool
    default: true
  restart_because:
    description:
      - A reason to restart a running unit that no file shows, as a sentence without a full stop. Empty when there is
        none.
      - The task then warns that it restarted the unit, or in check mode that it would, and why.
    type: str
    default: ""
  wait:
    description: Wait until systemd says that it is up.
    type: bool
    default: true
extends_documentation_fragment:
  - muster.fleet.restart_after
  - muster.fleet.check_mode
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
  description:
    - What was done (or would be, in check mode), of daemon-reload, enable, start, restart, and for a unit that is to be
      absent of stop, disable, remove, daemon-reload.
  type: list
  elements: str
  returned: always
stale:
  description: Files newer than the process that was found.
  type: list
  elements: str
  returned: always
log:
  description: The unit's last lines of the journal.
  returned: failure
  type: str
"""


ARGUMENT_SPEC: dict[str, Any] = {
    **UNIT_OPTIONS,
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def bring_up(module: AnsibleModule) -> dict[str, Any]:
    """Bring the unit up, or take it down. Raises FleetError with the unit's last log lines."""
    given = module.params
    if given["state"] == "absent":
        gone = systemd_unit.take_down(given["name"], act=not module.check_mode)
        return {"changed": bool(gone), "actions": gone, "stale": ()}
    decision = keep_running(module, given)
    return {"changed": bool(decision.actions), "actions": decision.actions, "stale": decision.stale}


def main() -> None:
    """Entry point."""
    run_module(bring_up, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
