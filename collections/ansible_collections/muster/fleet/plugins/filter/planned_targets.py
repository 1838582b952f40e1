"""Jinja filter: how many targets each job of Prometheus will have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.preflight import monitoring_size

DOCUMENTATION = r"""
name: planned_targets
short_description: How many targets each job of Prometheus will have
version_added: "0.2.0"
description:
  - Gives the number of targets of each job when every planned node is there.
  - Hosts that are no nodes are not in the plan. They count as they are.
options:
  _input:
    description: For each job the hosts that the inventory has now.
    type: dict
    required: true
  groups:
    description: Ansible's C(groups).
    type: dict
    required: true
  planned_nodes:
    description: How many nodes are planned.
    type: int
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
targets: "{{ jobs | muster.fleet.planned_targets(groups, fleet_planned_nodes) }}"
"""

RETURN = r"""
_value:
  description: The numbers.
  type: dict
"""


def planned_targets(
    jobs: Mapping[str, Sequence[str]], groups: Mapping[str, Sequence[str]], planned_nodes: Any
) -> dict[str, int]:
    """The numbers; that of the nodes may be given as text."""
    return monitoring_size.planned_targets(jobs, groups, int(planned_nodes))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"planned_targets": planned_targets}
