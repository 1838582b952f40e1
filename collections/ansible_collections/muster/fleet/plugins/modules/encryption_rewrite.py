#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: encrypted objects written again as they are. Thin: see gpu_burnin.admission.rewrite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.admission.rewrite import rewrite
    from gpu_burnin.errors import GpuBurninError

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: encryption_rewrite
short_description: Write encrypted objects again, so that they are under the key that writes now
version_added: "0.2.0"
description:
  - Reads all objects of each kind, page by page, and writes each back as it is, in the version that was read. One that
    somebody else has changed or removed meanwhile is left alone, because it was written with the new key then.
  - The API server stores nothing where the object is under that key already, so a run that was killed is run again.
options:
  kubeconfig:
    description: Kubeconfig of a user that may read and write these kinds.
    type: path
    required: true
  resources:
    description: The kinds, as C(secrets) or C(widgets.example.com).
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Write all secrets again
  muster.fleet.encryption_rewrite:
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
    resources: [secrets]
  delegate_to: localhost
"""

RETURN = r"""
written:
  description: How many objects were written again, by kind.
  type: dict
  returned: success
  sample: {secrets: 200}
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "resources": {"type": "list", "elements": "str", "required": True},
}


def write(module: AnsibleModule) -> dict[str, Any]:
    """Write all of each kind. Raises FleetError."""
    given = module.params
    if module.check_mode:
        return {"changed": True, "written": {}}
    try:
        api = KubeApi(Path(given["kubeconfig"]))
        written = {resource: rewrite(api, resource) for resource in given["resources"]}
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    return {"changed": any(written.values()), "written": written}


def main() -> None:
    """Entry point."""
    run_module(write, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
