#!/usr/bin/python
"""Ansible module: make the keys and certificates that M(muster.fleet.pki_plan) asks for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module

try:
    from ansible_collections.muster.fleet.plugins.module_utils.pki import issue as pki_issue
    from ansible_collections.muster.fleet.plugins.module_utils.pki import plan as pki_plan

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: pki_issue
short_description: Make the keys and certificates of a plan
version_added: "0.1.0"
description:
  - Makes what M(muster.fleet.pki_plan) says is needed, in memory, and then places it by rename, mode 0600. Keys
    are of curve P-256.
  - Keys of CAs, key pairs and secrets that are there are used and never overwritten.
  - Does nothing in check mode, since the plan is the report.
requirements:
  - cryptography
options:
  path:
    description: The folder.
    type: path
    required: true
  plan:
    description: What M(muster.fleet.pki_plan) returned.
    type: dict
    required: true
  ca_keys:
    description: By name, the decrypted keys of the CAs that exist already and have to sign.
    type: dict
    default: {}
  ca_days:
    description: Lifetime of a new CA in days.
    type: int
    required: true
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Issue what is needed
  muster.fleet.pki_issue:
    path: /root/fleet/pki
    plan: "{{ plan }}"
    ca_keys:
      etcd: "{{ lookup('ansible.builtin.unvault', '/root/fleet/pki/etcd/ca.key') }}"
    ca_days: 3650
"""

RETURN = r"""
issued:
  description: CAs and certificates that were made, each with its reason.
  type: list
  elements: str
  returned: always
"""


ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "plan": {"type": "dict", "required": True},
    "ca_keys": {"type": "dict", "default": {}, "no_log": True},
    "ca_days": {"type": "int", "required": True},
}


def issue(module: AnsibleModule) -> dict[str, Any]:
    """Make what the plan asks for. Raises FleetError, OSError."""
    given = module.params
    plan = given["plan"]
    order = pki_issue.Order(
        path=Path(given["path"]),
        authorities=tuple(pki_plan.Authority(entry["name"], entry["cn"]) for entry in plan["authorities"]),
        leaves=tuple(_leaf(entry) for entry in plan["leaves"]),
        keypairs=tuple(plan["keypairs"]),
        secrets=tuple(plan["secrets"]),
        directories=tuple(plan["directories"]),
        loose_files=tuple(plan["loose_files"]),
        ca_days=given["ca_days"],
        ca_keys=given["ca_keys"],
    )
    if not module.check_mode:
        pki_issue.issue(order, datetime.now(UTC))
    return {
        "changed": plan["needed"],
        "issued": [
            *(f"CA {entry['name']}: {entry['reason']}" for entry in plan["authorities"]),
            *(f"{entry['ca']}/{entry['name']}: {entry['reason']}" for entry in plan["leaves"]),
        ],
    }


def _leaf(entry: dict[str, Any]) -> pki_plan.Leaf:
    return pki_plan.Leaf(
        name=entry["name"],
        ca=entry["ca"],
        cn=entry["cn"],
        o=entry["o"],
        sans=tuple(entry["sans"]),
        usages=tuple(entry["usages"]),
        days=entry["days"],
    )


def main() -> None:
    """Entry point."""
    run_module(issue, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
