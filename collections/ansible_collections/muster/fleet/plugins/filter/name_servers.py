"""Jinja filter: the resolvers of one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host import endpoints

DOCUMENTATION = r"""
name: name_servers
short_description: Choose the resolvers of one node
version_added: "0.2.0"
description:
  - Gives at most three addresses, as many as a resolver reads, beginning with one that the node's name chooses. So the
    nodes spread over the servers, and each keeps its own order.
positional: node
options:
  _input:
    description: Addresses of all name servers.
    type: list
    elements: str
    required: true
  node:
    description: Name of the node.
    type: str
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
kubelet_cluster_dns: "{{ ['198.18.7.31', '198.18.7.32'] | muster.fleet.name_servers(inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: The addresses.
  type: list
  elements: str
"""


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"name_servers": endpoints.name_servers}
