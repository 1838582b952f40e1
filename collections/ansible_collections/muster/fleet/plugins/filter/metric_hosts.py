"""Jinja filter: which hosts have which numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.preflight.scrape_targets import metric_hosts

DOCUMENTATION = r"""
name: metric_hosts
short_description: Which hosts have which numbers
version_added: "0.2.0"
description:
  - Turns what each group's hosts have into the hosts of each path on the port of metrics.
options:
  _input:
    description: For each group of the inventory its paths, each with the endpoint on the host itself.
    type: dict
    required: true
  groups:
    description: Ansible's C(groups).
    type: dict
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
jobs: "{{ {'all': {'node': '127.0.0.1:9100'}} | muster.fleet.metric_hosts(groups) }}"
# => {'node': ['etcd-1', 'gpu-1']}
"""

RETURN = r"""
_value:
  description: For each path its hosts, each once. A group that the inventory has not gives none.
  type: dict
"""


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"metric_hosts": metric_hosts}
