"""Jinja filter: how long a node of a play waits for its turn to make power waves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.host.wave_wait import wave_wait_s

from gpu_burnin.fleet.feeds.limits import LimitsError, read_limits

DOCUMENTATION = r"""
name: wave_wait
short_description: How long a node waits for its turn to make power waves
version_added: "0.2.0"
description:
  - Gives the seconds until the last host of the play has had its waves, or the number given where that is more. Runs
    are started in batches of O(forks), and go on beside each other; then they make waves, as if all of them stood at
    the feed with the fewest turns, since those that wait there keep forks from the others.
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
    description: How many nodes make waves at a time at all feeds without a limit of their own.
    type: int
    required: true
  feed_limits:
    description: How many make waves at a time at each of these feeds, as C(fleet_feed_limits).
    type: dict
    default: {}
    version_added: "0.2.0"
  feed:
    description: The feed of the host; empty for none.
    type: str
    default: ""
    version_added: "0.2.0"
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


def wave_wait(
    asked_s: int,
    *,
    hosts: int,
    forks: int,
    wave_nodes: int,
    extended_s: int = 0,
    feed_limits: Mapping[Any, Any] | None = None,
    feed: object = "",
) -> int:
    """The seconds; numbers may be given as text. Raises AnsibleFilterError for limits that are none."""
    try:
        limits = read_limits(feed_limits or {}, wave_nodes)
    except LimitsError as error:
        raise AnsibleFilterError(str(error)) from error
    at_once = min([limits.of("" if feed is None else str(feed)), *limits.by_feed.values()])
    return wave_wait_s(int(asked_s), hosts=int(hosts), forks=int(forks), wave_nodes=at_once, extended_s=int(extended_s))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"wave_wait": wave_wait}
