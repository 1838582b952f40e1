#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The options of a repair's phases. It runs on the controller: plugins/action/repair.py."""

from __future__ import annotations

from typing import Any

DOCUMENTATION = r"""
module: repair
short_description: Decide what the repair of a node does next
version_added: "0.2.0"
description:
  - The repair ladder's decisions for one node, and what it asks of the admitter. The role C(repair) calls it in phases.
  - C(begin), C(rung) and C(record) look at the node first, by C(gpu-burnin repair look) on it.
  - C(begin) refuses a node with work, in a maintenance window, beyond O(max_nodes), in another run's or somebody else's
    repair, or to be powered off by a BMC that is not shown to be its own. Otherwise it asks the admitter for the node
    and waits until new work is kept off it. One run has a node at a time.
  - C(rung) chooses the next rung and writes it down as begun. C(record) writes down its end.
  - C(end) gives the node back; with O(hold) into the hands of a technician, for whom it writes an order. C(stop) gives
    it back after an error, and fails with that.
  - In check mode nothing is asked for and nothing is written.
options:
  phase:
    description: Which of the decisions is due.
    type: str
    choices: [begin, rung, record, end, stop]
    required: true
  node:
    description: Name of the node.
    type: str
    required: true
  directory:
    description: Folder on the controller for the steps and the technicians' orders.
    type: path
    required: true
  kubeconfig:
    description: Kubeconfig of an admin. Its user stands in the ask.
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
  max_nodes:
    description: How many nodes of the fleet may be in repair at a time.
    type: int
    default: 1
  has_bmc:
    description: Whether the node has a BMC through which it can be powered off and on.
    type: bool
    default: false
  bmc:
    description: For C(begin), how the node's BMC is reached, as for M(muster.fleet.bmc_power).
    type: dict
    suboptions:
      address:
        description: Its address.
        type: str
        default: ""
      user:
        description: Who logs in.
        type: str
        default: ""
      password:
        description: The user's password.
        type: str
        default: ""
      ca_file:
        description: Authorities of its certificate, on the controller; the system's by default.
        type: path
      verify:
        description: Whether its certificate is verified.
        type: bool
        default: true
      system:
        description: Id of the machine where the BMC has several.
        type: str
        default: ""
      identity_check:
        description: Whether the BMC has to be shown to be this machine's.
        type: bool
        default: true
  maintenance:
    description: Which maintenance window of the inventory's calendar is near or open, as one sentence; empty for none.
    type: str
    default: ""
  despite_maintenance:
    description: Begin in a maintenance window too, or where nobody knows whether there is one.
    type: bool
    default: false
  unreached:
    description: Begin with a node that does not answer, whose processes nobody can see.
    type: bool
    default: false
  failed:
    description: For C(record), why the rung could not be climbed; empty where it was.
    type: str
    default: ""
  untouched:
    description: For C(stop), whether nothing was done to the node in the step that was begun.
    type: bool
    default: false
  hold:
    description: For C(end), whether the node is held for a technician.
    type: bool
    default: false
  why:
    description: For C(end), what C(rung) said; for C(stop), the error.
    type: str
    default: ""
  report:
    description:
      - The node's newest report on the controller. It tells which machine it is where that does not answer, and what
        the technician has to know.
    type: path
    required: true
extends_documentation_fragment:
  - muster.fleet.check_mode
notes:
  - Runs on the controller, with the Python of C(ansible-playbook), which needs C(gpu-burnin[controller]).
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Choose the next rung
  muster.fleet.repair:
    phase: rung
    node: gpu-1
    report: "{{ fleet_state_dir }}/reports/gpu-1/report.json"
    directory: "{{ fleet_state_dir }}/repair"
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
"""

RETURN = r"""
rung:
  description: The next rung, one of retest, reset_gpu, reboot, power_cycle and hold; empty where nothing is left to do.
  returned: in the phases begin and rung
  type: str
why:
  description: Why it is that one.
  returned: in the phases begin and rung
  type: str
gpus:
  description: UUIDs of the GPUs to reset; empty for all.
  returned: in the phase rung
  type: list
  elements: str
level:
  description: The level at which the node was tested last.
  returned: in the phases begin and rung
  type: str
dmi:
  description: What the node says of its own UUID and serial number.
  returned: in the phases begin and rung
  type: dict
step:
  description: The step as it was written down.
  returned: in the phase record
  type: dict
order:
  description: The technician's order.
  returned: in the phase end, with O(hold)
  type: dict
text:
  description: The same for people.
  returned: in the phase end, with O(hold)
  type: str
path:
  description: Where the text is kept; beside it, in JSON, with the suffix C(.json).
  returned: in the phase end, with O(hold)
  type: str
"""

BMC_OPTIONS = {
    "address": {"type": "str", "default": ""},
    "user": {"type": "str", "default": ""},
    "password": {"type": "str", "default": "", "no_log": True},
    "ca_file": {"type": "path"},
    "verify": {"type": "bool", "default": True},
    "system": {"type": "str", "default": ""},
    "identity_check": {"type": "bool", "default": True},
}
ARGUMENT_SPEC: dict[str, Any] = {
    "phase": {"type": "str", "choices": ["begin", "rung", "record", "end", "stop"], "required": True},
    "node": {"type": "str", "required": True},
    "directory": {"type": "path", "required": True},
    "kubeconfig": {"type": "path", "required": True},
    "program": {"type": "path", "default": "/usr/local/bin/gpu-burnin"},
    "domain": {"type": "str", "default": "muster.dev"},
    "max_nodes": {"type": "int", "default": 1},
    "has_bmc": {"type": "bool", "default": False},
    "bmc": {"type": "dict", "options": BMC_OPTIONS},
    "maintenance": {"type": "str", "default": ""},
    "despite_maintenance": {"type": "bool", "default": False},
    "unreached": {"type": "bool", "default": False},
    "failed": {"type": "str", "default": ""},
    "untouched": {"type": "bool", "default": False},
    "hold": {"type": "bool", "default": False},
    "why": {"type": "str", "default": ""},
    "report": {"type": "path", "required": True},
}
