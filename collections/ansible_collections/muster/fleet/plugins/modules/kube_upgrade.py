#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The options of the phases of an upgrade. It runs on the controller: plugins/action/kube_upgrade.py."""

from __future__ import annotations

from typing import Any

DOCUMENTATION = r"""
module: kube_upgrade
short_description: Judge an upgrade of etcd and Kubernetes, and say what is left to do
version_added: "0.2.0"
description:
  - Judges what all hosts run and are to run by the rules of Kubernetes and etcd for versions beside each other, with
    all problems at once. Changes nothing. What a host runs it takes from its C(upgrade_found), which
    M(muster.fleet.upgrade_facts) has returned.
options:
  phase:
    description:
      - C(plan) judges and chooses. What is refused is a result, so that the run can clean up before it ends.
      - C(stop) fails with O(why), what every host runs and what to do. C(report) tells what every host runs, and fails
        with O(refused).
    type: str
    choices: [plan, stop, report]
    required: true
  part:
    description: For C(plan), what is to be upgraded.
    type: str
    choices: [all, etcd, control_plane, nodes]
    default: all
  nodes_at_once:
    description: For C(plan), how many nodes of a batch are upgraded beside each other.
    type: str
    default: "20"
  kubeconfig:
    description: >-
      For C(plan), the kubeconfig with which pods are read where a kubelet changes its minor, and what native gangs have
      left where an API server does.
    type: path
  gang:
    description: For C(plan), C(fleet_gang).
    type: str
    choices: [kueue, native, ending]
    default: kueue
  domain:
    description: Domain of the fleet's taints and annotations.
    type: str
    default: muster.dev
  why:
    description: For C(stop), the error.
    type: str
    default: ""
  step:
    description:
      - The folder of the step of C(muster roll) that this run is; empty for none. Of the nodes those of its shard alone
        are judged, and after one that has failed the others go on.
    type: str
    default: ""
  refused:
    description: For C(report), why C(plan) refused the upgrade; empty where it did not.
    type: str
    default: ""
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
notes:
  - Runs on the controller, with the Python of C(ansible-playbook), which needs C(gpu-burnin[controller]).
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Evaluate the fleet by the rules
  muster.fleet.kube_upgrade:
    phase: plan
    part: etcd
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
"""

RETURN = r"""
refused:
  description: Why nothing may be done; empty where it may.
  type: str
  returned: in the phase plan
members:
  description:
    - Each host with something left to do and its phase, C(etcd), C(etcd_events), C(closed), C(servers), C(opened),
      C(controllers) or C(nodes), in their order; none in check mode.
  type: list
  elements: dict
  returned: in the phase plan
batches:
  description: How many nodes at a time.
  type: list
  elements: int
  returned: in the phase plan
etcd:
  description: The minor of etcd that is wanted.
  type: str
  returned: in the phase plan
left:
  description: Each node that stays as it is, with the reason.
  type: dict
  returned: in the phase plan
text:
  description: One line for each program that changes, and for each node that is left as it is.
  type: list
  elements: str
  returned: in the phase plan
state:
  description: One line for each host, with what it runs.
  type: list
  elements: str
  returned: always
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "phase": {"type": "str", "choices": ["plan", "stop", "report"], "required": True},
    "part": {"type": "str", "choices": ["all", "etcd", "control_plane", "nodes"], "default": "all"},
    "nodes_at_once": {"type": "str", "default": "20"},
    "kubeconfig": {"type": "path"},
    "gang": {"type": "str", "choices": ["kueue", "native", "ending"], "default": "kueue"},
    "domain": {"type": "str", "default": "muster.dev"},
    "why": {"type": "str", "default": ""},
    "step": {"type": "str", "default": ""},
    "refused": {"type": "str", "default": ""},
}
