#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: whether an upgrade of etcd and Kubernetes may be done, and what of it is left to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import parse
    from ansible_collections.muster.fleet.plugins.module_utils.kube import upgrade_rules as rules
    from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import report

    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.api.names import Names
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.fleet.driver_upgrade.plan import working
    from gpu_burnin.fleet.repair.cluster import Cluster

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: upgrade_plan
short_description: Judge an upgrade of etcd and Kubernetes, and say what is left to do
version_added: "0.2.0"
description:
  - Judges what all hosts run and are to run by the rules of Kubernetes and etcd for versions beside each other, and
    fails with all problems at once. Changes nothing.
options:
  groups:
    description: Names of the hosts of each inventory group.
    type: dict
    required: true
  facts:
    description: What M(muster.fleet.upgrade_facts) returned, by host.
    type: dict
    required: true
  part:
    description: What is to be upgraded.
    type: str
    choices: [all, etcd, control_plane, nodes]
    default: all
  judge:
    description: Whether to fail for problems; without it only C(state) is told.
    type: bool
    default: true
  kubeconfig:
    description: Kubeconfig with which pods are read where a kubelet changes its minor.
    type: path
    required: true
  domain:
    description: Domain of the fleet's taints and annotations.
    type: str
    default: muster.dev
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Judge the upgrade
  muster.fleet.upgrade_plan:
    groups: {etcd: [etcd-1]}
    facts:
      etcd-1:
        programs: {etcd: {running: 3.6.16, wanted: 3.7.3, current: false}}
        sick: ""
        served: true
        leads: false
        room: ""
        closed: false
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/admin.kubeconfig"
  delegate_to: localhost
"""

RETURN = r"""
phases:
  description: Hosts with something left to do, by phase C(etcd), C(etcd_events), C(servers), C(controllers), C(nodes).
  type: dict
  returned: with judge
close_admission:
  description: Whether no node may be let in until every API server has the gate on its disk.
  type: bool
  returned: with judge
open_admission:
  description: Whether admission is to be opened once the servers are done, also where an earlier run has closed it.
  type: bool
  returned: with judge
etcd:
  description: The minor of etcd that is wanted.
  type: str
  returned: with judge
text:
  description: One line for each program that changes, and for each node that is left as it is.
  type: list
  elements: str
  returned: with judge
state:
  description: One line for each host, with what it runs.
  type: list
  elements: str
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "groups": {"type": "dict", "required": True},
    "facts": {"type": "dict", "required": True},
    "part": {"type": "str", "choices": ["all", "etcd", "control_plane", "nodes"], "default": "all"},
    "judge": {"type": "bool", "default": True},
    "kubeconfig": {"type": "path", "required": True},
    "domain": {"type": "str", "default": "muster.dev"},
}


def host_of(name: str, found: Mapping[str, Any], work: tuple[str, ...] = ()) -> rules.Host:
    """One host's facts as the rules have them."""
    programs = {
        one: rules.Program(parse(facts["running"]), parse(facts["wanted"]), facts["current"])
        for one, facts in found["programs"].items()
    }
    said = {key: found[key] for key in ("sick", "served", "leads", "closed", "room")}
    return rules.Host(name, programs, work=work, **said)


def _changes_minor(host: rules.Host) -> bool:
    kubelet = host.programs.get("kubelet")
    return bool(kubelet and kubelet.running and kubelet.wanted and kubelet.running.release != kubelet.wanted.release)


def _fleet(given: Mapping[str, Any]) -> rules.Fleet:
    """The fleet, with the work of those nodes whose kubelet changes its minor. Raises GpuBurninError."""
    cluster: Cluster | None = None
    groups: dict[str, dict[str, rules.Host | None]] = {}
    for group in rules.PROGRAMS:
        groups[group] = {}
        for name in given["groups"].get(group, []):
            found = given["facts"].get(name)
            host = host_of(name, found) if found else None
            if host and group in rules.NODES and _changes_minor(host):
                cluster = cluster or Cluster(KubeApi(Path(given["kubeconfig"])), Names(given["domain"]))
                work = tuple(f"{pod.namespace}/{pod.name}" for pod in working(cluster.pods(name)))
                host = replace(host, work=work)
            groups[group][name] = host
    return rules.Fleet(groups)


def judge(module: AnsibleModule) -> dict[str, Any]:
    """Judge and plan. Raises FleetError with all problems."""
    given = module.params
    try:
        fleet = _fleet(given)
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    state = rules.state(fleet)
    if not given["judge"]:
        return {"changed": False, "state": state}
    if found := rules.problems(fleet, given["part"]):
        raise FleetError(report("nothing was changed, the upgrade is refused", found), state=state)
    planned = rules.plan(fleet, given["part"])
    etcd = fleet.wanted("etcd")
    return {
        "changed": False,
        "phases": {phase: list(hosts) for phase, hosts in planned.phases.items()},
        "close_admission": planned.close_admission,
        "open_admission": planned.open_admission,
        "etcd": etcd.release if etcd else "",
        "text": rules.lines(fleet, planned) or ["Everything runs as the inventory pins it."],
        "state": state,
    }


def main() -> None:
    """Entry point."""
    run_module(judge, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
