#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Objects of the cluster as the fleet wants them. Thin: see gpu_burnin.admission.objects."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.admission.client import Conflict, KubeApi
    from gpu_burnin.admission.objects import write_objects
    from gpu_burnin.errors import GpuBurninError

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: kube_objects
short_description: Have objects in the cluster, and use the identity that may write them only where they differ
version_added: "0.2.0"
description:
  - Reads each object as the user of O(kubeconfig). Only where one is missing or differs it is written, by server-side
    apply, as the user of O(write_kubeconfig). A cluster that is as it should be does not see that user, so that each
    use of a break-glass identity means something.
  - Where the first user may not read (before the first run nobody has rights) the second one reads.
  - What an object says beyond what is asked for stays. Nothing is deleted.
options:
  kubeconfig:
    description: Kubeconfig of the user that reads.
    type: path
    required: true
  write_kubeconfig:
    description: Kubeconfig of the user that writes.
    type: path
    required: true
  objects:
    description: The objects, in the order in which they are written. Namespaces, roles and their bindings, priorities.
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    support: full
    description: In check mode nothing is written.
  diff_mode:
    support: full
    description: Shows the objects that differ.
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Apply the fleet's roles and bindings
  muster.fleet.kube_objects:
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
    write_kubeconfig: "{{ fleet_state_dir }}/kubeconfig/break-glass.kubeconfig"
    objects: "{{ lookup('ansible.builtin.template', 'rbac.yaml.j2') | from_yaml_all | list }}"
  delegate_to: localhost
"""

RETURN = r"""
written:
  description: Objects that were (or would be) written, as kind, namespace and name.
  returned: success
  type: list
  elements: str
  sample: [ClusterRole/muster:admin]
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "write_kubeconfig": {"type": "path", "required": True},
    "objects": {"type": "list", "elements": "dict", "required": True},
}


def write(module: AnsibleModule) -> dict[str, Any]:
    """Write what differs. Raises FleetError."""
    params = module.params

    @cache
    def writer() -> KubeApi:
        return KubeApi(Path(params["write_kubeconfig"]))

    try:
        reader = KubeApi(Path(params["kubeconfig"]))
        done = write_objects(params["objects"], reader, writer, apply=not module.check_mode)
    except (GpuBurninError, Conflict) as error:
        raise FleetError(str(error)) from error
    return {
        "changed": bool(done.names),
        "written": list(done.names),
        "diff": {"before": done.before, "after": done.after},
    }


def main() -> None:
    """Entry point."""
    run_module(write, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
