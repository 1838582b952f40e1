#!/usr/bin/python
"""Documentation of the action plugin of the same name; it has no part on the hosts."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: fabric_given
short_description: Read where the GPU nodes of an inventory stand in the fabric
version_added: "0.2.0"
description:
  - Reads the inventory on the controller and writes what C(muster fabric plan) plans from, which is the GPU nodes with
    their places, GPU models and network interfaces of the fabric; for C(muster fabric run) also by which address each
    is known in the project's known_hosts file, and where that is.
  - Connects to no host. No secret is among what it writes.
options:
  dest:
    description: File to write, as JSON.
    type: path
    required: true
  limit:
    description: The hosts, as C(--limit) takes them. Without it all GPU nodes.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: The file is for C(muster fabric) alone, and is written in check mode too.
  diff_mode:
    support: none
    description: There is no diff.
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Read the places
  muster.fleet.fabric_given:
    dest: /tmp/fabric.json
"""

RETURN = r"""
dest:
  description: The file.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "dest": {"type": "path", "required": True},
    "limit": {"type": "str", "default": ""},
}


def refuse(module: AnsibleModule) -> dict[str, Any]:
    """Never reached by a task, since the action plugin does the work. Raises FleetError."""
    raise FleetError("fabric_given runs on the controller; call it as muster.fleet.fabric_given")


def main() -> None:
    """Entry point."""
    run_module(refuse, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
