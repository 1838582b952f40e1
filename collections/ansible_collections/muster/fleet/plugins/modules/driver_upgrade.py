#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The options of a driver upgrade's phases. It runs on the controller: plugins/action/driver_upgrade.py."""

from __future__ import annotations

from typing import Any

DOCUMENTATION = r"""
module: driver_upgrade
short_description: Decide which hosts get another NVIDIA driver next, and when they work again
version_added: "0.2.0"
description:
  - The decisions of C(playbooks/driver_upgrade.yml), and what it asks of the admitter. The role C(driver_upgrade) calls
    it in phases.
  - C(plan) chooses hosts and batches, and refuses while another upgrade runs. C(next) says before each batch whether
    the run goes on.
  - C(begin) asks the work on O(node) to leave, waits for it, and looks at the host whether something works there
    still. C(test) and C(admit) come before the burn-in and after it; C(admit) gives the host back and waits until it is
    let in. C(fail) keeps it out of work.
  - C(summary) tells what became of each host and what to do next, and fails where one stays out of work.
  - In check mode nothing is asked for and nothing is written.
options:
  phase:
    description: Which of the decisions is due.
    type: str
    choices: [plan, next, begin, test, admit, fail, summary]
    required: true
  directory:
    description: Folder on the controller for the run and its hosts.
    type: path
    required: true
  kubeconfig:
    description: Kubeconfig of an admin. Its user stands in what is asked.
    type: path
    required: true
  program:
    description: Path of C(gpu-burnin) on the host.
    type: path
    default: /usr/local/bin/gpu-burnin
  domain:
    description: Domain of the taints and of the NodeAdmissions.
    type: str
    default: muster.dev
  hosts:
    description: For C(plan), the hosts that were named, in their order.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Its name.
        type: str
        required: true
      source:
        description: Its C(fleet_nvidia_source).
        type: str
        required: true
      wanted:
        description: The driver version that the inventory asks for.
        type: str
        default: ""
      loaded:
        description: The version that is loaded; empty for none.
        type: str
        default: ""
      differs:
        description: What is not as asked; empty where all is.
        type: str
        default: ""
      cannot:
        description: Why it cannot have the driver, or could not be asked.
        type: str
        default: ""
      lacks:
        description: What no package source has of what would be installed; empty where all can be had.
        type: str
        default: ""
  max_nodes:
    description: How many hosts are out of work at a time.
    type: int
    default: 8
  max_failures:
    description: After how many hosts that stay out no further batch begins.
    type: int
    default: 1
  node:
    description: The host, for the phases that are about one.
    type: str
    default: ""
  loaded:
    description: For C(begin) and C(test), the version of the driver that is loaded.
    type: str
    default: ""
  maintenance:
    description: Which maintenance window of the inventory's calendar is near or open, as one sentence; empty for none.
    type: str
    default: ""
  held:
    description: For C(test), why the roles hold the host, by part; empty texts where they do not.
    type: dict
    default: {}
  verdict:
    description: For C(admit), the burn-in's.
    type: str
    default: ""
  why:
    description: For C(admit) and C(fail), the reason.
    type: str
    default: ""
  drain_timeout_s:
    description: How long work may take to leave, in seconds.
    type: float
    default: 3600
  admission_timeout_s:
    description: How long the admitter may take to let a host in, in seconds.
    type: float
    default: 900
  command:
    description: For C(summary), how the playbook is called, without its hosts.
    type: str
    default: ansible-playbook playbooks/driver_upgrade.yml
extends_documentation_fragment:
  - muster.fleet.check_mode
notes:
  - Runs on the controller, with the Python of C(ansible-playbook), which needs C(gpu-burnin[controller]).
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Drain the host
  muster.fleet.driver_upgrade:
    phase: begin
    node: gpu-1
    directory: "{{ fleet_state_dir }}/driver-upgrade"
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
"""

RETURN = r"""
batches:
  description: How many hosts at a time.
  returned: in the phase plan
  type: list
  elements: int
hosts:
  description: The hosts that get the driver, in their order.
  returned: in the phase plan
  type: list
  elements: str
text:
  description: One line for each host; in the phase summary then what to do next.
  returned: in the phases plan and summary
  type: list
  elements: str
stop:
  description: Why no further batch begins; empty where one may.
  returned: in the phase next
  type: str
given_back:
  description: Why nothing was done to the host, and it works on; empty where the run goes on with it.
  returned: in the phase begin
  type: str
"""

HOST_OPTIONS = {
    "name": {"type": "str", "required": True},
    "source": {"type": "str", "required": True},
    "wanted": {"type": "str", "default": ""},
    "loaded": {"type": "str", "default": ""},
    "differs": {"type": "str", "default": ""},
    "cannot": {"type": "str", "default": ""},
    "lacks": {"type": "str", "default": ""},
}
ARGUMENT_SPEC: dict[str, Any] = {
    "phase": {
        "type": "str",
        "choices": ["plan", "next", "begin", "test", "admit", "fail", "summary"],
        "required": True,
    },
    "directory": {"type": "path", "required": True},
    "kubeconfig": {"type": "path", "required": True},
    "program": {"type": "path", "default": "/usr/local/bin/gpu-burnin"},
    "domain": {"type": "str", "default": "muster.dev"},
    "hosts": {"type": "list", "elements": "dict", "default": [], "options": HOST_OPTIONS},
    "max_nodes": {"type": "int", "default": 8},
    "max_failures": {"type": "int", "default": 1},
    "node": {"type": "str", "default": ""},
    "loaded": {"type": "str", "default": ""},
    "maintenance": {"type": "str", "default": ""},
    "held": {"type": "dict", "default": {}},
    "verdict": {"type": "str", "default": ""},
    "why": {"type": "str", "default": ""},
    "drain_timeout_s": {"type": "float", "default": 3600.0},
    "admission_timeout_s": {"type": "float", "default": 900.0},
    "command": {"type": "str", "default": "ansible-playbook playbooks/driver_upgrade.yml"},
}
