"""Jinja filter: the pod range of a numbered host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import host_numbers

DOCUMENTATION = r"""
name: nth_range
short_description: The pod range of a numbered host
version_added: "0.2.0"
description:
  - Cuts a network into ranges of one size, and gives the one whose number stands at the end of the host's name, before
    its domain.
  - For ranges of hosts such as C(gpu-[001:200]), whose hosts cannot be given a range each.
positional: network, prefix, offset
options:
  _input:
    description: The host's name, C(inventory_hostname).
    type: str
    required: true
  network:
    description: The network, without host bits.
    type: str
    required: true
  prefix:
    description: Length of each range's prefix. Ranges of 24 hold 253 pods.
    type: int
    required: true
  offset:
    description: What to add to the number, so that groups with the same numbers have other ranges.
    type: int
    default: 0
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
pod_network_range: "{{ inventory_hostname | muster.fleet.nth_range(fleet_pod_cidr, 24) }}"
# => 10.64.7.0/24 for gpu-007 in 10.64.0.0/12
"""

RETURN = r"""
_value:
  description: The range.
  type: str
"""


def nth_range(host: str, network: str, prefix: int, offset: int = 0) -> str:
    """The range of the host in the network. Raises AnsibleFilterError when there is none."""
    try:
        return host_numbers.nth_range(host, network, prefix, offset)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"nth_range": nth_range}
