#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: have an etcd cluster accept members of the minor that is wanted."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.etcd.minor import Members, prepare
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module

DOCUMENTATION = r"""
module: etcd_downgrade
short_description: Have an etcd cluster accept members of an older minor
version_added: "0.2.0"
description:
  - Where the cluster's version is newer than the minor that is wanted, enables etcd's own downgrade and waits until
    every member keeps its data in the format of that minor. Where a downgrade to an older minor than the wanted
    one is under way, ends it. Else it does nothing.
options:
  endpoints:
    description: Client URL of each member by name.
    type: dict
    required: true
  minor:
    description: The minor that is wanted, such as C(3.6).
    type: str
    required: true
  timeout_s:
    description: How long to wait for the members, in seconds.
    type: float
    default: 60
extends_documentation_fragment:
  - muster.fleet.etcd_client
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Allow members of 3.6 in a cluster of 3.7
  muster.fleet.etcd_downgrade:
    endpoints: {etcd-1: "https://198.18.7.11:2379"}
    minor: "3.6"
"""

RETURN = r"""
action:
  description: What was done, C(enable), C(cancel) or C(none).
  type: str
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "endpoints": {"type": "dict", "required": True},
    "minor": {"type": "str", "required": True},
    **etcd_api.CREDENTIAL_OPTIONS,
    "timeout_s": {"type": "float", "default": 60.0},
}


def run(module: AnsibleModule) -> dict[str, Any]:
    """Enable, cancel or nothing. Raises FleetError."""
    given = module.params
    credentials = etcd_api.Credentials(given["ca"], given["cert"], given["key"])
    apis = {
        name: etcd_api.connect(url, credentials, etcd_api.REQUEST_TIMEOUT_S) for name, url in given["endpoints"].items()
    }
    action = prepare(Members(apis), given["minor"], given["timeout_s"], act=not module.check_mode)
    return {"changed": action != "none", "action": str(action)}


def main() -> None:
    """Entry point."""
    run_module(run, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
