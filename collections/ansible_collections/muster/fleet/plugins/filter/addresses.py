"""Jinja filter: the fleet addresses of a group's hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: addresses
short_description: The addresses by which the hosts of a group reach each other
description:
  - Gives a dictionary of host name to C(fleet_address), in the order of the group.
  - A host without C(fleet_address) is known by its C(ansible_host).
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
etcd_client_urls: >-
  {{ (groups['etcd'] | muster.fleet.addresses(hostvars)).values()
     | map('regex_replace', '^(.*)$', 'https://\1:2379') | list }}
"""

RETURN = r"""
_value:
  description: Host name to address.
  type: dict
"""


def addresses(hosts: Iterable[str], hostvars: Mapping[str, Any]) -> dict[str, str]:
    """`{host: address}` in the order given. Raises AnsibleFilterError for a host without an address."""
    found: dict[str, str] = {}
    for host in hosts:
        if host not in hostvars:
            raise AnsibleFilterError(f"{host} is not in the inventory; add it, or correct the name")
        variables = hostvars[host]
        address = variables.get("fleet_address") or variables.get("ansible_host")
        if not address:
            raise AnsibleFilterError(f"{host} has neither fleet_address nor ansible_host; set ansible_host")
        found[str(host)] = str(address)
    return found


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"addresses": addresses}
