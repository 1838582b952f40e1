#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: one step of replacing the key with which API servers encrypt in etcd, in the controller's file."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import files
from ansible_collections.muster.fleet.plugins.module_utils.pki import encryption_keys

DOCUMENTATION = r"""
module: encryption_key
short_description: Do one step of replacing the encryption key in the controller's file
version_added: "0.2.0"
description:
  - Adds a new key that reads alone (C(add)), has it write (C(lead)), or takes the old one away (C(drop)), which it
    keeps in a file beside, since older snapshots of etcd need it. Servers are for others to bring up to date.
  - A step that is done changes nothing. A key that was made less than a day ago is not replaced.
  - Refused, and nothing changed, where a server is missing or writes with a key that is not in the file, where etcd has
    values under one, and where a step would make something unreadable.
options:
  path:
    description: The file of keys.
    type: path
    required: true
  step:
    description: The step.
    type: str
    required: true
    choices: [add, lead, drop]
  hosts:
    description: Names of all API servers.
    type: list
    elements: str
    required: true
  servers:
    description: Of each API server what M(muster.fleet.encryption_scan) says that it has.
    type: dict
    required: true
  stored:
    description: How many values in etcd are under which key, as M(muster.fleet.encryption_scan) says.
    type: dict
    required: true
  resources:
    description: The kinds that are encrypted. Each must be named, since all are written anew; a wildcard is refused.
    type: list
    elements: str
    required: true
  however_young:
    description: Replace also a key that was made less than a day ago, as one that is stolen.
    type: bool
    default: false
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Add a new key for reading
  muster.fleet.encryption_key:
    path: /root/fleet/pki/encryption-key
    step: add
    hosts: [api-1]
    servers: {api-1: ["muster 1a2b3c4d5e6f7081"]}
    stored: {muster: 200}
    resources: [secrets]
  delegate_to: localhost
"""

RETURN = r"""
names:
  description: Names of the keys after the step; the first writes.
  type: list
  elements: str
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "step": {"type": "str", "required": True, "choices": ["add", "lead", "drop"]},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "servers": {"type": "dict", "required": True},
    "stored": {"type": "dict", "required": True},
    "resources": {"type": "list", "elements": "str", "required": True},
    "however_young": {"type": "bool", "default": False},
}


def rotate(module: AnsibleModule) -> dict[str, Any]:
    """Do the step. Raises FleetError, OSError."""
    given = module.params
    path = Path(given["path"])
    if any("*" in resource for resource in given["resources"]):
        raise FleetError(
            "kube_apiserver_encrypted_resources has a wildcard; name each kind, since all are written anew"
        )
    before = encryption_keys.parse(path.read_text(), str(path))
    stored = {name: int(count) for name, count in given["stored"].items()}
    facts = encryption_keys.Facts(before, given["servers"], stored)
    encryption_keys.check(facts, given["hosts"])
    if given["step"] == "add":
        secret, now = secrets.token_bytes(encryption_keys.KEY_BYTES), datetime.now(UTC)
        after = encryption_keys.add(facts, secret, now, however_young=given["however_young"])
    else:
        after = {"lead": encryption_keys.lead, "drop": encryption_keys.drop}[given["step"]](facts)
    if after != before and not module.check_mode:
        _keep([key for key in before if key not in after], path.with_name(f"{path.name}.dropped"))
        _write(path, encryption_keys.text_of(after))
    return {"changed": after != before, "names": [key.name for key in after]}


def _keep(dropped: list[encryption_keys.Key], path: Path) -> None:
    kept = path.read_text() if path.exists() else ""
    lines = encryption_keys.text_of([key for key in dropped if f"{key.name} {key.secret}\n" not in kept])
    if lines:
        _write(path, kept + lines)


def _write(path: Path, text: str) -> None:
    files.apply([files.FileSpec(dest=str(path), content=text.encode(), mode=0o600, sensitive=True)], [])


def main() -> None:
    """Entry point."""
    run_module(rotate, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
