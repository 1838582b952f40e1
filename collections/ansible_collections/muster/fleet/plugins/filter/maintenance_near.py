"""Jinja filter: whether a maintenance window of the inventory's calendar keeps us from starting anything on a host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from datetime import UTC, datetime
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.preflight.calendar import near

from gpu_burnin.admission.calendar import CalendarError

DOCUMENTATION = r"""
name: maintenance_near
short_description: Why nothing starts on a host now
version_added: "0.2.0"
description:
  - Says which maintenance window of the inventory's calendar is open on the host, or begins soon. Empty for none.
options:
  _input:
    description: The windows, as P(muster.fleet.calendar#filter) takes them.
    type: list
    elements: dict
    required: true
  host:
    description: Name of the host.
    type: str
    required: true
  own_groups:
    description: The groups of the host, Ansible's C(group_names).
    type: list
    elements: str
    required: true
  groups:
    description: Ansible's C(groups), whose names alone are read.
    type: dict
    required: true
  hostvars:
    description: Ansible's C(hostvars), whose names alone are read.
    type: dict
    required: true
  before_s:
    description: How long before its start a window counts, in seconds.
    type: int
    default: 3600
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
why: "{{ fleet_maintenance | muster.fleet.maintenance_near(inventory_hostname, group_names, groups, hostvars) }}"
"""

RETURN = r"""
_value:
  description: One sentence without a full stop, or nothing.
  type: str
"""


def maintenance_near(
    windows: Any,
    host: str,
    own_groups: Collection[str],
    groups: Container[str],
    hostvars: Container[str],
    before_s: float = 3600,
) -> str:
    """The sentence. Raises AnsibleFilterError that names the window and the key."""
    try:
        return near(windows, host, own_groups, groups, hostvars, float(before_s), datetime.now(UTC))
    except CalendarError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"maintenance_near": maintenance_near}
