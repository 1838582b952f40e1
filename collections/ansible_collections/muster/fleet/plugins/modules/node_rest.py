#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Quiesce a node. Thin: see module_utils/kube/node_rest.py."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import run_command
from ansible_collections.muster.fleet.plugins.module_utils.kube import node_rest

DOCUMENTATION = r"""
module: node_rest
short_description: Quiesce a drained node, so that its driver can be changed
version_added: "0.2.0"
description:
  - Stops kubelet, the burn-in of the boot and the agent, and keeps them from starting at the next boot; the roles
    C(kubelet) and C(gpu_burnin) bring them back. Waits for a burn-in that runs.
  - Ends the containers that kubelet left, which are those of daemons on a drained node. kubelet makes them anew.
  - Run it on a node that was drained.
options:
  burnin_timeout_s:
    description: How long a burn-in that runs may take to its end, in seconds. An extended one takes two hours and more.
    type: float
    default: 10800
  grace_s:
    description: How long containers may take to end after SIGTERM, in seconds.
    type: float
    default: 30
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Quiesce the node
  muster.fleet.node_rest:
    grace_s: 60
"""

RETURN = r"""
done:
  description: What was done, or in check mode would be.
  returned: success
  type: list
  elements: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "burnin_timeout_s": {"type": "float", "default": 10800.0},
    "grace_s": {"type": "float", "default": 30.0},
}


def quiesce(module: AnsibleModule) -> dict[str, Any]:
    """Raises FleetError."""
    given = module.params
    node = node_rest.Node(run_command)
    done = node_rest.rest(node, given["burnin_timeout_s"], given["grace_s"], act=not module.check_mode)
    return {"changed": bool(done), "done": done}


def main() -> None:
    """Entry point."""
    run_module(quiesce, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
