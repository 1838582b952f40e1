#!/usr/bin/python
"""Ansible module: an etcd member's data restored beside the old, and exchanged with it while etcd is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import restore as etcd_restore
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit

DOCUMENTATION = r"""
module: etcd_restore
short_description: Restore an etcd member's data from a snapshot
version_added: "0.2.0"
description:
  - With O(step=prepare) the snapshot is restored beside the data, while etcd goes on. With O(step=exchange) the old
    data is put aside, never removed, and the new takes its place; etcd must be stopped.
  - With O(step=clear) what another restore, which was given up, has left beside the data is removed (a restored folder,
    an unencrypted snapshot); the data of before is not.
  - All go on where a killed run was, and change nothing once the exchange is done.
options:
  step:
    description: What to do.
    type: str
    choices: [clear, prepare, exchange]
    required: true
  id:
    description: Id of the restore, in the names of the folders.
    type: str
    required: true
  data_dir:
    description: The member's data folder.
    type: path
    required: true
  snapshot:
    description: The database of the snapshot, on this host and on the same file system.
    type: path
    required: true
  sha256:
    description: SHA-256 that it must have.
    type: str
    required: true
  name:
    description: Name of the member.
    type: str
    required: true
  peers:
    description: Peer URL of each member by name.
    type: dict
    required: true
  token:
    description: Token of the new cluster, without secrets.
    type: str
    required: true
  bump_revision:
    description: How much larger revisions are after the restore, so that no watcher sees them go back.
    type: int
    default: 1000000000
  owner:
    description: User and group of the data.
    type: str
    default: etcd
  unit:
    description: The systemd unit that must be stopped for the exchange.
    type: str
    default: etcd.service
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Restore beside the data
  muster.fleet.etcd_restore:
    step: prepare
    id: 20261123T050001Z
    data_dir: /var/lib/etcd/data
    snapshot: /var/lib/etcd/restore.db
    sha256: 0f343b0931126a20f133d67c2b018a3b5cd44d5d5d9aa1c6a8f5c3dd0e3b4a11
    name: etcd-1
    peers: {etcd-1: "https://198.18.7.11:2380"}
    token: lab-main-20261123T050001Z
"""

RETURN = r"""
state:
  description: How far this member is now, of none, prepared, exchanging and done.
  type: str
  returned: success
removed:
  description: What was removed.
  type: list
  elements: str
  returned: with O(step=clear)
old:
  description: Folder of the data of before.
  type: str
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "step": {"type": "str", "choices": ["clear", "prepare", "exchange"], "required": True},
    "id": {"type": "str", "required": True},
    "data_dir": {"type": "path", "required": True},
    "snapshot": {"type": "path", "required": True},
    "sha256": {"type": "str", "required": True},
    "name": {"type": "str", "required": True},
    "peers": {"type": "dict", "required": True},
    # The name of a cluster, not a secret.
    "token": {"type": "str", "required": True, "no_log": False},
    "bump_revision": {"type": "int", "default": 1_000_000_000},
    "owner": {"type": "str", "default": "etcd"},
    "unit": {"type": "str", "default": "etcd.service"},
}


def restore(module: AnsibleModule) -> dict[str, Any]:
    """One step. Raises FleetError."""
    given = module.params
    places = etcd_restore.Places(Path(given["data_dir"]), given["id"])
    if given["step"] == "clear":
        return _clear(places, act=not module.check_mode)
    before = places.state
    wanted = before == "none" if given["step"] == "prepare" else before != "done"
    if wanted and not module.check_mode:
        if given["step"] == "prepare":
            _prepare(given, places)
        else:
            _exchange(given, places)
    return {"changed": wanted, "state": places.state, "old": str(places.old)}


def _clear(places: etcd_restore.Places, *, act: bool) -> dict[str, Any]:
    removed = [str(path) for path in etcd_restore.left(places)]
    if act:
        etcd_restore.clear(places)
    return {"changed": bool(removed), "removed": removed, "state": places.state, "old": str(places.old)}


def _prepare(given: dict[str, Any], places: etcd_restore.Places) -> None:
    peers: dict[str, str] = given["peers"]
    member = etcd_restore.Member(
        name=given["name"],
        initial_cluster=",".join(f"{name}={url}" for name, url in peers.items()),
        token=given["token"],
        peer_url=peers[given["name"]],
        bump_revision=given["bump_revision"],
        owner=given["owner"],
    )
    etcd_restore.prepare(places, Path(given["snapshot"]), given["sha256"], member)


def _exchange(given: dict[str, Any], places: etcd_restore.Places) -> None:
    if systemd_unit.show(given["unit"]).running:
        raise FleetError(f"{given['unit']} runs, and its data is not exchanged under it; run the playbook again")
    if places.state == "none":
        raise FleetError(f"{places.new} is not there, so there is nothing to exchange; run the playbook again")
    etcd_restore.exchange(places)


def main() -> None:
    """Entry point."""
    run_module(restore, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
