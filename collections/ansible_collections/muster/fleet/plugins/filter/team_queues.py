"""Jinja filter: what the admitter needs to know of the fleet's teams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import admitter_jobs

DOCUMENTATION = r"""
name: team_queues
short_description: What the admitter needs to know of the fleet's teams
version_added: "0.2.0"
description:
  - Gives for each team what its jobs' nodes have to have passed, and how many GPUs of each model are its own.
positional: model
options:
  _input:
    description: The teams, as C(fleet_teams).
    type: dict
    required: true
  model:
    description: The model of the GPUs of a team that gives a number of them.
    type: str
    default: ""
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
jobs: "{{ {'audio': {'gpus': 64, 'dedicated': true}} | muster.fleet.team_queues('h100-sxm5-80gb') }}"
# => {queues: {audio: {level: standard, gang_test: false}}, dedicated: {audio: {h100-sxm5-80gb: 64}}}
"""

RETURN = r"""
_value:
  description: C(queues) and C(dedicated), each by team.
  type: dict
"""


def team_queues(teams: Mapping[str, Any], model: str = "") -> dict[str, Any]:
    """Queues and dedicated GPUs by team. Raises AnsibleFilterError for teams that cannot be read."""
    try:
        return admitter_jobs(teams, model)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"team_queues": team_queues}
