"""Jinja filter: the rules of a program's own ClusterRole that the fleet gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.jobs import manifests

DOCUMENTATION = r"""
name: module_rights
short_description: The rules of a program's own ClusterRole that the fleet gives it
version_added: "0.2.0"
description:
  - Takes the ClusterRole of the mirror's C(NAME-manifests.json), which grows with the program's versions, and keeps the
    rules of the API groups that the fleet uses.
  - Refuses a rule that would make the program as good as an admin.
options:
  _input:
    description: The objects of C(NAME-manifests.json).
    type: list
    elements: dict
    required: true
  groups:
    description: The API groups.
    type: list
    elements: str
    required: true
  without:
    description: Resources as group/resource that it does not get.
    type: list
    elements: str
    default: []
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
rules: "{{ objects | muster.fleet.module_rights(['', 'batch'], ['/podtemplates']) }}"
# => [{'apiGroups': ['batch'], 'resources': ['jobs'], 'verbs': ['get', 'list', 'watch', 'update', 'patch']}]
"""

RETURN = r"""
_value:
  description: The rules.
  type: list
  elements: dict
"""


def module_rights(
    objects: Sequence[Mapping[str, Any]], groups: Sequence[str], without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """As module_utils/jobs/manifests.py. Raises AnsibleFilterError."""
    try:
        return manifests.module_rights(objects, groups, without)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"module_rights": module_rights}
