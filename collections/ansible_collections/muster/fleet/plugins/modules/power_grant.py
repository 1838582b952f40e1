#!/usr/bin/python
"""Ansible module: let a host's burn-in make its power waves, and wait until they are over."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.burnin import PROGRAM_SPEC, Program

DOCUMENTATION = r"""
module: power_grant
short_description: Let a burn-in swing the load of all GPUs together
version_added: "0.2.0"
description:
  - Grants the power waves that the host's burn-in asks for, and waits until they are over. On a host that asks for
    nothing it does nothing.
  - With C(throttle) on the task, only so many hosts swing at the same time.
  - In check mode nothing is granted; C(changed) says whether it would be.
options:
  timeout_s:
    description: Longest time to wait, in seconds; the length of the waves comes on top.
    type: int
    default: 1800
extends_documentation_fragment:
  - muster.fleet.check_mode
  - muster.fleet.program
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Grant power waves to one host at a time
  muster.fleet.power_grant:
    timeout_s: 900
  throttle: 1
"""

RETURN = r"""
waves:
  description: What became of the power waves, one of none (nothing was asked), waiting, running, over and given_up.
  returned: success
  type: str
why:
  description: Why it granted, or why it did not, as one clause.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = PROGRAM_SPEC


def run(module: AnsibleModule) -> dict[str, Any]:
    """Grant and wait. Raises FleetError."""
    program = Program(module)
    status = program.status()
    state = status["power_grant"]["state"]
    if not status["unit"]["running"] or state not in ("waiting", "running"):
        return {"changed": False, "why": "no burn-in asks for power waves", "waves": state}
    if module.check_mode:
        return {"changed": True, "why": "a burn-in asks for power waves", "waves": state}
    waves = program.grant_and_wait(module.params["timeout_s"])
    return {"changed": True, "why": "a burn-in asked for power waves", "waves": waves}


def main() -> None:
    """Entry point."""
    run_module(run, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
