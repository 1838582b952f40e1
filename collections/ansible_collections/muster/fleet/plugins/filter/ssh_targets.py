"""Jinja filter: how each host is reached over SSH, for muster.fleet.ssh_probe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

DOCUMENTATION = r"""
name: ssh_targets
short_description: How Ansible reaches each host over SSH
description:
  - Gives for each host its name, address, port, user, private key file and, where the inventory has one, the
    fingerprint that its host key must have (C(fleet_host_key_fingerprint)).
options:
  _input:
    description: Names of hosts.
    type: list
    elements: str
    required: true
  hostvars:
    description: Ansible's C(hostvars).
    type: dict
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
hosts: "{{ groups['all'] | muster.fleet.ssh_targets(hostvars) }}"
"""

RETURN = r"""
_value:
  description: One dictionary for each host, as O(muster.fleet.ssh_probe#module:hosts) takes it.
  type: list
  elements: dict
"""

VARIABLES = {
    "address": "ansible_host",
    "port": "ansible_port",
    "user": "ansible_user",
    "identity": "ansible_ssh_private_key_file",
    "fingerprint": "fleet_host_key_fingerprint",
}


def ssh_targets(hosts: Iterable[str], hostvars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry for each host; what the inventory does not say is left out, so that the module's default holds."""
    return [
        {"name": str(host)}
        | {key: hostvars[host][variable] for key, variable in VARIABLES.items() if hostvars[host].get(variable)}
        for host in hosts
    ]


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"ssh_targets": ssh_targets}
