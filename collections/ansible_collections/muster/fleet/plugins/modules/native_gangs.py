#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Whether Kubernetes' own gangs may be turned off. Thin: see module_utils/kube/native_gangs.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from ansible_collections.muster.fleet.plugins.module_utils.kube.native_gangs import why_not_off

    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.fleet.cluster.native_gangs import gangs_left

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: native_gangs
short_description: Refuse to turn Kubernetes' own gangs off while something of them is left
version_added: "0.2.0"
description:
  - Fails while the cluster has objects of C(scheduling.k8s.io/v1alpha2), and where new ones are still made. When no API
    server serves them any more nobody can see or remove them, and Kubernetes of another minor cannot read them.
  - Changes nothing.
options:
  kubeconfig:
    description: Kubeconfig of an admin.
    type: path
    required: true
  before:
    description: What C(fleet_gang) was when the fleet was last built.
    type: str
    choices: [native, ending]
    required: true
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Refuse to turn native gangs off while something of them is left
  muster.fleet.native_gangs:
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
    before: ending
  delegate_to: localhost
"""

RETURN = r"""
left:
  description: How many objects there are of each kind, and the names of a few; empty without any.
  returned: when the API has answered
  type: str
  sample: 1 PodGroup (vision/train-5f747cfcf7-train-pgt-0-5bc6c789cf)
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "before": {"type": "str", "choices": ["native", "ending"], "required": True},
}


def judge(module: AnsibleModule) -> dict[str, Any]:
    """What is left, which is nothing where they may be turned off. Raises FleetError."""
    try:
        left = gangs_left(KubeApi(Path(module.params["kubeconfig"])))
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    if why := why_not_off(module.params["before"], left):
        raise FleetError(why, left=left)
    return {"changed": False, "left": left}


def main() -> None:
    """Entry point."""
    run_module(judge, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
