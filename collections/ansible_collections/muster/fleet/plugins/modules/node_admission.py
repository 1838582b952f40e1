#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Admitting GPU nodes. Thin: the rules are gpu_burnin.admission.node, the pass gpu_burnin.admission.admitter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.admission.admitter import Admitter, NodeSpec, Settings, admit, as_json
    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.errors import GpuBurninError

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: node_admission
short_description: Let in nodes with valid evidence of a burn-in, and taint again those without
version_added: "0.1.0"
description:
  - Acts as the admitter. For each node in O(nodes) it verifies the signed evidence that the node has published, with
    the host key pinned in O(known_hosts), and writes taints, labels and the condition C(GPUVerified).
  - A node with evidence of a PASS of its current boot is admitted. All others are held. One that has booted again, has
    stopped reporting or has no valid evidence any more gets its preflight taint back.
  - A held node is a result, not a failure. Only a node in O(expect) that has not registered or published evidence of
    its current boot within O(wait_s) fails the task.
  - Keeps the highest sequence seen of each node in O(ledger_dir), so that an old PASS cannot replace a newer FAIL.
options:
  kubeconfig:
    description:
      - Kubeconfig of the admitter. Its user needs C(get), C(list) and C(patch) of nodes and C(patch) of
        C(nodes/status).
    type: path
    required: true
  nodes:
    description: The GPU nodes. Nodes that are not listed are left alone.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Node name.
        type: str
        required: true
      address:
        description: Address under which O(known_hosts) has the host's key. Without it, O(nodes[].name).
        type: str
      port:
        description: Port of sshd under which O(known_hosts) has the host's key.
        type: int
        default: 22
      allow_simulated:
        description: Admit evidence of simulated hardware, and label the node so. Only for a lab.
        type: bool
        default: false
      gate_closed:
        description:
          - What the node says of its own gate when that is closed. Such a node is held whatever it has published, since
            it knows of newer runs that left no evidence. Empty when the gate is open or was not asked.
        type: str
        version_added: "0.2.0"
        default: ""
  known_hosts:
    description: The project's known_hosts file with the pinned host keys.
    type: path
    required: true
  ledger_dir:
    description: Directory on the controller that keeps what was seen of each node. Made with mode 0700.
    type: path
    required: true
  evidence_ttl_s:
    description:
      - Age in seconds after which evidence is expired. Each node's is up to 10 % shorter, so that they do not expire
        together; at most 5 % of the nodes (but one) are held for expired evidence at a time.
    type: float
    default: 604800
  domain:
    description: Domain of the taint and of the annotations.
    type: str
    default: muster.dev
  expect:
    description: Names of nodes that should register, because their burn-in passed.
    type: list
    elements: str
    default: []
  wait_s:
    description: How long to wait for the nodes in O(expect), in seconds.
    type: float
    default: 120
attributes:
  check_mode:
    support: full
    description: In check mode nothing is written and nothing is waited for; the actions are those that would be taken.
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Admit the GPU nodes
  muster.fleet.node_admission:
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admitter.kubeconfig"
    known_hosts: "{{ fleet_known_hosts }}"
    ledger_dir: "{{ fleet_state_dir }}/admission"
    nodes:
      - name: gpu-1
        address: 10.0.0.61
      - name: gpu-2
        address: 10.0.0.62
    expect: [gpu-1, gpu-2]
  register: admission
"""

RETURN = r"""
nodes:
  description: One entry for each node, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    name: {description: Node name., type: str, sample: gpu-1}
    state: {description: C(ready) C(held) or C(absent)., type: str, sample: ready}
    verdict:
      description: The verdict label, C(pass) C(fail) C(inconclusive) or C(expired); null when the node is absent.
      type: str
      sample: pass
    reasons:
      description: Why, each with C(code) and C(message).
      type: list
      elements: dict
      sample: [{code: PASS, message: "gpu-1: burn-in run 3 (quick) passed in boot 0b1c..."}]
    action:
      description: What was (or would be) done, C(admit) C(hold) C(retaint) or C(nothing).
      type: str
      sample: admit
    simulated: {description: Whether it was admitted on simulated hardware., type: bool, sample: false}
    boot_id: {description: Boot that kubelet reports., type: str, sample: 0b1c2d3e-0000-4000-8000-000000000000}
    sequence: {description: Highest sequence of evidence seen., type: int, sample: 3}
missing:
  description: For each node in O(expect) that did not come what is missing.
  returned: always
  type: dict
  sample: {}
"""

NODE_OPTIONS = {
    "name": {"type": "str", "required": True},
    "address": {"type": "str"},
    "port": {"type": "int", "default": 22},
    "allow_simulated": {"type": "bool", "default": False},
    "gate_closed": {"type": "str", "default": ""},
}


ARGUMENT_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "nodes": {"type": "list", "elements": "dict", "required": True, "options": NODE_OPTIONS},
    "known_hosts": {"type": "path", "required": True},
    "ledger_dir": {"type": "path", "required": True},
    "evidence_ttl_s": {"type": "float", "default": 604800},
    "domain": {"type": "str", "default": "muster.dev"},
    "expect": {"type": "list", "elements": "str", "default": []},
    "wait_s": {"type": "float", "default": 120},
}


def admit_nodes(module: AnsibleModule) -> dict[str, Any]:
    """Run the admitter and give each node's state. Raises FleetError with what did not come."""
    parameters = module.params
    specs = [
        NodeSpec(
            node["name"], node["address"] or node["name"], node["port"], node["allow_simulated"], node["gate_closed"]
        )
        for node in parameters["nodes"]
    ]
    unknown = sorted(set(parameters["expect"]) - {spec.name for spec in specs})
    if unknown:
        raise FleetError(f"expect names {', '.join(unknown)}, which nodes does not have; add them there")
    settings = Settings(
        known_hosts=Path(parameters["known_hosts"]),
        ledger_dir=Path(parameters["ledger_dir"]),
        domain=parameters["domain"],
        ttl_s=parameters["evidence_ttl_s"],
    )
    try:
        admitter = Admitter(KubeApi(Path(parameters["kubeconfig"])), settings, apply=not module.check_mode)
        wait_s = 0.0 if module.check_mode else parameters["wait_s"]
        reports, missing = admit(admitter, specs, parameters["expect"], wait_s)
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    nodes = [as_json(report) for report in reports]
    output = {
        "changed": any(node["action"] != "nothing" for node in nodes),
        "nodes": nodes,
        "missing": missing,
    }
    if missing and not module.check_mode:
        head = f"after {parameters['wait_s']:g} s these nodes, whose burn-in passed, cannot be admitted:"
        raise FleetError("\n".join([head, *(f"- {m}" for m in missing.values())]), **output)
    return output


def main() -> None:
    """Entry point."""
    run_module(admit_nodes, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
