#!/usr/bin/python
"""Ansible module: the fleet's ledger as a member of etcd has it, where that still answers."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.etcd import ledger as etcd_ledger
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: etcd_ledger
short_description: Read the fleet's ledger from a member of etcd
version_added: "0.2.0"
description:
  - Reads all NodeAdmissions from one member, without the API servers and without the other members. So what a cluster
    knew of its nodes is read also when it has lost its majority.
  - Changes nothing. A member that does not answer is a result.
options:
  endpoint:
    description: The member's client URL.
    type: str
    required: true
  domain:
    description: Group of the ledger.
    type: str
    default: muster.dev
extends_documentation_fragment:
  - muster.fleet.etcd_client
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Read the ledger
  muster.fleet.etcd_ledger:
    endpoint: https://198.18.7.11:2379
"""

RETURN = r"""
answered:
  description: Whether the member has said what it has.
  type: bool
  returned: success
why:
  description: Why it has not.
  type: str
  returned: success
revision:
  description: How far it is.
  type: int
  returned: success
ledger:
  description: The NodeAdmissions, compressed, for M(muster.fleet.ledger_restore).
  type: str
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "endpoint": {"type": "str", "required": True},
    **etcd_api.CREDENTIAL_OPTIONS,
    "domain": {"type": "str", "default": "muster.dev"},
}


def observe(module: AnsibleModule) -> dict[str, Any]:
    """Ask the member."""
    given = module.params
    credentials = etcd_api.Credentials(given["ca"], given["cert"], given["key"])
    try:
        api = etcd_api.connect(given["endpoint"], credentials, etcd_api.REQUEST_TIMEOUT_S)
        revision, ledger = etcd_ledger.of_member(api, given["domain"])
    except FleetError as error:
        return {"changed": False, "answered": False, "why": str(error), "revision": 0, "ledger": ""}
    packed = etcd_ledger.packed(ledger)
    return {"changed": False, "answered": True, "why": "", "revision": revision, "ledger": packed}


def main() -> None:
    """Entry point."""
    run_module(observe, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
