#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Writing the fleet's GPU nodes into the ledger, and waiting for them. Thin: see gpu_burnin.admission.provision."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from ansible_collections.muster.fleet.plugins.module_utils.kube.ledger_nodes import late, machines_of, wanted_of

    from gpu_burnin.admission.approve import InventoryNode
    from gpu_burnin.admission.carried import carried, keep
    from gpu_burnin.admission.client import KubeApi
    from gpu_burnin.admission.machines import forget_machines, have_machines
    from gpu_burnin.admission.provision import entries, provision
    from gpu_burnin.admission.waiting import standing, wait_for
    from gpu_burnin.api.names import Names
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.system import known_hosts as kh
    from gpu_burnin.system.codec import to_json

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: node_admission
short_description: Write the inventory's GPU nodes into the cluster's ledger, and wait until they are admitted
version_added: "0.1.0"
description:
  - Has the CustomResourceDefinitions of NodeAdmission and AgentHeartbeat, and for each node in O(nodes) one object that
    says which machine it is (the host key pinned in O(known_hosts), its addresses), what it should offer and how it is
    to be proven.
  - What people ask of a node (hold, quarantine, retest, repair) and all that the admitter knows of it stay as they are.
    The admitter, a service beside each API server, does the rest.
  - Waits for the nodes in O(expect) until they have their certificates and the admitter's answer. A held node is a
    result, not a failure, and one that does not come within O(wait_s) neither, since a node may die on its way;
    RV(late) tells of those.
  - The entry of a node that has left O(nodes) is removed once its Node is gone, and told before. One that a person
    holds stays. A host key in the cluster stays where O(known_hosts) has not exactly one.
options:
  kubeconfig:
    description: Kubeconfig of the provisioner.
    type: path
    required: true
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
      address:
        description: Address under which O(known_hosts) has the host's key. Without it, O(nodes[].name).
        type: str
      port:
        description: Port of sshd under which O(known_hosts) has the host's key.
        type: int
        default: 22
      addresses:
        description: Addresses that its kubelet may ask certificates for.
        type: list
        elements: str
        default: []
        version_added: "0.2.0"
      machine_id:
        description:
          - Its machine id. Evidence of another machine is refused, with the same host key too. Empty when it is not
            known; one that the entry has for the same host key stays then.
        type: str
        version_added: "0.2.0"
        default: ""
      allow_simulated:
        description: Admit evidence of simulated hardware, and label the node so. Only for a lab.
        type: bool
        default: false
      expect:
        description:
          - What the burn-in expects of its hardware; C(gpus) is how many it should offer to pods, C(model) the key of
            its GPUs' model, which the admitter makes a label of its Node.
        type: dict
        default: {}
        version_added: "0.2.0"
      place:
        description:
          - Where it stands, as C(fleet_place) says it. The admitter makes labels of its Node of C(rack), C(leaf) (or
            C(switch), which means the same) and C(feed).
        type: dict
        default: {}
        version_added: "0.2.0"
      fabric_nics:
        description:
          - Its NICs in the fabric, as C(fleet_fabric_nics) says them; none is one, with the first of C(addresses).
        type: list
        elements: dict
        default: []
        version_added: "0.2.0"
      device_plugin:
        description:
          - The image of the inventory's device plugin. With one, kubelet has to offer exactly as many GPUs as
            O(nodes[].expect) says before the node is let in. Empty when the inventory has none.
        type: str
        version_added: "0.2.0"
        default: ""
      mig_strategy:
        description:
          - The C(MIG_STRATEGY) of the inventory's device plugin. Of GPUs in MIG mode kubelet has to offer the instances
            that the burn-in tested, as C(nvidia.com/gpu) (single) or by profile, C(nvidia.com/mig-1g.10gb) (mixed).
        type: str
        choices: [none, single, mixed]
        version_added: "0.2.0"
        default: none
      power:
        description:
          - How the power of its machine is switched, as C(fleet_power) says it. With O(scale) each node that has this
            gets a MachinePower.
        type: dict
        default: {}
        version_added: "0.2.0"
      pod_range:
        description: The addresses of its pods, which a machine is told that enrols itself.
        type: str
        default: ""
        version_added: "0.2.0"
      level:
        description: The least level of burn-in that proves it.
        type: str
        choices: [quick, standard, extended]
        default: standard
        version_added: "0.2.0"
      gate_closed:
        description:
          - What the node says of its own gate when that is closed. Empty when it is open or was not asked. It
            is added to the reason of a node that is held; of one that may take work it is told in RV(notes).
        type: str
        version_added: "0.2.0"
        default: ""
  system_nodes:
    description: Nodes that have no GPUs and no entry, with the addresses that their kubelets may ask certificates for.
    type: list
    elements: dict
    default: []
    version_added: "0.2.0"
    suboptions:
      name:
        description: Node name.
        type: str
        required: true
      addresses:
        description: Its addresses.
        type: list
        elements: str
        required: true
  scale:
    description: >-
      Whether machines are switched on and off as jobs need them. Without it O(nodes[].power) is not read, and what the
      cluster keeps of machines goes.
    type: bool
    default: false
    version_added: "0.2.0"
  enrolment:
    description: Whether machines that boot from the fleet's image enrol themselves, so that their kind is defined.
    type: bool
    default: false
    version_added: "0.2.0"
  known_hosts:
    description: The project's known_hosts file with the pinned host keys.
    type: path
    required: true
  ledger_dir:
    description:
      - Directory on the controller that keeps what was seen of machines whose entry was removed or whose key changed
        (an older version kept all there). A new entry begins with it, so that no older evidence counts again. Made
        with mode 0700.
    type: path
    required: true
  evidence_ttl_s:
    description: Age in seconds after which a proof is too old. Each node's is up to 10 % shorter.
    type: float
    default: 604800
  domain:
    description: Domain of the taints and annotations, and group of the ledger.
    type: str
    default: muster.dev
  expect:
    description: Names of nodes, system nodes too, that should register, because their own gate is open.
    type: list
    elements: str
    default: []
  wait_s:
    description: >-
      How long to wait for the nodes in O(expect), in seconds. While the admitter lets nodes in one after the other,
      those that wait for their turn are waited for; then it is the longest time without one let in.
    type: float
    default: 120
