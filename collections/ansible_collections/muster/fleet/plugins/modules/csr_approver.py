#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Approving kubelets' certificate requests. Thin: the rules are gpu_burnin.admission.approve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.admission.approve import InventoryNode, approve
    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.errors import GpuBurninError

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: csr_approver
short_description: Approve certificate requests of kubelets that match the inventory
version_added: "0.1.0"
description:
  - Approves CertificateSigningRequests of the signers C(kubernetes.io/kube-apiserver-client-kubelet) and
    C(kubernetes.io/kubelet-serving) whose requestor, subject, usages, DNS names and addresses are those of a node in
    O(nodes).
  - Requests that differ are left pending and reported with what differs. They are never denied, so that a corrected
    inventory is enough to let them pass.
  - Waits until each node in O(wait_for) has its serving certificate.
options:
  kubeconfig:
    description:
      - Kubeconfig of the approver. Its user needs C(get) and C(list) of nodes and CSRs, C(update) of
        C(certificatesigningrequests/approval), and C(approve) for the two signers.
    type: path
    required: true
  nodes:
    description: The nodes whose requests may be approved.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Node name, which kubelet puts into its certificates (CN C(system:node:NAME)).
        type: str
        required: true
      addresses:
        description: IP addresses that a serving certificate of this node may carry.
        type: list
        elements: str
        required: true
      dns_names:
        description: DNS names, besides O(nodes[].name), that a serving certificate of this node may carry.
        type: list
        elements: str
        default: []
  wait_for:
    description: Names of nodes to wait for until their serving certificate is issued.
    type: list
    elements: str
    default: []
  wait_s:
    description: How long to wait, in seconds. A node that has no certificate by then fails the task.
    type: float
    default: 120
attributes:
  check_mode:
    support: full
    description: In check mode nothing is approved and nothing is waited for; RV(approved) says what would be.
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Approve the kubelets' certificates
  muster.fleet.csr_approver:
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/csr-approver.kubeconfig"
    nodes:
      - name: gpu-1
        addresses: [10.0.0.61]
    wait_for: [gpu-1]
"""

RETURN = r"""
approved:
  description: Requests that were (or would be) approved.
  returned: always
  type: list
  elements: dict
  contains:
    csr: {description: Name of the request., type: str, sample: csr-8x2fd}
    node: {description: Node it is for., type: str, sample: gpu-1}
    signer: {description: Its signer., type: str, sample: kubernetes.io/kubelet-serving}
pending:
  description: Requests that do not match the inventory and were left alone.
  returned: always
  type: list
  elements: dict
  contains:
    csr: {description: Name of the request., type: str, sample: csr-9kd2w}
    node: {description: Node it is for, empty when it is none of the inventory., type: str, sample: gpu-2}
    signer: {description: Its signer., type: str, sample: kubernetes.io/kubelet-serving}
    refusals: {description: What differs., type: list, elements: str, sample: ["addresses ['10.9.9.9'] are not ..."]}
missing:
  description: For each node in O(wait_for) without serving certificate what is missing.
  returned: always
  type: dict
  sample: {}
"""

NODE_OPTIONS = {
    "name": {"type": "str", "required": True},
    "addresses": {"type": "list", "elements": "str", "required": True},
    "dns_names": {"type": "list", "elements": "str", "default": []},
}


ARGUMENT_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "nodes": {"type": "list", "elements": "dict", "required": True, "options": NODE_OPTIONS},
    "wait_for": {"type": "list", "elements": "str", "default": []},
    "wait_s": {"type": "float", "default": 120},
}


def approve_requests(module: AnsibleModule) -> dict[str, Any]:
    """Approve and wait. Raises FleetError with what is missing."""
    parameters = module.params
    nodes = parameters["nodes"]
    unknown = sorted(set(parameters["wait_for"]) - {node["name"] for node in nodes})
    if unknown:
        raise FleetError(f"wait_for names {', '.join(unknown)}, which nodes does not have; add them there")
    try:
        outcome = approve(
            KubeApi(Path(parameters["kubeconfig"])),
            {n["name"]: InventoryNode.of(n["name"], n["addresses"], n["dns_names"]) for n in nodes},
            parameters["wait_for"],
            0.0 if module.check_mode else parameters["wait_s"],
            apply=not module.check_mode,
        )
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    output = {
        "changed": bool(outcome.approved),
        "approved": [{"csr": j.csr, "node": j.node, "signer": j.signer} for j in outcome.approved],
        "pending": [
            {"csr": j.csr, "node": j.node, "signer": j.signer, "refusals": list(j.refusals)} for j in outcome.pending
        ],
        "missing": dict(outcome.missing),
    }
    if outcome.missing and not module.check_mode:
        lines = [f"after {parameters['wait_s']:g} s these nodes have no serving certificate:"]
        raise FleetError("\n".join(lines + [f"- {m}" for m in outcome.missing.values()]), **output)
    return output


def main() -> None:
    """Entry point."""
    run_module(approve_requests, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
