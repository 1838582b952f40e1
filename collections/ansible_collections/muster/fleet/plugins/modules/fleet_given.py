#!/usr/bin/python
"""Documentation of the action plugin of the same name; it has no part on the hosts."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: fleet_given
short_description: Read what an inventory says about the size of its fleet
version_added: "0.2.0"
description:
  - Reads the inventory on the controller, with the roles' defaults, and writes what C(muster plan) computes from.
  - Connects to no host. No secret is among what it writes.
options:
  dest:
    description: File to write, as JSON.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: The file is for C(muster plan) alone, and is written in check mode too.
  diff_mode:
    support: none
    description: There is no diff.
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Read the inventory
  muster.fleet.fleet_given:
    dest: /tmp/given.json
"""

RETURN = r"""
dest:
  description: The file.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {"dest": {"type": "path", "required": True}}


def refuse(module: AnsibleModule) -> dict[str, Any]:
    """Never reached by a task, since the action plugin does the work. Raises FleetError."""
    raise FleetError("fleet_given runs on the controller; call it as muster.fleet.fleet_given")


def main() -> None:
    """Entry point."""
    run_module(refuse, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
