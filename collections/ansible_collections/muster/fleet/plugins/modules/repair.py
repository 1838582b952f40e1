#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The decisions of the repair ladder. Thin: they are made in gpu_burnin.fleet.repair.climb."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.api.names import Names
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.fleet.repair.climb import Repair
    from gpu_burnin.fleet.repair.cluster import Cluster
    from gpu_burnin.fleet.repair.ladder import Next, Rung, found_of
    from gpu_burnin.fleet.repair.permit import Limits
    from gpu_burnin.fleet.repair.technician import render
    from gpu_burnin.system.codec import to_json

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: repair
short_description: Decide what the repair of a node does next
version_added: "0.2.0"
description:
  - The repair ladder's decisions for one node, and what it asks of the admitter. The role C(repair) calls it in phases.
  - C(begin) refuses a node with work, in a maintenance window, beyond O(max_nodes) or in somebody else's repair, and
    otherwise asks the admitter for the node and waits until new work is kept off it.
  - C(rung) chooses the next rung and writes it down as begun. C(record) writes down its end.
  - C(end) gives the node back; with O(hold) into the hands of a technician, for whom it writes an order. C(stop) gives
    it back after an error.
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
  look:
    description: What C(gpu-burnin repair look) printed on the node; empty where it does not answer.
    type: str
    default: ""
  directory:
    description: Folder on the controller for the steps and the technicians' orders.
    type: path
    required: true
  kubeconfig:
    description: Kubeconfig of an admin. Its user stands in the ask.
    type: path
    required: true
  domain:
    description: Domain of the taints and of the NodeAdmissions.
    type: str
    default: muster.dev
  max_nodes:
    description: How many nodes of the fleet may be in repair at a time.
    type: int
    default: 1
  bmc:
    description: Whether the node has a BMC through which it can be powered off and on.
    type: bool
    default: false
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
    description: For C(end), what C(rung) said.
    type: str
    default: ""
  report:
    description:
      - The node's newest report on the controller. It tells which machine it is where that does not answer, and what
        the technician has to know.
    type: path
    required: true
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Choose the next rung
  muster.fleet.repair:
    phase: rung
    node: gpu-1
    look: "{{ look.stdout }}"
    report: "{{ fleet_state_dir }}/reports/gpu-1/report.json"
    directory: "{{ fleet_state_dir }}/repair"
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
  delegate_to: localhost
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

ARGUMENT_SPEC: dict[str, Any] = {
    "phase": {"type": "str", "choices": ["begin", "rung", "record", "end", "stop"], "required": True},
    "node": {"type": "str", "required": True},
    "look": {"type": "str", "default": ""},
    "directory": {"type": "path", "required": True},
    "kubeconfig": {"type": "path", "required": True},
    "domain": {"type": "str", "default": "muster.dev"},
    "max_nodes": {"type": "int", "default": 1},
    "bmc": {"type": "bool", "default": False},
    "maintenance": {"type": "str", "default": ""},
    "despite_maintenance": {"type": "bool", "default": False},
    "unreached": {"type": "bool", "default": False},
    "failed": {"type": "str", "default": ""},
    "untouched": {"type": "bool", "default": False},
    "hold": {"type": "bool", "default": False},
    "why": {"type": "str", "default": ""},
    "report": {"type": "path", "required": True},
}


def decide(module: AnsibleModule) -> dict[str, Any]:
    """Do what the phase is for. Raises FleetError."""
    parameters = module.params
    try:
        look = json.loads(parameters["look"]) if parameters["look"] else None
    except ValueError as error:
        raise FleetError(f"gpu-burnin repair look did not answer in JSON ({error}); install this version") from error
    can = {*Rung} if parameters["bmc"] else {*Rung} - {Rung.POWER_CYCLE}
    try:
        names = Names(parameters["domain"])
        repair = Repair(
            node=parameters["node"],
            directory=Path(parameters["directory"]),
            cluster=Cluster(KubeApi(Path(parameters["kubeconfig"])), names),
            can=can,
            report=Path(parameters["report"]),
            limits=Limits(parameters["max_nodes"], parameters["despite_maintenance"], parameters["unreached"]),
            maintenance=parameters["maintenance"],
            now=lambda: datetime.now(UTC),
        )
        return _phase(repair, look, parameters, check_mode=module.check_mode)
    except GpuBurninError as error:
        raise FleetError(str(error)) from error


def _phase(
    repair: Repair, look: Mapping[str, Any] | None, parameters: Mapping[str, Any], *, check_mode: bool
) -> dict[str, Any]:
    phase = parameters["phase"]
    if phase == "begin":
        first = repair.begin(look, apply=not check_mode)
        held = first.rung is Rung.HOLD and repair.held(found_of(look))
        return {"changed": first.rung is not None and not held, **_chosen(first, look, repair)}
    if check_mode:
        return {"changed": True}
    if phase == "rung":
        chosen, gpus = repair.rung(look)
        return {"changed": chosen.rung is not None, "gpus": list(gpus), **_chosen(chosen, look, repair)}
    if phase == "record":
        return {"changed": True, "step": to_json(repair.record(look, parameters["failed"]))}
    if phase == "stop":
        return {"changed": repair.stop(untouched=parameters["untouched"])}
    if not parameters["hold"]:
        return {"changed": repair.give_back()}
    held = repair.held(found_of(look))
    order = repair.hold(look, parameters["why"])
    told = {"order": to_json(order), "text": render(order), "path": str(repair.order_path(".txt"))}
    return {"changed": not held, **told}


def _chosen(chosen: Next, look: Mapping[str, Any] | None, repair: Repair) -> dict[str, Any]:
    dmi = dict(repair.dmi(look))
    return {"rung": str(chosen.rung or ""), "why": chosen.why, "level": found_of(look).level, "dmi": dmi}


def main() -> None:
    """Entry point."""
    run_module(decide, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
