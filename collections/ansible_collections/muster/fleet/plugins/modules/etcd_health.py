#!/usr/bin/python
"""Ansible module: wait until an etcd member and its cluster are healthy."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: etcd_health
short_description: Wait until an etcd member and its cluster are healthy
version_added: "0.1.0"
description:
  - Asks one member over HTTPS with a client certificate. Healthy means that it says so itself (which takes a quorum),
    that there is a leader, that no alarm is raised, and that the member list is the expected one.
  - Changes nothing. In check mode it asks once and reports without failing.
options:
  endpoint:
    description: The member's client URL.
    type: str
    required: true
  expect_members:
    description: Names of all members. Empty accepts any list.
    type: list
    elements: str
    default: []
  timeout_s:
    description: How long to wait, in seconds.
    type: float
    default: 60
extends_documentation_fragment:
  - muster.fleet.etcd_client
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Wait for the member
  muster.fleet.etcd_health:
    endpoint: https://198.18.7.11:2379
    expect_members: [etcd-1, etcd-2, etcd-3]
"""

RETURN = r"""
health:
  description: What the member says.
  type: dict
  returned: always
  sample: {healthy: true, reason: "", leader: etcd-2, leads: false, version: 3.6.16, db_size_bytes: 20480, alarms: []}
"""


ARGUMENT_SPEC: dict[str, Any] = {
    "endpoint": {"type": "str", "required": True},
    **etcd_api.CREDENTIAL_OPTIONS,
    "expect_members": {"type": "list", "elements": "str", "default": []},
    "timeout_s": {"type": "float", "default": 60.0},
}


def wait(module: AnsibleModule) -> dict[str, Any]:
    """Wait for health; in check mode ask once. Raises FleetError."""
    given = module.params
    credentials = etcd_api.Credentials(given["ca"], given["cert"], given["key"])
    health = etcd_api.wait_healthy(
        lambda: etcd_api.probe(given["endpoint"], credentials, given["expect_members"]),
        0 if module.check_mode else given["timeout_s"],
    )
    if not health.healthy and not module.check_mode:
        raise FleetError(
            f"the etcd member at {given['endpoint']} is not healthy after {given['timeout_s']:g} s: {health.reason}; "
            "see `journalctl -u etcd` there",
            health=asdict(health),
        )
    return {"changed": False, "health": asdict(health)}


def main() -> None:
    """Entry point."""
    run_module(wait, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
