#!/usr/bin/python
"""Documentation of the action plugin of the same name; it has no part on the hosts."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: preflight_report
short_description: Judge the preflight facts of all hosts at once
version_added: "0.1.0"
description:
  - Runs on the controller, once for all hosts of the play.
  - Fails with every problem of every host, each with what to do, duplicates between hosts included. When
    there are too many for a screen, C(preflight-problems.txt) in C(fleet_state_dir) has all of them.
  - What is wrong with the stack that the image of one GPU node brings is a warning, since that node is held by itself.
options:
  facts:
    description: Name of the variable that M(muster.fleet.preflight) was registered in.
    type: str
    default: __preflight_facts
  hosts:
    description: The hosts to judge.
    type: list
    elements: str
    required: true
  nodes:
    description:
      - Hosts without which a run may go on. They are left out (RV(absent)) when Ansible cannot reach them, as
        long as these are few; Ansible ends with 4 then.
    type: list
    elements: str
    default: []
    version_added: "0.2.0"
  switched_off:
    description: Those of O(nodes) that are switched off because nobody needs them. They are none of the share.
    type: list
    elements: str
    default: []
    version_added: "0.2.0"
  max_unreachable_share:
    description: Largest share of O(nodes) that is left out, between 0 (none) and 1. Above 0 it is one node at least.
    type: float
    default: 0
    version_added: "0.2.0"
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Report all problems of all hosts
  muster.fleet.preflight_report:
    hosts: "{{ ansible_play_hosts_all }}"
  run_once: true
"""

RETURN = r"""
msg:
  description: What was checked, or every problem on a line of its own.
  returned: always
  type: str
absent:
  description: Names of the O(nodes) that cannot be reached and are left out.
  returned: success
  type: list
  elements: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "facts": {"type": "str", "default": "__preflight_facts"},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "switched_off": {"type": "list", "elements": "str", "default": []},
    "max_unreachable_share": {"type": "float", "default": 0},
}


def refuse(module: AnsibleModule) -> dict[str, Any]:
    """Never reached by a task, since the action plugin does the work. Raises FleetError."""
    raise FleetError("preflight_report runs on the controller; call it as muster.fleet.preflight_report")


def main() -> None:
    """Entry point."""
    run_module(refuse, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
