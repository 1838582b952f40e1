#!/usr/bin/python
"""Ansible module: reset GPUs of a host that has no work."""

from __future__ import annotations

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: gpu_reset
short_description: Reset GPUs
version_added: "0.2.0"
description:
  - Calls C(gpu-burnin repair reset), which resets GPUs by the rules of nvidia-smi. Services that only watch GPUs are
    stopped for it and started again. GPUs that cannot be reset one by one are reset together.
  - A process that computes on a GPU fails the task with nothing done. A reset that the driver refuses is a result
    (RV(done) is false).
  - In check mode nothing is reset.
options:
  gpus:
    description: UUIDs of the GPUs; empty for all.
    type: list
    elements: str
    default: []
  program:
    description: Path of gpu-burnin on the host.
    type: path
    default: /usr/local/bin/gpu-burnin
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Reset one GPU
  muster.fleet.gpu_reset:
    gpus: [GPU-4a1d2c00-0000-4000-8000-000000000003]
"""

RETURN = r"""
done:
  description: Whether all of them were reset and answer again.
  returned: success
  type: bool
message:
  description: Why not, as one clause; empty where it is done.
  returned: success
  type: str
gpus:
  description: UUIDs of the GPUs that were reset, or tried.
  returned: success, but for check mode
  type: list
  elements: str
whole:
  description: Whether all GPUs were reset in one command.
  returned: success, but for check mode
  type: bool
stopped:
  description: Services that were stopped for it.
  returned: success, but for check mode
  type: list
  elements: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "gpus": {"type": "list", "elements": "str", "default": []},
    "program": {"type": "path", "default": "/usr/local/bin/gpu-burnin"},
}
# What gpu-burnin repair reset ends with: done, failed; others are errors with nothing done.
_RESULTS = (0, 1)


def reset(module: AnsibleModule) -> dict[str, Any]:
    """Reset them. Raises FleetError where nothing was done."""
    if module.check_mode:
        return {"changed": True, "done": False, "message": "check mode"}
    command = [module.params["program"], "repair", "reset", *module.params["gpus"]]
    code, out, err = module.run_command(command)
    if code not in _RESULTS:
        said = err.strip().rpartition("\n")[2].removeprefix("gpu-burnin: ")
        raise FleetError(said or f"gpu-burnin repair reset ended with {code} and said nothing", untouched=True)
    try:
        return {"changed": True, **json.loads(out)}
    except ValueError as error:
        raise FleetError(f"gpu-burnin repair reset did not answer in JSON ({error}); install this version") from error


def main() -> None:
    """Entry point."""
    run_module(reset, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
