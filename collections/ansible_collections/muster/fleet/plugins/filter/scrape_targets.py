"""Jinja filter: the targets of Prometheus for a list of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.preflight import scrape_targets as targets
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import compiled_once

DOCUMENTATION = r"""
name: scrape_targets
short_description: The targets of Prometheus for a list of hosts
version_added: "0.2.0"
description:
  - Gives the content of a C(file_sd) file, one entry for each host, with the labels C(instance) (the host's name),
    C(group) (the first of Muster's groups that it is in) and what C(fleet_place) says.
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
  groups:
    description: Ansible's C(groups).
    type: dict
    required: true
  port:
    description: Port by which each host answers.
    type: int
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
content: "{{ groups['etcd'] | muster.fleet.scrape_targets(hostvars, groups, fleet_metrics_port) | to_nice_json }}"
"""

RETURN = r"""
_value:
  description: One dictionary for each host, in the order given.
  type: list
  elements: dict
"""


def scrape_targets(
    hosts: Iterable[str], hostvars: Mapping[str, Any], groups: Mapping[str, Sequence[str]], port: int
) -> list[dict[str, Any]]:
    """One entry for each host. Raises AnsibleFilterError for a host without an address or with a wrong place."""
    try:
        return targets.scrape_targets(hosts, compiled_once(hostvars), groups, int(port))
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"scrape_targets": scrape_targets}
