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
  - First the host waits until it has a turn at its feed. So many hosts have one at a time, over all plays of this
    controller that use the same O(directory). It says on the screen for whom it waits.
  - The turn of a play that is killed ends with the waves that it has granted, when these must be over.
  - A host that has no turn within O(wait_s) is granted nothing; its burn-in goes on without waves, and warns.
  - In check mode nothing is granted and no turn taken; C(changed) says whether it would be.
options:
  directory:
    description: Folder on the controller where the turns are kept.
    type: path
    required: true
    version_added: "0.2.0"
  feed:
    description: The feed of the host, as C(fleet_place) says it; empty for none.
    type: str
    default: ""
    version_added: "0.2.0"
  feed_limits:
    description: How many hosts may swing at the same time at each of these feeds, as C(fleet_feed_limits).
    type: dict
    default: {}
    version_added: "0.2.0"
  other_feeds:
    description: How many may at all other feeds together, hosts without a feed included.
    type: int
    default: 1
    version_added: "0.2.0"
  waves_s:
    description: How long the waves that the burn-in asks for take, in seconds.
    type: float
    required: true
    version_added: "0.2.0"
  kubeconfig:
    description: >-
      Kubeconfig of the provisioner on the controller, by which the ledger says that the host swings, so that the scaler
      counts it; empty where nobody reads that. Where it cannot be written, the host swings all the same, and the play
      warns.
    type: path
    default: ""
    version_added: "0.2.0"
  domain:
    description: Domain of the fleet's names in the cluster.
    type: str
    default: muster.dev
    version_added: "0.2.0"
  wait_s:
    description: Longest time to wait for a turn, in seconds.
    type: int
    default: 1800
    version_added: "0.2.0"
  timeout_s:
    description: Longest time to wait once the host has its turn, in seconds; the length of the waves comes on top.
    type: int
    default: 1800
extends_documentation_fragment:
  - muster.fleet.check_mode
  - muster.fleet.program
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Grant power waves to two hosts of feed a at a time, and to one of all others
  muster.fleet.power_grant:
    directory: "{{ fleet_state_dir }}/feeds"
    feed: "{{ fleet_place.feed | default('', true) }}"
    feed_limits: {a: 2}
    other_feeds: 1
    waves_s: "{{ __gpu_burnin_result.waves_s }}"
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

ARGUMENT_SPEC: dict[str, Any] = {
    **PROGRAM_SPEC,
    # The action plugin's, on the controller.
    "directory": {"type": "path", "required": True},
    "feed": {"type": "str", "default": ""},
    "feed_limits": {"type": "dict", "default": {}},
    "other_feeds": {"type": "int", "default": 1},
    "waves_s": {"type": "float", "required": True},
    "kubeconfig": {"type": "path", "default": ""},
    "domain": {"type": "str", "default": "muster.dev"},
    "wait_s": {"type": "int", "default": 1800},
}


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