attributes:
  check_mode:
    support: full
    description: In check mode nothing is written and nothing is waited for.
  diff_mode:
    support: full
    description: Shows the entries that differ.
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Write the GPU nodes into the ledger, wait until they are admitted
  muster.fleet.node_admission:
    kubeconfig: "{{ fleet_state_dir }}/kubeconfig/provisioner.kubeconfig"
    known_hosts: "{{ fleet_known_hosts }}"
    ledger_dir: "{{ fleet_state_dir }}/admission"
    nodes:
      - name: gpu-1
        address: 10.0.0.61
        addresses: [10.0.0.61]
        expect: {gpus: 8}
    expect: [gpu-1]
  register: admission
"""

RETURN = r"""
nodes:
  description: One entry for each GPU node, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    name: {description: Node name., type: str, sample: gpu-1}
    state: {description: C(ready) C(held) or C(absent)., type: str, sample: ready}
    course: {description: Where the ledger says that it stands., type: str, sample: testing}
    verdict:
      description: The verdict label, C(pass) C(fail) C(inconclusive) or C(expired); null when the node has none.
      type: str
      sample: pass
    reasons:
      description: Why, each with C(code) and C(message).
      type: list
      elements: dict
      sample: [{code: PASS, message: "gpu-1: burn-in run 3 (quick) passed in boot 0b1c..."}]
    next: {description: What comes next for it, and why., type: str, sample: ""}
    action:
      description: What was done with its entry, C(created) C(changed) or C(nothing).
      type: str
      sample: created
    simulated: {description: Whether it was admitted on simulated hardware., type: bool, sample: false}
    boot_id: {description: Boot that kubelet reports., type: str, sample: 0b1c2d3e-0000-4000-8000-000000000000}
    sequence: {description: Highest sequence of evidence seen., type: int, sample: 3}
notes:
  description: Sentences on nodes that the inventory and the cluster do not both know.
  returned: always
  type: list
  elements: str
  sample: []
missing:
  description: For each node in O(expect) that did not come what is missing.
  returned: always
  type: dict
  sample: {}
late:
  description: The same for people, empty when all have come.
  returned: always
  type: str
  version_added: "0.2.0"
  sample: ""
