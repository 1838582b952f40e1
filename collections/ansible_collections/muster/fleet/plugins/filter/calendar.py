"""Jinja filter: the inventory's calendar of maintenance windows as the admitter's configuration has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.preflight import calendar as calendars

from gpu_burnin.admission.calendar import CalendarError

DOCUMENTATION = r"""
name: calendar
short_description: Maintenance windows with the names of their hosts
version_added: "0.2.0"
description:
  - Reads the calendar strictly and puts the hosts of a group in the place of the group.
options:
  _input:
    description: The windows, each with C(nodes) (names of hosts and groups, or C(all)), C(not_before), C(not_after)
      and, where you like, C(kind) and C(message).
    type: list
    elements: dict
    required: true
  groups:
    description: Ansible's C(groups).
    type: dict
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
calendar: "{{ fleet_maintenance | muster.fleet.calendar(groups) }}"
"""

RETURN = r"""
_value:
  description: The windows, times in UTC.
  type: list
  elements: dict
"""


def calendar(windows: Any, groups: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
    """The windows. Raises AnsibleFilterError that names the window and the key."""
    try:
        return calendars.calendar(windows, groups)
    except CalendarError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"calendar": calendar}
