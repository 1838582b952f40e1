"""Jinja filter: how long a node of a play waits for its turn to make power waves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host.wave_wait import wave_wait_s

DOCUMENTATION = r"""
name: wave_wait
short_description: How long a node waits for its turn to make power waves
version_added: "0.2.0"
description:
  - Gives the seconds until the last host of the play has had its waves, or the number given where that is more. Runs
    are started in batches of O(forks), and go on beside each other; then O(wave_nodes) at a time make waves.
options:
  _input:
    description: The shortest wait, in seconds.
    type: int
    required: true
  hosts:
    description: How many hosts the play has.
    type: int
    required: true
  forks:
    description: How many hosts Ansible works on at a time.
    type: int
    required: true
  wave_nodes:
    description: How many nodes make waves at a time.
    type: int
    required: true
  extended_s:
    description: Seconds that an extended run adds to each run.
    type: int
    default: 0
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
wait_s: "{{ 1800 | muster.fleet.wave_wait(hosts=ansible_play_hosts | length, forks=ansible_forks, wave_nodes=1) }}"
"""

RETURN = r"""
_value:
  description: Seconds.
  type: int
"""


def wave_wait(asked_s: int, *, hosts: int, forks: int, wave_nodes: int, extended_s: int = 0) -> int:
    """The seconds; numbers may be given as text."""
    return wave_wait_s(
        int(asked_s), hosts=int(hosts), forks=int(forks), wave_nodes=int(wave_nodes), extended_s=int(extended_s)
    )


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"wave_wait": wave_wait}
