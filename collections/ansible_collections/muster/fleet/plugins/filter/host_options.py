"""Jinja filter: chosen variables of each host, as a list that a module's option takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host import endpoints
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import compiled_once

DOCUMENTATION = r"""
name: host_options
short_description: Chosen variables of each host
version_added: "0.2.0"
description:
  - Gives for each host a dictionary with C(name) and one key for each keyword argument. The argument names a variable
    of the host, or a value inside it, such as C(result.message).
  - What a host does not have, or has empty or false, is left out, so that the default of a module's option holds.
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
hosts: "{{ groups['all'] | muster.fleet.host_options(hostvars, address='ansible_host', port='ansible_port') }}"
# => [{name: gpu-1, address: 198.18.7.61}, {name: gpu-2, address: 198.18.7.62, port: 2222}]
"""

RETURN = r"""
_value:
  description: One dictionary for each host, in the order given.
  type: list
  elements: dict
"""


def host_options(hosts: Iterable[str], hostvars: Mapping[str, Any], **fields: str) -> list[dict[str, Any]]:
    """One entry for each host."""
    return endpoints.host_options(hosts, compiled_once(hostvars), fields)


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"host_options": host_options}
