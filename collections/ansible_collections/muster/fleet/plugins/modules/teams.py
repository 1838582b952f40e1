#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The fleet's teams in the cluster. Thin: see module_utils/jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from ansible_collections.muster.fleet.plugins.module_utils.jobs.apply import Applier
    from ansible_collections.muster.fleet.plugins.module_utils.jobs.objects import objects
    from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import teams_and_fleet

    from gpu_burnin.admission.client import Conflict, KubeApi
    from gpu_burnin.api.names import Names
    from gpu_burnin.errors import GpuBurninError

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: teams
short_description: Have the fleet's teams in the cluster, with their namespaces, queues, quotas and rights
version_added: "0.2.0"
description:
  - Makes of O(teams) one namespace, C(ClusterQueue), C(LocalQueue), C(LimitRange), C(ResourceQuota) and C(RoleBinding)
    for each team, and what they share, which is the tree of places, a C(ResourceFlavor) for each GPU model, the cohort,
    the check C(verified), and priorities. Writes only what differs.
  - What it has made says then what O(teams) says and no more. Labels, annotations and C(stopPolicy) of others stay.
  - Removes what it has made for teams that are not in O(teams) any more, but no namespace, which loses its label alone.
    Refuses it, before anything is written, while such a team has jobs or pods that have not ended.
  - Refuses to take a namespace or a queue that somebody else has made.
options:
  kubeconfig:
    description: Kubeconfig of the provisioner.
    type: path
    required: true
  teams:
    description: The teams, as C(fleet_teams).
    type: dict
    required: true
  users:
    description: The users with certificates, as C(fleet_users).
    type: list
    elements: str
    default: []
  nodes:
    description: The GPU nodes.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Node name.
        type: str
        required: true
      expect:
        description: What the burn-in expects of its hardware; C(gpus) and C(model) count.
        type: dict
        default: {}
      place:
        description: Where it stands, as C(fleet_place).
        type: dict
        default: {}
  scale:
    description: Whether jobs wait for machines that are switched on. Each queue then has the check C(powered) too.
    type: bool
    default: false
  domain:
    description: Domain of labels, taints and the check.
    type: str
    default: muster.dev
attributes:
  check_mode:
    support: full
    description: In check mode nothing is written or removed. Neither Kueue nor the provisioner's rights need be there.
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
- name: Have the teams in the cluster
  muster.fleet.teams:
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/provisioner.kubeconfig"
    teams:
      vision: {gpus: 256, weight: 2, members: [alice, "group:oidc-vision"]}
    users: [alice]
    nodes:
      - {name: gpu-1, expect: {gpus: 8, model: h100-sxm5-80gb}, place: {leaf: leaf-7, rack: r12}}
  delegate_to: localhost
"""

RETURN = r"""
written:
  description: Objects that were (or would be) written, as kind, namespace and name.
  returned: success
  type: list
  elements: str
  sample: [Namespace/vision, ClusterQueue/vision]
removed:
  description: Objects that were (or would be) removed.
  returned: success
  type: list
  elements: str
  sample: []
"""

NODE_OPTIONS = {
    "name": {"type": "str", "required": True},
    "expect": {"type": "dict", "default": {}},
    "place": {"type": "dict", "default": {}},
}
ARGUMENT_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "teams": {"type": "dict", "required": True},
    "users": {"type": "list", "elements": "str", "default": []},
    "nodes": {"type": "list", "elements": "dict", "required": True, "options": NODE_OPTIONS},
    "scale": {"type": "bool", "default": False},
    "domain": {"type": "str", "default": "muster.dev"},
}


def have_teams(module: AnsibleModule) -> dict[str, Any]:
    """Write what differs, remove what has gone. Raises FleetError."""
    params, names = module.params, Names(module.params["domain"])
    expects, places = ({node["name"]: node[part] for node in params["nodes"]} for part in ("expect", "place"))
    teams, fleet = teams_and_fleet(params["teams"], params["users"], expects, places)
    try:
        applier = Applier(KubeApi(Path(params["kubeconfig"])), names)
        plan = applier.plan(objects(teams, fleet, names, scale=params["scale"]), ahead=module.check_mode)
        if not module.check_mode:
            applier.carry_out(plan)
    except (GpuBurninError, Conflict) as error:
        raise FleetError(str(error)) from error
    return {
        "changed": bool(plan.write or plan.remove or plan.release),
        "written": plan.names,
        "removed": plan.removed,
        "diff": {"before": plan.before, "after": plan.after},
    }


def main() -> None:
    """Entry point."""
    run_module(have_teams, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
