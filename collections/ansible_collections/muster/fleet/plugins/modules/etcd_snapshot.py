#!/usr/bin/python
"""Ansible module: a snapshot of etcd opened and verified on the controller, before anything is touched."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import restore as etcd_restore
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module

DOCUMENTATION = r"""
module: etcd_snapshot
short_description: Open and verify a snapshot of etcd
version_added: "0.2.0"
description:
  - Decrypts a snapshot of the role C(etcd_backup), and refuses one that is truncated or damaged, of another cluster or
    fleet, or too old. In check mode, or when not asked to O(begin), nothing is written.
  - With O(begin) the database lies in O(directory) afterwards, with the restore's id, which stays the same until the
    directory is removed. A second restore, of another snapshot, is refused until then.
options:
  source:
    description: The snapshot, C(.tar.age) or decrypted C(.tar).
    type: path
    required: true
  identity:
    description: File with the private key of age.
    type: path
  fleet:
    description: Name of the fleet that it must be of.
    type: str
    required: true
  cluster:
    description: Cluster that it must be of, main or events.
    type: str
    required: true
  max_age_s:
    description: How old it may be, in seconds.
    type: float
    required: true
  directory:
    description: Folder for the restore, with nobody's access but the user's.
    type: path
    required: true
  begin:
    description: Write the database and begin a restore.
    type: bool
    default: false
extends_documentation_fragment:
  - muster.fleet.controller
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Verify the snapshot
  muster.fleet.etcd_snapshot:
    source: snapshots/lab-main-20261123T050001Z-etcd-2.tar.age
    identity: ~/etcd-backup.key
    fleet: lab
    cluster: main
    max_age_s: 86400
    directory: ~/muster/lab/etcd-restore-main
"""

RETURN = r"""
manifest:
  description: What the snapshot says of itself.
  type: dict
  returned: success
operation:
  description: The restore, with its C(id) and when it began.
  type: dict
  returned: success
database:
  description: Path of the database on the controller.
  type: str
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "source": {"type": "path", "required": True},
    "identity": {"type": "path"},
    "fleet": {"type": "str", "required": True},
    "cluster": {"type": "str", "required": True},
    "max_age_s": {"type": "float", "required": True},
    "directory": {"type": "path", "required": True},
    "begin": {"type": "bool", "default": False},
}


def observe(module: AnsibleModule) -> dict[str, Any]:
    """Verify, and begin the restore where asked. Raises FleetError."""
    given = module.params
    directory = Path(given["directory"])
    begin = given["begin"] and not module.check_mode
    if begin:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = directory / "snapshot.db"
    now_s = time.time()
    source, identity = Path(given["source"]), Path(given["identity"]) if given["identity"] else None
    wanted = etcd_restore.Wanted(given["fleet"], given["cluster"], given["max_age_s"])
    manifest = etcd_restore.open_snapshot(source, identity, wanted, None, now_s)
    operation = etcd_restore.operation(directory, manifest, source, now_s, begin=begin)
    if begin:
        etcd_restore.open_snapshot(source, identity, wanted, database, now_s)
    return {"changed": bool(given["begin"]), "manifest": manifest, "operation": operation, "database": str(database)}


def main() -> None:
    """Entry point."""
    run_module(observe, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