"""

NODE_OPTIONS = {
    "name": {"type": "str", "required": True},
    "address": {"type": "str"},
    "port": {"type": "int", "default": 22},
    "addresses": {"type": "list", "elements": "str", "default": []},
    "machine_id": {"type": "str", "default": ""},
    "allow_simulated": {"type": "bool", "default": False},
    "expect": {"type": "dict", "default": {}},
    "place": {"type": "dict", "default": {}},
    "fabric_nics": {"type": "list", "elements": "dict", "default": []},
    "power": {"type": "dict", "default": {}},
    "pod_range": {"type": "str", "default": ""},
    "level": {"type": "str", "choices": ["quick", "standard", "extended"], "default": "standard"},
    "device_plugin": {"type": "str", "default": ""},
    "mig_strategy": {"type": "str", "choices": ["none", "single", "mixed"], "default": "none"},
    "gate_closed": {"type": "str", "default": ""},
}
SYSTEM_NODE_OPTIONS = {
    "name": {"type": "str", "required": True},
    "addresses": {"type": "list", "elements": "str", "required": True},
}
ARGUMENT_SPEC: dict[str, Any] = {
    "kubeconfig": {"type": "path", "required": True},
    "nodes": {"type": "list", "elements": "dict", "required": True, "options": NODE_OPTIONS},
    "system_nodes": {"type": "list", "elements": "dict", "default": [], "options": SYSTEM_NODE_OPTIONS},
    "scale": {"type": "bool", "default": False},
    "enrolment": {"type": "bool", "default": False},
    "known_hosts": {"type": "path", "required": True},
    "ledger_dir": {"type": "path", "required": True},
    "evidence_ttl_s": {"type": "float", "default": 604800},
    "domain": {"type": "str", "default": "muster.dev"},
    "expect": {"type": "list", "elements": "str", "default": []},
    "wait_s": {"type": "float", "default": 120},
}


def provision_and_wait(module: AnsibleModule) -> dict[str, Any]:
    """Write the entries, wait, and tell how each node stands, and what did not come. Raises FleetError."""
    parameters = module.params
    gpu_nodes = [node["name"] for node in parameters["nodes"]]
    system_nodes = [node["name"] for node in parameters["system_nodes"]]
    unknown = sorted(set(parameters["expect"]) - {*gpu_nodes, *system_nodes})
    if unknown:
        raise FleetError(f"expect names {', '.join(unknown)}, which nodes does not have; add them there")
    try:
        known = kh.load(Path(parameters["known_hosts"]))
        keys = {
            node["name"]: known.evidence_key(node["address"] or node["name"], node["port"])
            for node in parameters["nodes"]
        }
        wanted = [wanted_of(node, keys[node["name"]], parameters["evidence_ttl_s"]) for node in parameters["nodes"]]
        ledger = Path(parameters["ledger_dir"])
        api, names = KubeApi(Path(parameters["kubeconfig"])), Names(parameters["domain"])
        scale, apply = parameters["scale"], not module.check_mode
        machines = machines_of(parameters["nodes"], wanted) if scale else {}
        cluster = api.nodes()
        done = provision(
            api,
            names,
            wanted,
            system_nodes,
            cluster,
            apply=apply,
            machines=scale,
            enrolments=parameters["enrolment"],
            carried={name: carried(ledger, name, key) for name, key in keys.items()},
            keep=lambda name, *seen: keep(ledger, name, *seen),
        )
        power = have_machines(api, names, machines, apply=apply) if scale else forget_machines(api, names, apply=apply)
        began_s = time.monotonic()
        if module.check_mode:
            records = {} if done.defined else entries(api, names)
            standings = [standing(name, records.get(name), cluster.get(name), names) for name in gpu_nodes]
            missing = {}
        else:
            everyone = [*parameters["nodes"], *parameters["system_nodes"]]
            inventory = {node["name"]: InventoryNode.of(node["name"], node["addresses"]) for node in everyone}
            standings, missing = wait_for(api, names, gpu_nodes, inventory, parameters["expect"], parameters["wait_s"])
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    nodes, notes = [], [*done.notes, *power.notes]
    for one, node in zip(standings, parameters["nodes"], strict=True):
        told = to_json(one)
        reasons = [{"code": told.pop("code"), "message": told.pop("message")}]
        closed = node["gate_closed"]
        if closed and one.state == "ready":
            notes.append(
                f"{one.name}: it may take work, but its own gate is closed ({closed}); keep new work away with muster "
                "node hold, or test it again"
            )
        elif closed:
            reasons[0]["message"] += f" (its own gate is closed: {closed})"
        nodes.append({**told, "reasons": reasons, "action": str(done.acts[one.name])})
    return {
        "changed": done.changed or power.changed,
        "diff": {
            "before": {**done.before, **({"power": power.before} if power.changed else {})},
            "after": {**done.after, **({"power": power.after} if power.changed else {})},
        },
        "nodes": nodes,
        "notes": notes,
        "missing": missing,
        "late": late(missing, time.monotonic() - began_s),
    }


def main() -> None:
    """Entry point."""
    run_module(provision_and_wait, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
