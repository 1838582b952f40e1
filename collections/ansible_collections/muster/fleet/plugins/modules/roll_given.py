#!/usr/bin/python
"""Documentation of the action plugin of the same name; it has no part on the hosts."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: roll_given
short_description: Read which nodes of an inventory a roll is for
version_added: "0.2.0"
description:
  - Reads the inventory on the controller and writes what C(muster roll) plans from, which is the nodes with their GPU
    models, the fleet's state directory and the canary group.
  - Connects to no host. No secret is among what it writes.
options:
  dest:
    description: File to write, as JSON.
    type: path
    required: true
  groups:
    description: The groups that the playbook is for.
    type: list
    elements: str
    required: true
  limit:
    description: The hosts, as C(--limit) takes them. Without it all of O(groups).
    type: str
    default: ""
  canary_group:
    description: The group whose hosts are tried first.
    type: str
    default: ""
  worker_group:
    description: The group whose hosts run shards, none of which may be one of the nodes.
    type: str
    default: ""
  power:
    description: Read too at which feeds the nodes swing their power, and how much those bear.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: The file is for C(muster roll) alone, and is written in check mode too.
  diff_mode:
    support: none
    description: There is no diff.
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Read the nodes
  muster.fleet.roll_given:
    dest: /tmp/roll.json
    groups: [gpu_nodes, system_nodes]
"""

RETURN = r"""
dest:
  description: The file.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "dest": {"type": "path", "required": True},
    "groups": {"type": "list", "elements": "str", "required": True},
    "limit": {"type": "str", "default": ""},
    "canary_group": {"type": "str", "default": ""},
    "worker_group": {"type": "str", "default": ""},
    "power": {"type": "bool", "default": False},
}


def refuse(module: AnsibleModule) -> dict[str, Any]:
    """Never reached by a task, since the action plugin does the work. Raises FleetError."""
    raise FleetError("roll_given runs on the controller; call it as muster.fleet.roll_given")


def main() -> None:
    """Entry point."""
    run_module(refuse, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
