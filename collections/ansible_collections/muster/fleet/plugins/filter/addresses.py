"""Jinja filter: the fleet addresses of a group's hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import endpoints

DOCUMENTATION = r"""
name: addresses
short_description: The addresses by which the hosts of a group reach each other
version_added: "0.1.0"
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
etcd_addresses: "{{ groups['etcd'] | muster.fleet.addresses(hostvars) }}"
"""

RETURN = r"""
_value:
  description: Host name to address.
  type: dict
"""


def addresses(hosts: Iterable[str], hostvars: Mapping[str, Any]) -> dict[str, str]:
    """`{host: address}` in the order given. Raises AnsibleFilterError for a host without an address."""
    try:
        return endpoints.addresses(hosts, hostvars)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"addresses": addresses}
