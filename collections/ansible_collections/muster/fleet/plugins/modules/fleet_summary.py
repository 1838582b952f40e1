#!/usr/bin/python
"""Documentation of the action plugin of the same name; it has no part on the hosts."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: fleet_summary
short_description: One screen that says how each host stands after a run
version_added: "0.2.0"
description:
  - Runs on the controller, once for all hosts, and reads the variables of each host once.
  - Up to 40 hosts have a line each, GPU nodes with verdict and driver; then comes what holds each node that is held,
    what to do, and the commands to try next.
  - Of more hosts those that are alike are counted, what is not well is named, and the screen has some 60 lines at most.
    The file O(list_name) in O(state_dir) then has a line for each host, and all reasons. The screen names it.
options:
  hosts:
    description: Names of the hosts to show.
    type: list
    elements: str
    required: true
  well:
    description: Hosts without a failed task.
    type: list
    elements: str
    required: true
  state_dir:
    description: Folder of the fleet's state, C(fleet_state_dir).
    type: path
    required: true
  list_name:
    description: Name of the file there that has each host of a large fleet. It stays as it is for a small one.
    type: str
    default: fleet.txt
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
notes:
  - The list is written in check mode too, and says so. It is the run's report and no change of the fleet.
  - What it shows are the results that Muster's roles registered in the same run.
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Show the fleet
  muster.fleet.fleet_summary:
    hosts: "{{ ansible_play_hosts_all }}"
    well: "{{ ansible_play_hosts }}"
    state_dir: "{{ fleet_state_dir }}"
  run_once: true
"""

RETURN = r"""
msg:
  description: The screen.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "hosts": {"type": "list", "elements": "str", "required": True},
    "well": {"type": "list", "elements": "str", "required": True},
    "state_dir": {"type": "path", "required": True},
    "list_name": {"type": "str", "default": "fleet.txt"},
}


def refuse(module: AnsibleModule) -> dict[str, Any]:
    """Never reached by a task, since the action plugin does the work. Raises FleetError."""
    raise FleetError("fleet_summary runs on the controller; call it as muster.fleet.fleet_summary")


def main() -> None:
    """Entry point."""
    run_module(refuse, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
