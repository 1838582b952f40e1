"""Jinja filter: the numbers of the scaler's decisions, with the time of an extended burn-in of a boot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.burnin import duration_s

from gpu_burnin.fleet.plan.work import extended_over_s
from gpu_burnin.scaler.model import Rules

DOCUMENTATION = r"""
name: scaler_rules
short_description: The numbers of the scaler's decisions, with the time of an extended burn-in of a boot
version_added: "0.2.0"
description:
  - A machine that was put on makes the burn-in of its boot before it takes work. Where that is an extended one on any
    of the hosts, C(ready_within_s) grows by the time after which the longest of them has given up.
options:
  _input:
    description: The numbers, as C(scaler_rules).
    type: dict
    required: true
  hosts:
    description: A dictionary for each host, with its C(gpu_burnin_level) as C(level) and its
      C(gpu_burnin_extended_for_new) as C(new), where it has them.
    type: list
    elements: dict
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
rules: "{{ {'settle_s': 5} | muster.fleet.scaler_rules([{'name': 'gpu-1', 'new': '2h'}, {'name': 'gpu-2'}]) }}"
# => {settle_s: 5, ready_within_s: 11700.0}
"""

RETURN = r"""
_value:
  description: The numbers.
  type: dict
"""


def scaler_rules(rules: Mapping[str, Any], hosts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers. Raises AnsibleFilterError that names the variable."""
    asked = {(host.get("level"), str(host.get("new", ""))) for host in hosts}
    boots_s = [extended_over_s() for level, _ in asked if level == "extended"]
    try:
        boots_s += [extended_over_s(duration_s(new)) for _, new in asked if new]
    except FleetError as error:
        raise AnsibleFilterError(f"gpu_burnin_{error}") from error
    if not boots_s:
        return dict(rules)
    within_s = rules.get("ready_within_s", Rules().ready_within_s)
    try:
        return {**rules, "ready_within_s": float(within_s) + max(boots_s)}
    except (TypeError, ValueError) as error:
        raise AnsibleFilterError(f"scaler_rules.ready_within_s is {within_s!r}; give seconds") from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"scaler_rules": scaler_rules}
