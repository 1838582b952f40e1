#!/usr/bin/python
"""Ansible module: one step of replacing CAs in a PKI folder."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module

try:
    from ansible_collections.muster.fleet.plugins.module_utils.pki import rotation
    from ansible_collections.muster.fleet.plugins.module_utils.pki.plan import Authority

    MISSING: ImportError | None = None
except ImportError as error:
    MISSING = error

DOCUMENTATION = r"""
module: pki_rotate
short_description: Do one step of replacing CAs in the PKI folder
version_added: "0.2.0"
description:
  - Makes a successor for each CA that is trusted beside it (C(trust)), has the successor sign and the old one still
    count (C(reissue)), or takes the old one away (C(drop)). Leaves and hosts are for others to bring up to date.
  - A step that was killed is done by running it again; one that is done changes nothing. Steps out of order are
    refused, but for C(reissue) of a CA that has expired, which nobody trusts any more.
  - Without O(step) it only tells which rotations are under way.
requirements:
  - cryptography
options:
  path:
    description: The PKI folder.
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
  step:
    description: The step.
    type: str
    choices: [trust, reissue, drop]
  ca_days:
    description: Lifetime of a successor in days.
    type: int
    default: 3650
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Trust a successor of each CA
  muster.fleet.pki_rotate:
    path: /root/fleet/pki
    authorities: [{name: etcd, cn: etcd}]
    step: trust
"""

RETURN = r"""
done:
  description: What the step did to which CA.
  type: list
  elements: str
  returned: always
under_way:
  description: Rotations that have begun and not ended, as before the step (authority, old and new in PEM, phase).
  type: list
  elements: dict
  returned: always
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "authorities": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {"name": {"type": "str", "required": True}, "cn": {"type": "str", "required": True}},
    },
    "step": {"type": "str", "choices": ["trust", "reissue", "drop"]},
    "ca_days": {"type": "int", "default": 3650},
}


def rotate(module: AnsibleModule) -> dict[str, Any]:
    """Do the step, or tell. Raises FleetError, OSError."""
    given = module.params
    path = Path(given["path"])
    authorities = [Authority(**authority) for authority in given["authorities"]]
    before = rotation.under_way(path, authorities)
    changes = []
    if given["step"]:
        changes = rotation.changes(path, authorities, given["step"], datetime.now(UTC), given["ca_days"])
    if not module.check_mode:
        for change in changes:
            rotation.apply(change)
    done = [f"{change.authority}: {change.words}" for change in changes]
    return {
        "changed": bool(changes),
        "done": done,
        "under_way": [asdict(one) for one in before],
        "diff": {"prepared": "".join(f"{line}\n" for line in done)} if done else {},
    }


def main() -> None:
    """Entry point."""
    run_module(rotate, ARGUMENT_SPEC, missing=MISSING)


if __name__ == "__main__":
    main()
