#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The decisions of a driver upgrade. Thin: they are made in gpu_burnin.fleet.driver_upgrade."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.api.names import Names
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.fleet import lock
    from gpu_burnin.fleet.driver_upgrade import book, text
    from gpu_burnin.fleet.driver_upgrade.book import Outcome
    from gpu_burnin.fleet.driver_upgrade.course import Found, Upgrade
    from gpu_burnin.fleet.driver_upgrade.plan import HostView, plan, refuse_elsewhere
    from gpu_burnin.fleet.repair.cluster import Cluster
    from gpu_burnin.system.clock import rfc3339
    from gpu_burnin.system.codec import Misfit, from_json

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: driver_upgrade
short_description: Decide which hosts get another NVIDIA driver next, and when they work again
version_added: "0.2.0"
description:
  - The decisions of C(playbooks/driver_upgrade.yml), and what it asks of the admitter. The role C(driver_upgrade) calls
    it in phases.
  - C(plan) chooses hosts and batches, and refuses while another upgrade runs. C(next) says before each batch whether
    the run goes on.
  - C(begin) asks the work on O(node) to leave, and waits for it. C(change), C(test) and C(admit) come before the driver
    is changed, before the burn-in and after it; C(admit) gives the host back and waits until it is let in. C(fail)
    keeps it out of work.
  - C(summary) tells what became of each host, and what to do next.
  - In check mode nothing is asked for and nothing is written.
options:
  phase:
    description: Which of the decisions is due.
    type: str
    choices: [plan, next, begin, change, test, admit, fail, summary]
    required: true
  directory:
    description: Folder on the controller for the run and its hosts.
    type: path
    required: true
  kubeconfig:
    description: Kubeconfig of an admin. Its user stands in what is asked.
    type: path
    required: true
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
  look:
    description: For C(change), what C(gpu-burnin repair look) printed on the host.
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
  - muster.fleet.controller
  - muster.fleet.check_mode
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
  delegate_to: localhost
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
out_of_work:
  description: The hosts that stay out of work.
  returned: in the phase summary
  type: list
  elements: str
given_back:
  description: Why nothing was done to the host, and it works on; empty where the run goes on with it.
  returned: in the phases begin and change
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
        "choices": ["plan", "next", "begin", "change", "test", "admit", "fail", "summary"],
        "required": True,
    },
    "directory": {"type": "path", "required": True},
    "kubeconfig": {"type": "path", "required": True},
    "domain": {"type": "str", "default": "muster.dev"},
    "hosts": {"type": "list", "elements": "dict", "default": [], "options": HOST_OPTIONS},
    "max_nodes": {"type": "int", "default": 8},
    "max_failures": {"type": "int", "default": 1},
    "node": {"type": "str", "default": ""},
    "loaded": {"type": "str", "default": ""},
    "look": {"type": "str", "default": ""},
    "maintenance": {"type": "str", "default": ""},
    "held": {"type": "dict", "default": {}},
    "verdict": {"type": "str", "default": ""},
    "why": {"type": "str", "default": ""},
    "drain_timeout_s": {"type": "float", "default": 3600.0},
    "admission_timeout_s": {"type": "float", "default": 900.0},
    "command": {"type": "str", "default": "ansible-playbook playbooks/driver_upgrade.yml"},
}


def decide(module: AnsibleModule) -> dict[str, Any]:
    """Do what the phase is for. Raises FleetError."""
    given = module.params
    directory = Path(given["directory"])
    try:
        if given["phase"] in ("next", "summary"):
            return _between(directory, given)
        cluster = Cluster(KubeApi(Path(given["kubeconfig"])), Names(given["domain"]))
        if given["phase"] == "plan":
            return _planned(cluster, directory, given, check_mode=module.check_mode)
        return {"changed": True} if module.check_mode else _step(_upgrade(cluster, directory, given), given)
    except GpuBurninError as error:
        raise FleetError(str(error)) from error


def _between(directory: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Before a batch, or after the last one."""
    me = lock.owner()
    lost = lock.lost(directory, me)
    if given["phase"] == "summary" and lost:
        raise FleetError(f"this run ended before its next batch: {lost}")
    run, entries = book.read_run(directory), book.entries(directory)
    if given["phase"] == "next":
        return {"changed": False, "stop": lost or text.stop(run, entries, given["max_failures"])}
    lock.release(directory, me)
    failed = [entry.node for entry in text.failed(run, entries)]
    return {"changed": False, "text": text.summary(run, entries, given["command"]), "out_of_work": failed}


def _planned(cluster: Cluster, directory: Path, given: dict[str, Any], *, check_mode: bool) -> dict[str, Any]:
    now, me = rfc3339(datetime.now(UTC)), lock.owner()
    before = lock.other_holder(directory, me) if check_mode else lock.take(directory, lock.Lock(cluster.me, now, me))
    planned = False
    try:
        records, entries = cluster.records(), book.entries(directory)
        if not check_mode:
            refuse_elsewhere(records, entries)
        views = [
            HostView(**host, record=records.get(host["name"]), pods=cluster.pods(host["name"]))
            for host in given["hosts"]
        ]
        run = plan(views, entries, cluster.paused(), given["max_nodes"], now)
        planned = bool(run.hosts)
        if not check_mode:
            book.write_run(directory, run)
    finally:
        # The summary gives it back; there is none where there is nothing to do.
        if not planned and not check_mode:
            lock.release(directory, me)
    told = [*([before] if before else []), *text.planned(run, views)]
    return {"changed": bool(run.hosts), "hosts": list(run.hosts), "batches": list(run.batches), "text": told}


def _upgrade(cluster: Cluster, directory: Path, given: dict[str, Any]) -> Upgrade:
    return Upgrade(
        node=given["node"],
        directory=directory,
        cluster=cluster,
        now=lambda: datetime.now(UTC),
        now_s=time.monotonic,
        sleep=time.sleep,
        drain_timeout_s=given["drain_timeout_s"],
        admission_timeout_s=given["admission_timeout_s"],
        maintenance=given["maintenance"],
    )


def _step(upgrade: Upgrade, given: dict[str, Any]) -> dict[str, Any]:
    phase = given["phase"]
    if phase == "begin":
        entry = upgrade.begin(given["loaded"])
    elif phase == "change":
        entry = upgrade.change(_observation(given["look"]))
    elif phase == "test":
        try:
            held = from_json(Found, {"loaded": given["loaded"], **given["held"]})
        except Misfit as error:
            raise FleetError(f"held: {error}") from error
        entry = upgrade.test(held)
    elif phase == "admit":
        entry = upgrade.admit(given["verdict"], given["why"])
    else:
        entry = upgrade.fail(given["why"])
    return {"changed": True, "given_back": entry.why if entry.outcome is Outcome.GIVEN_BACK else ""}


def _observation(printed: str) -> dict[str, Any] | None:
    try:
        look: dict[str, Any] | None = json.loads(printed) if printed else None
    except ValueError as error:
        raise FleetError(f"gpu-burnin repair look did not answer in JSON ({error}); install this version") from error
    return look


def main() -> None:
    """Entry point."""
    run_module(decide, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
