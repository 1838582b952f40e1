#!/usr/bin/python
"""Ansible module: which certificates of a PKI folder have to be issued, and why."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module

try:
    from ansible_collections.muster.fleet.plugins.module_utils.pki import plan as pki

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: pki_plan
short_description: Say which certificates have to be issued, and why
version_added: "0.1.0"
description:
  - Compares a folder of CAs, keys and certificates on the controller with what is wanted, and returns what is missing,
    about to expire, or different in key, issuer, subject, names or usages. Writes nothing.
  - Refuses to go on where trust already given would be lost, as with a CA whose key is not its own.
  - In check mode it reports a change when something has to be issued.
requirements:
  - cryptography
options:
  path:
    description: The folder.
    type: path
    required: true
  authorities:
    description: The CAs, each in a folder of its name.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the folder.
        type: str
        required: true
      cn:
        description: Common name.
        type: str
        required: true
  leaves:
    description: The certificates.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the files, without ending. C({host}) and C({address}) stand for an entry of C(for_each).
        type: str
        required: true
      ca:
        description: Name of the CA.
        type: str
        required: true
      cn:
        description: Common name.
        type: str
        required: true
      o:
        description: Organisation, which Kubernetes takes as group.
        type: str
        default: ""
      sans:
        description: Names and addresses of a server.
        type: list
        elements: str
        default: []
      first_address_of:
        description: Network whose first address is added to C(sans).
        type: str
      usages:
        description: Extended key usages.
        type: list
        elements: str
        choices: [serverAuth, clientAuth]
        required: true
      days:
        description: Lifetime in days.
        type: int
        required: true
      for_each:
        description: Hosts and their addresses; one certificate is wanted for each.
        type: dict
  keypairs:
    description: Key pairs without certificate (NAME.key, NAME.pub), as paths within the folder.
    type: list
    elements: str
    default: []
  secrets:
    description: Files of 32 random bytes in base64, as paths within the folder.
    type: list
    elements: str
    default: []
  renew_before_days:
    description: Issue anew when less than this is left.
    type: int
    default: 30
attributes:
  diff_mode:
    support: full
    description: Shows what would be issued, and why.
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Plan
  muster.fleet.pki_plan:
    path: /root/fleet/pki
    authorities: [{name: etcd, cn: etcd}]
    leaves:
      - {name: "member-{host}", ca: etcd, cn: "{host}", sans: ["{host}", "{address}"], days: 365,
         usages: [serverAuth, clientAuth], for_each: {etcd-1: 198.18.7.11}}
"""

RETURN = r"""
authorities:
  description: CAs to make (name, cn, reason).
  type: list
  elements: dict
  returned: always
leaves:
  description: Certificates to issue (path without ending, name, ca, cn, o, sans, usages, days, reason).
  type: list
  elements: dict
  returned: always
keypairs:
  description: Key pairs to make.
  type: list
  elements: str
  returned: always
secrets:
  description: Secrets to make.
  type: list
  elements: str
  returned: always
directories:
  description: Folders to make or to close to others.
  type: list
  elements: str
  returned: always
loose_files:
  description: Files that others may read.
  type: list
  elements: str
  returned: always
needed:
  description: Whether anything has to be done.
  type: bool
  returned: always
signing:
  description: Names of the CAs whose key is needed for O(leaves).
  type: list
  elements: str
  returned: always
"""

_LEAF = {
    "name": {"type": "str", "required": True},
    "ca": {"type": "str", "required": True},
    "cn": {"type": "str", "required": True},
    "o": {"type": "str", "default": ""},
    "sans": {"type": "list", "elements": "str", "default": []},
    "first_address_of": {"type": "str"},
    "usages": {"type": "list", "elements": "str", "choices": ["serverAuth", "clientAuth"], "required": True},
    "days": {"type": "int", "required": True},
    "for_each": {"type": "dict"},
}


ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "authorities": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {"name": {"type": "str", "required": True}, "cn": {"type": "str", "required": True}},
    },
    "leaves": {"type": "list", "elements": "dict", "required": True, "options": _LEAF},
    "keypairs": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "renew_before_days": {"type": "int", "default": 30},
}


def plan_certificates(module: AnsibleModule) -> dict[str, Any]:
    """Compare the folder with what is wanted. Raises FleetError, OSError."""
    given = module.params
    request = pki.Request(
        path=Path(given["path"]),
        authorities=tuple(pki.Authority(**authority) for authority in given["authorities"]),
        leaves=pki.expand_leaves(given["leaves"]),
        keypairs=tuple(given["keypairs"]),
        secrets=tuple(given["secrets"]),
        renew_before=timedelta(days=given["renew_before_days"]),
    )
    plan = pki.make_plan(request, datetime.now(UTC))
    for warning in plan.warnings:
        module.warn(warning)
    authorities = [asdict(authority) | {"reason": reason} for authority, reason in plan.authorities]
    leaves = [
        asdict(leaf) | {"reason": reason, "path": f"{given['path']}/{leaf.ca}/{leaf.name}"}
        for leaf, reason in plan.leaves
    ]
    needed = [f"CA {entry['name']}: {entry['reason']}" for entry in authorities]
    needed += [f"{entry['ca']}/{entry['name']}: {entry['reason']}" for entry in leaves]
    needed += [f"{name}: it does not exist" for name in (*plan.keypairs, *plan.secrets)]
    needed += [f"{path}: not for its owner alone" for path in (*plan.directories, *plan.loose_files)]
    return {
        "changed": module.check_mode and bool(needed),
        "authorities": authorities,
        "leaves": leaves,
        "keypairs": plan.keypairs,
        "secrets": plan.secrets,
        "needed": bool(needed),
        "directories": plan.directories,
        "loose_files": plan.loose_files,
        "signing": sorted({leaf.ca for leaf, _ in plan.leaves}),
        "diff": {"prepared": "".join(f"to be issued: {line}\n" for line in needed)} if needed else {},
    }


def main() -> None:
    """Entry point."""
    run_module(plan_certificates, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
