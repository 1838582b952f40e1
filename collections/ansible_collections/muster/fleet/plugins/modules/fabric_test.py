#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""A member's part in a test between nodes. Thin: see module_utils/host/fabric_test.py."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import fabric_test
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import run_command

DOCUMENTATION = r"""
module: fabric_test
short_description: Do a node's part in a test between nodes
version_added: "0.2.0"
description:
  - C(muster fabric run) calls it for each member of a round by C(playbooks/fabric.yml), one phase after the other. What
    a host gives goes into the round's folder on the controller.
  - The test runs in a transient unit of systemd, which ends by itself when the controller is gone.
  - A host that cannot take part is no failure of the task; the reason is in RV(problem).
options:
  phase:
    description: >-
      C(look) reads the boot and who works on the GPUs, and ends a test that an earlier call left. C(offer) has rank 0
      of a test make its offer. C(start) begins the test. C(wait) waits for its end, also over a reboot, and takes the
      view.
    type: str
    choices: [look, offer, start, wait]
    required: true
  round_directory:
    description: Folder of the round on the controller.
    type: path
    required: true
  test:
    description: Number of the host's test; not for C(look).
    type: int
  wait_s:
    description: How long the members may take to meet and to test, in seconds.
    type: int
    default: 300
  directory:
    description: Folder on the host, for root alone. Its last part is the name of the unit.
    type: path
    default: /run/gpu-burnin-fabric
  program:
    description: The gpu-burnin command.
    type: path
    default: /usr/local/bin/gpu-burnin
  document:
    description: What the phase needs, the test of an offer or the offer itself. The action plugin gives it.
    type: str
    default: ""
  keys:
    description: The host keys of the members. The action plugin gives them.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: In check mode it looks, and tests nothing.
  diff_mode:
    support: none
    description: There is no diff.
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Start the tests
  muster.fleet.fabric_test:
    phase: start
    round_directory: "{{ fabric_round_dir }}"
    test: "{{ fabric_test_id }}"
"""

RETURN = r"""
boot_id:
  description: The boot of the host.
  returned: with C(look) and C(wait)
  type: str
working:
  description: The processes that compute on a GPU.
  returned: with C(look)
  type: list
  elements: str
code:
  description: The exit code of C(gpu-burnin fabric join), absent where it has not ended.
  returned: with C(wait), when it has ended
  type: int
runs:
  description: Whether a test may go on that could not be ended; RV(problem) then says why.
  returned: with C(look) and C(wait)
  type: bool
problem:
  description: Why the host takes no part, as one sentence; empty where it does.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "phase": {"type": "str", "choices": ["look", "offer", "start", "wait"], "required": True},
    "round_directory": {"type": "path", "required": True},
    "test": {"type": "int"},
    "wait_s": {"type": "int", "default": 300},
    "directory": {"type": "path", "default": "/run/gpu-burnin-fabric"},
    "program": {"type": "path", "default": "/usr/local/bin/gpu-burnin"},
    # An offer has the secret by which the members know each other; it is sent by the action and shown to nobody.
    "document": {"type": "str", "default": "", "no_log": True},
    "keys": {"type": "str", "default": "", "no_log": False},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """The phase. Raises FleetError."""
    given = module.params
    member = fabric_test.Member(given["directory"], given["program"], run_command, act=not module.check_mode)
    match given["phase"]:
        case "look":
            found: dict[str, Any] = member.look()
        case "offer":
            found = member.offer(given["document"])
        case "start":
            found = member.start(given["document"], given["keys"], given["wait_s"])
        case _:
            found = member.wait(given["wait_s"])
    return found


def main() -> None:
    """Entry point."""
    run_module(work, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
