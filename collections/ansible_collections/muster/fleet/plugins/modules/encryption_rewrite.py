#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: encrypted objects written again as they are. Its action does it: gpu_burnin.admission.rewrite."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: encryption_rewrite
short_description: Write encrypted objects again, so that they are under the key that writes now
version_added: "0.2.0"
description:
  - Runs on the controller.
  - Lists the names of all objects of each kind before the first write, so it may take longer than etcd keeps a version.
    Then it reads each and writes it back as it is, in the version that was read. One that somebody else has changed or
    removed meanwhile is left alone, because it was written with the new key then.
  - Work that takes longer than a few seconds says how far it is, and how long it will take.
  - In check mode it asks for the objects of each kind and writes none, so that a user who may not is refused before.
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
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Write all secrets again
  muster.fleet.encryption_rewrite:
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
    resources: [secrets]
  run_once: true
"""

RETURN = r"""
written:
  description: How many objects were written again, by kind.
  type: dict
  returned: success
  sample: {secrets: 200}
left:
  description: How many were left to who changed or removed them meanwhile, by kind.
  type: dict
  returned: success
  sample: {secrets: 1}
found:
  description: About how many there were at the beginning, by kind.
  type: dict
  returned: success
  sample: {secrets: 201}
elapsed_s:
  description: How long it took, in seconds.
  type: float
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "resources": {"type": "list", "elements": "str", "required": True},
}


def refuse(module: AnsibleModule) -> dict[str, Any]:
    """Never reached by a task, since the action plugin does the work. Raises FleetError."""
    raise FleetError("encryption_rewrite runs on the controller; call it as muster.fleet.encryption_rewrite")


def main() -> None:
    """Entry point."""
    run_module(refuse, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
