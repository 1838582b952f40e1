#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""First contact with all hosts at once. Thin: the probe is gpu_burnin.fleet.ssh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

try:
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.fleet.model import Target, as_json
    from gpu_burnin.fleet.ssh import probe

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: ssh_probe
short_description: Probe all hosts over SSH and pin their host keys
version_added: "0.1.0"
description:
  - Connects to every host in parallel and checks TCP, the SSH banner, the key exchange, the host key and the login.
  - A host key is compared with the fingerprint given, and with the project's known_hosts file. One that is seen for
    the first time is added to that file when the fingerprint matches, or with O(trust_new_hosts). One that differs from
    the pinned key is an error and never accepted.
  - Host keys that several hosts share (cloned images) are an error.
  - Reports the problems of all hosts at once, each with what to do.
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
  timeout_s:
    description: Time limit in seconds for each of connecting, banner, key exchange and login.
    type: float
    default: 10
  threads:
    description: How many hosts are probed at the same time.
    type: int
    default: 64
attributes:
  check_mode:
    support: full
    description: In check mode nothing is written; C(changed) says whether keys would be pinned.
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
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
  description: One entry for each host, in the order given.
  returned: always
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
pinned:
  description: Names of the hosts whose keys were (or would be) added to known_hosts.
  returned: always
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
    "timeout_s": {"type": "float", "default": 10},
    "threads": {"type": "int", "default": 64},
}


def probe_hosts(module: AnsibleModule) -> dict[str, Any]:
    """Probe all hosts and give their results. Raises FleetError with all problems."""
    targets = [
        Target(
            name=host["name"],
            address=host["address"] or host["name"],
            port=host["port"],
            user=host["user"],
            identity=Path(host["identity"]) if host["identity"] else None,
            fingerprint=host["fingerprint"] or None,
        )
        for host in module.params["hosts"]
    ]
    try:
        results = probe(
            targets,
            Path(module.params["known_hosts"]),
            trust_new=module.params["trust_new_hosts"],
            write=not module.check_mode,
            timeout_s=module.params["timeout_s"],
            threads=module.params["threads"],
        )
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    pinned = [result.target.name for result in results if result.new_key]
    output = {"changed": bool(pinned), "hosts": [as_json(result) for result in results], "pinned": pinned}
    problems = [str(problem) for result in results for problem in result.problems]
    if problems:
        bad = sum(not result.ok for result in results)
        summary = f"{bad} of {len(results)} hosts cannot be used over SSH:"
        raise FleetError("\n".join([summary, *(f"- {problem}" for problem in problems)]), **output)
    return output


def main() -> None:
    """Entry point."""
    run_module(probe_hosts, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
