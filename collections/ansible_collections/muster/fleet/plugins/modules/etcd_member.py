#!/usr/bin/python
"""Ansible module: one etcd member restarted when its files changed, without costing the quorum."""

from __future__ import annotations

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit

DOCUMENTATION = r"""
module: etcd_member
short_description: Restart an etcd member when its files changed, and keep the quorum
version_added: "0.1.0"
description:
  - Restarts the member only when its binary, its unit or one of O(restart_after) is newer than the running process, and
    only while the other members keep the quorum. A cluster that has lost its quorum already has nothing to lose, so
    there the restart goes ahead.
  - After a restart within a quorum it waits until the member is healthy, as M(muster.fleet.etcd_health) defines it. A
    cluster without a quorum becomes healthy only when its other members have restarted too.
  - Use it with C(throttle) 1, so that members restart one after the other; and twice, the first time with O(leader)
    V(false), so that the leadership moves once. A request that is on its way to a leader when the leadership moves may
    get no answer for 5 s and two election timeouts, and nothing makes that less.
options:
  unit:
    description: The systemd unit.
    type: str
    default: etcd.service
  name:
    description: Name of this member.
    type: str
    required: true
  endpoints:
    description: Client URL of every member by name, this one included.
    type: dict
    required: true
  leader:
    description:
      - Whether to restart the member while it leads. With V(false) it is left alone then, and RV(owed) says so.
    type: bool
    default: true
  timeout_s:
    description: How long to wait for the quorum before, and for health after, in seconds.
    type: float
    default: 60
extends_documentation_fragment:
  - muster.fleet.etcd_client
  - muster.fleet.restart_after
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Restart the followers whose files changed
  muster.fleet.etcd_member:
    name: etcd-1
    endpoints: {etcd-1: "https://198.18.7.11:2379"}
    restart_after: [/usr/local/bin/etcd, /etc/etcd/etcd.yaml]
    leader: false
  register: found
  throttle: 1

- name: Restart the leader if its files changed
  muster.fleet.etcd_member:
    name: etcd-1
    endpoints: {etcd-1: "https://198.18.7.11:2379"}
    restart_after: [/usr/local/bin/etcd, /etc/etcd/etcd.yaml]
  throttle: 1
  when: found.owed
"""

RETURN = r"""
restarted_for:
  description: The files that make the restart necessary.
  type: list
  elements: str
  returned: always
owed:
  description: Whether the restart was left undone because the member leads.
  type: bool
  returned: always
"""


ARGUMENT_SPEC: dict[str, Any] = {
    "unit": {"type": "str", "default": "etcd.service"},
    "name": {"type": "str", "required": True},
    "endpoints": {"type": "dict", "required": True},
    "leader": {"type": "bool", "default": True},
    **systemd_unit.RESTART_OPTIONS,
    **etcd_api.CREDENTIAL_OPTIONS,
    "timeout_s": {"type": "float", "default": 60.0},
}


class _Cluster:
    """The members as this host reaches them."""

    def __init__(self, endpoints: dict[str, str], credentials: etcd_api.Credentials) -> None:
        self.endpoints = endpoints
        self.credentials = credentials

    def probe(self, name: str) -> etcd_api.Health:
        """One member's health."""
        return etcd_api.probe(self.endpoints[name], self.credentials, list(self.endpoints))

    def healthy_others(self, name: str) -> int:
        """How many of the other members are healthy."""
        return sum(self.probe(other).healthy for other in self.endpoints if other != name)


def bring_up_to_date(module: AnsibleModule) -> dict[str, Any]:
    """Restart the member when it is stale. Raises FleetError."""
    given = module.params
    cluster = _Cluster(given["endpoints"], etcd_api.Credentials(given["ca"], given["cert"], given["key"]))
    stale = systemd_unit.stale_because(systemd_unit.show(given["unit"]), given["restart_after"])
    owed = bool(stale) and not given["leader"] and cluster.probe(given["name"]).leads
    if stale and not owed and not module.check_mode:
        _restart(module, cluster)
    return {"changed": bool(stale) and not owed, "restarted_for": stale, "owed": owed}


def _restarted(module: AnsibleModule) -> bool:
    unit = systemd_unit.show(module.params["unit"])
    return unit.started_at is not None and not systemd_unit.stale_because(unit, module.params["restart_after"])


def _restart(module: AnsibleModule, cluster: _Cluster) -> None:
    """Restart once the others hold the quorum, or at once when there is none. Raises FleetError otherwise."""
    quorum = True
    name, size = module.params["name"], len(cluster.endpoints)
    deadline = time.monotonic() + module.params["timeout_s"]
    while not etcd_api.may_restart(others := cluster.healthy_others(name), size):
        if others == 0 and not cluster.probe(name).healthy:
            quorum = False
            break
        if time.monotonic() >= deadline:
            raise FleetError(
                f"etcd member {name} needs a restart, but only {others} of the other {size - 1} members are healthy "
                "and the cluster would stop; repair those first, then run again"
            )
        time.sleep(0.5)
    # A start that hangs would hang here too: the condition to wait for is health, with its reason.
    systemd_unit.systemctl(["restart", "--no-block", "--", module.params["unit"]])
    # The old process may answer a while longer, and its health is not the new one's.
    while not _restarted(module) and time.monotonic() < deadline:
        time.sleep(0.1)
    if not quorum:
        return
    health = etcd_api.wait_healthy(lambda: cluster.probe(name), module.params["timeout_s"])
    if not health.healthy:
        raise FleetError(
            f"etcd member {name} is not healthy {module.params['timeout_s']:g} s after its restart: {health.reason}; "
            f"see `journalctl -u {module.params['unit']}` there"
        )


def main() -> None:
    """Entry point."""
    run_module(bring_up_to_date, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
