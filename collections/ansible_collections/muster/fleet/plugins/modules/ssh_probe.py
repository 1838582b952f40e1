#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin of the same name; it has no part on the hosts."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: ssh_probe
short_description: Probe all hosts over SSH and pin their host keys
version_added: "0.1.0"
description:
  - Connects to every host in parallel and checks TCP, the SSH banner, the key exchange, the host key and the login.
  - A host key is compared with the fingerprint given, and with the project's known_hosts file. One that is seen for
    the first time is added to that file when the fingerprint matches, or with O(trust_new_hosts). One that differs from
    the pinned key is an error and never accepted.
  - With C(--limit) only the hosts of the run are dialled.
  - Host keys that several hosts share (cloned images) are an error. Of hosts not dialled the pinned key counts.
  - Reports the problems of all hosts at once, each with what to do. The same problem of many hosts is one line with the
    runs of their names folded; then C(first-contact.txt) beside O(known_hosts) has a line for each host.
options:
  hosts:
    description: The hosts to probe.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the host in messages, normally its inventory name.
        type: str
        required: true
      address:
        description: Address or name to connect to, as Ansible will (C(ansible_host)). Without it, O(hosts[].name).
        type: str
      port:
        description: Port of sshd.
        type: int
        default: 22
      user:
        description: User to log in as.
        type: str
        default: root
      identity:
        description:
          - Private key file to log in with.
          - Without it the keys of the SSH agent and the user's default keys are tried.
        type: path
      fingerprint:
        description: Fingerprint that the host key must have, as C(ssh-keygen -l) prints it (C(SHA256:...)).
        type: str
  known_hosts:
    description: The project's known_hosts file, in OpenSSH's format. Made with mode 0600 when it does not exist.
    type: path
    required: true
  trust_new_hosts:
    description: Accept and pin keys seen for the first time. Only for networks that you trust.
    type: bool
    default: false
  nodes:
    description:
      - Hosts without which a run may go on, by their names. They are left out (RV(absent)) when they do not
        answer, as long as these are few. Every other problem is an error, as a name that does not resolve.
    type: list
    elements: str
    default: []
    version_added: "0.2.0"
  max_unreachable_share:
    description:
      - Largest share of O(nodes) that is left out, between 0 (none) and 1. Above 0 it is one node at least.
      - It is a share of all of them, with C(--limit) too.
    type: float
    default: 0
    version_added: "0.2.0"
  scaler_kubeconfig:
    description:
      - Kubeconfig by which it is known which machines the scaler has switched off (C(fleet_scale)). A silent one of
        them is left out too, and is none of the share. Empty, or a file that is not there yet, for a fleet that
        switches none.
    type: str
    default: ""
    version_added: "0.2.0"
  domain:
    description: Domain of the fleet's names in the cluster.
    type: str
    default: muster.dev
    version_added: "0.2.0"
  timeout_s:
    description: Time limit in seconds for each of connecting, banner, key exchange and login.
    type: float
    default: 10
  threads:
    description: How many hosts are logged into at the same time. Many more are dialled, so dead ones cost little.
    type: int
    default: 64
attributes:
  check_mode:
    support: full
    description: In check mode no key is pinned; C(changed) says whether keys would be.
extends_documentation_fragment:
  - muster.fleet.check_mode
notes:
  - Runs on the controller, with the Python of C(ansible-playbook), which needs C(gpu-burnin[controller]).
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Make first contact
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Probe all hosts
      muster.fleet.ssh_probe:
        known_hosts: "{{ fleet_known_hosts }}"
        trust_new_hosts: "{{ fleet_trust_new_hosts }}"
        hosts:
          - name: node-1
            address: 10.0.0.11
            user: root
            identity: /home/me/.ssh/id_ed25519
            fingerprint: SHA256:8RBdRYqVCpBKLOUBYSVfTVYGDTpXJlpkUELR2E+qKY4
"""

RETURN = r"""
hosts:
  description: One entry for each host that was dialled, in the order given.
  returned: success
  type: list
  elements: dict
  contains:
    name: {description: Name of the host., type: str, sample: node-1}
    address: {description: Address that was probed., type: str, sample: 10.0.0.11}
    port: {description: Port that was probed., type: int, sample: 22}
    ok: {description: Whether the host can be used., type: bool, sample: true}
    key_type: {description: Type of the host key seen., type: str, sample: ssh-ed25519}
    fingerprint: {description: Fingerprint of the host key seen., type: str, sample: "SHA256:8RBd..."}
    new_key: {description: Whether the key was (or would be) pinned now., type: bool, sample: false}
    rtt_s: {description: Time of the TCP handshake in seconds., type: float, sample: 0.0004}
    problems: {description: What is wrong (code, message, fix)., type: list, elements: dict, sample: []}
absent:
  description: Names of the O(nodes) that do not answer and are left out.
  returned: success
  type: list
  elements: str
  sample: [node-7]
switched_off:
  description: Names of the O(nodes) whose machines the scaler has switched off.
  returned: success
  type: list
  elements: str
  sample: [gpu-9]
left_out:
  description: Why, the same reason of many hosts once.
  returned: success
  type: list
  elements: str
pinned:
  description: Names of the hosts whose keys were (or would be) added to known_hosts.
  returned: success
  type: list
  elements: str
  sample: [node-1]
"""

HOST_OPTIONS = {
    "name": {"type": "str", "required": True},
    "address": {"type": "str"},
    "port": {"type": "int", "default": 22},
    "user": {"type": "str", "default": "root"},
    "identity": {"type": "path"},
    "fingerprint": {"type": "str"},
}


ARGUMENT_SPEC: dict[str, Any] = {
    "hosts": {"type": "list", "elements": "dict", "required": True, "options": HOST_OPTIONS},
    "known_hosts": {"type": "path", "required": True},
    "trust_new_hosts": {"type": "bool", "default": False},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "max_unreachable_share": {"type": "float", "default": 0},
    "scaler_kubeconfig": {"type": "str", "default": ""},
    "domain": {"type": "str", "default": "muster.dev"},
    "timeout_s": {"type": "float", "default": 10},
    "threads": {"type": "int", "default": 64},
}


def refuse(module: AnsibleModule) -> dict[str, Any]:
    """Never reached by a task, since the action plugin does the work. Raises FleetError."""
    raise FleetError("ssh_probe runs on the controller; call it as muster.fleet.ssh_probe")


def main() -> None:
    """Entry point."""
    run_module(refuse, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
