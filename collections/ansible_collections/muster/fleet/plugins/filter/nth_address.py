"""Jinja filter: the address of a numbered host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import host_numbers

DOCUMENTATION = r"""
name: nth_address
short_description: The address of a numbered host
version_added: "0.2.0"
description:
  - Gives the address of a network whose number stands at the end of the host's name, before its domain.
  - For ranges of hosts such as C(gpu-[001:200]), whose hosts cannot be given an address each.
positional: network, offset
options:
  _input:
    description: The host's name, C(inventory_hostname).
    type: str
    required: true
  network:
    description: The network, without host bits. Its first and last IPv4 address are never given.
    type: str
    required: true
  offset:
    description: What to add to the number.
    type: int
    default: 0
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
ansible_host: "{{ inventory_hostname | muster.fleet.nth_address('10.20.0.0/16') }}"
# => 10.20.0.7 for gpu-007, 10.20.1.44 for gpu-300
"""

RETURN = r"""
_value:
  description: The address.
  type: str
"""


def nth_address(host: str, network: str, offset: int = 0) -> str:
    """The address of the host in the network. Raises AnsibleFilterError when there is none."""
    try:
        return host_numbers.nth_address(host, network, offset)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"nth_address": nth_address}
