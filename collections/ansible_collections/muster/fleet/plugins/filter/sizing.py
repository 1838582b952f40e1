"""Jinja filter: what follows from the size of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from gpu_burnin.fleet.plan.sizing import SIZES

DOCUMENTATION = r"""
name: sizing
short_description: What follows from the size of a fleet
version_added: "0.2.0"
description:
  - Gives a limit or a size for so many nodes; C(muster plan) prints all of them, from the same formulas.
options:
  _input:
    description: How many nodes are planned; for O(of=goaway_chance), how many API servers there are.
    type: int
    required: true
  of:
    description: What is asked for.
    type: str
    required: true
    choices:
      - reads_in_flight
      - writes_in_flight
      - goaway_chance
      - disk_p99_ms
      - balancer_connections
      - client_qps
      - client_burst
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
limit: "{{ fleet_planned_nodes | muster.fleet.sizing('reads_in_flight') }}"
"""

RETURN = r"""
_value:
  description: The number.
  type: float
"""


def sizing(count: Any, of: str) -> float:
    """The size; the number may be given as text. Raises AnsibleFilterError."""
    if of not in SIZES:
        raise AnsibleFilterError(f"sizing knows no {of!r}; choose from {', '.join(SIZES)}")
    try:
        return SIZES[of](int(count))
    except (TypeError, ValueError):
        raise AnsibleFilterError(f"sizing wants a whole number, not {count!r}; correct fleet_planned_nodes") from None


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"sizing": sizing}
