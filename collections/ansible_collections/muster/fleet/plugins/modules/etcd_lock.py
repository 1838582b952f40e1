#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: one operation on an etcd cluster at a time. The lock: gpu_burnin.fleet.roll.lock."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.fleet.roll import lock
    from gpu_burnin.system.clock import rfc3339

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: etcd_lock
short_description: Keep a second operation off an etcd cluster
version_added: "0.2.0"
description:
  - Takes a lock in a folder of the controller for the run of C(ansible-playbook) that calls it, and refuses with who
    has it, since when and what to do. The lock of a run that has ended, however it ended, keeps nobody out. It is
    taken over, with a warning that says whose it was and since when. Check mode takes nothing, and is refused as well,
    since what a run that works changes is no good to look at.
  - With O(state=free) nothing is taken. It is for what is no operation of its own, and must not meet one; there check
    mode warns.
  - With O(state=shared) several runs have it at once, and keep out those that want it for themselves. It is for the
    shards of C(muster roll).
options:
  directory:
    description: Folder for the lock.
    type: path
    required: true
  what:
    description:
      - What is done to the cluster, as the verb of a sentence that begins with who.
      - Required to take the lock.
    type: str
  state:
    description: Whether to take the lock, or a share of it, to give it back, or to see that no other run has it.
    type: str
    choices: [taken, shared, released, free]
    default: taken
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Acquire the lock on etcd
  muster.fleet.etcd_lock:
    directory: "{{ fleet_state_dir }}/etcd-lock-main"
    what: restores etcd
"""

RETURN = r"""
before:
  description: What is known of a run that ended without giving the lock back, or has it; empty for none.
  type: str
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "directory": {"type": "path", "required": True},
    "what": {"type": "str"},
    "state": {"type": "str", "choices": ["taken", "shared", "released", "free"], "default": "taken"},
}


def keep(module: AnsibleModule) -> dict[str, Any]:
    """Take the lock, give it back, or see that it is free. Raises FleetError where another run has it."""
    given = module.params
    directory, me, shared = Path(given["directory"]), lock.owner(), given["state"] == "shared"
    before = ""
    try:
        if given["state"] == "free":
            before = lock.running(directory, me)
            if before and not module.check_mode:
                raise FleetError(f"{before}. Nothing was done")
        elif module.check_mode:
            # What looks reads what the other run is about to change, and upgrade.yml lays programs ready to look.
            if running := lock.running(directory, me, shared=shared):
                raise FleetError(f"{running}. Nothing was done")
            before = lock.other_holder(directory, me, shared=shared)
        elif given["state"] == "released":
            lock.release(directory, me)
        else:
            mine = lock.Lock(getpass.getuser(), rfc3339(datetime.now(UTC)), me, given["what"])
            before = lock.take(directory, mine, shared=shared)
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    if before:
        module.warn(f"{given['directory']}: {before}")
    # A lock is of the run, and leaves nothing: it is no change of the fleet.
    return {"changed": False, "before": before}


def main() -> None:
    """Entry point."""
    required_if = [("state", "taken", ["what"]), ("state", "shared", ["what"])]
    run_module(keep, ARGUMENT_SPEC, missing=MISSING, required_if=required_if)


if __name__ == "__main__":
    main()
