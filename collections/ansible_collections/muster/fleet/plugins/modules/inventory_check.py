#!/usr/bin/python
"""Documentation of the action plugin of the same name; it has no part on the hosts."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: inventory_check
short_description: Check the whole inventory before anything is touched
version_added: "0.1.0"
description:
  - Reads the inventory and the playbook on the controller; connects to no host and needs no facts.
  - Tells files of variables that are not YAML or that no vault password opens; the callback
    P(muster.fleet.inventory_files#callback) does it before any play, and knows those of C(group_vars/all) too.
  - Checks the inventory's own rules (groups, sizes, names, addresses, ranges).
  - Checks every role's argument_specs for every host to which the playbook applies the role, with the role's defaults,
    the play's variables and all templates resolved.
  - Refuses every inventory variable that has a role's prefix (longest role name first) and is unknown to that role. The
    roles beside those of the playbook count too.
  - Refuses a name that is a slip of a known one, of a role or of Ansible's connection (C(kubelt_max_pods),
    C(ansible_hots)). Other names are the site's own; C(-v) lists them.
  - Refuses placeholders in variables of roles and in C(ansible_host), such as addresses and names reserved for
    documentation or checksums of zeros.
  - With C(--limit) the rules of the whole inventory and the names of all variables are checked as ever, but the values
    of roles' options only for the hosts of the run, and for C(localhost).
  - Reports all problems at once, each with the file it stands in and what to do. The same problem of many hosts is one
    line; when there are too many for a screen, C(inventory-problems.txt) in C(fleet_state_dir) has all of them.
options:
  playbook:
    description: Path of the playbook whose plays say which role is for which host.
    type: path
    required: true
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Check the inventory
  muster.fleet.inventory_check:
    playbook: "{{ playbook_dir }}/site.yml"
"""

RETURN = r"""
msg:
  description: What was checked, or every problem on a line of its own.
  returned: always
  type: str
foreign_variables:
  description: Variables that are no role's and not Ansible's, with the place where they are set first.
  returned: with C(-v)
  type: dict
"""

ARGUMENT_SPEC: dict[str, Any] = {"playbook": {"type": "path", "required": True}}


def refuse(module: AnsibleModule) -> dict[str, Any]:
    """Never reached by a task, since the action plugin does the work. Raises FleetError."""
    raise FleetError("inventory_check runs on the controller; call it as muster.fleet.inventory_check")


def main() -> None:
    """Entry point."""
    run_module(refuse, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
