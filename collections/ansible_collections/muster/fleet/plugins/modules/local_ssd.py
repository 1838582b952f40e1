#!/usr/bin/python
"""Ansible module: check a disk and make the filesystem on it, or refuse and touch nothing."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import block_device as bd

DOCUMENTATION = r"""
module: local_ssd
short_description: Prepare a local SSD named by its stable id
version_added: "0.1.0"
description:
  - Checks that a disk is what a database needs (inside this machine, solid state, durable, free, large enough)
    and makes a labelled filesystem on it. Every reason against the disk is reported at once and nothing is touched.
  - A disk on which an earlier run made the filesystem (same type, same label) is left as it is.
options:
  device:
    description: The disk, as /dev/disk/by-id/NAME.
    type: str
    required: true
  mount_point:
    description: Where it is going to be mounted, an absolute path.
    type: str
    required: true
  filesystem:
    description: Type of filesystem.
    type: str
    choices: [ext4, xfs]
    default: ext4
  label:
    description: Label of the filesystem, by which a later run knows it; at most 12 characters.
    type: str
    default: muster-ssd
  min_bytes:
    description: Smallest size accepted, in bytes.
    type: int
    default: 0
  wipe:
    description: Destroy what is on the disk when it is not ours.
    type: bool
    default: false
  allow_loop:
    description: Accept a loop device. For labs.
    type: bool
    default: false
attributes:
  diff_mode:
    support: full
    description: Shows what the disk held and what is made on it.
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Prepare the disk of etcd
  muster.fleet.local_ssd:
    device: /dev/disk/by-id/nvme-eui.0025388b710116a1
    mount_point: /var/lib/etcd
"""

RETURN = r"""
unit:
  description: Name of the systemd mount unit that belongs to the mount point.
  type: str
  returned: always
  sample: var-lib-etcd.mount
name:
  description: Kernel name of the device in this boot.
  type: str
  returned: always
size_bytes:
  description: Size of the device.
  type: int
  returned: always
wiped:
  description: What was destroyed, empty when nothing was.
  type: str
  returned: always
"""


ARGUMENT_SPEC: dict[str, Any] = {"device": {"type": "str", "required": True}, **bd.WANTED_OPTIONS}


def prepare(module: AnsibleModule) -> dict[str, Any]:
    """Check the disk, then make the filesystem unless an earlier run did. Raises FleetError, OSError."""
    given = dict(module.params)
    path = given.pop("device")
    wanted = bd.Wanted(**given)
    if not bd.is_stable_path(path):
        raise FleetError(
            f"local_ssd_device: {path} is not a stable name; give the disk as {bd.STABLE_PREFIX}NAME "
            "(see `ls -l /dev/disk/by-id`)"
        )
    if not wanted.mount_point.startswith("/"):
        raise FleetError(f"local_ssd_mount_point: {wanted.mount_point} must be absolute; write it with a leading /")
    if len(wanted.label) > 12:
        raise FleetError(f"local_ssd_label: {wanted.label} has more than 12 characters; give a shorter one")
    device = bd.inspect(path)
    problems = bd.refusals(device, wanted, bd.inspect_mount_point(wanted.mount_point))
    if problems:
        raise FleetError(f"{path} ({device.name}) was not touched: it " + "; it ".join(problems))
    make = not bd.is_ours(device, wanted)
    wiped = str(device.signature) if make and device.signature else ""
    if make and not module.check_mode:
        _make(module, path, wanted, bool(wiped))
    return {
        "changed": make,
        "unit": bd.escape_unit_path(wanted.mount_point) + ".mount",
        "name": device.name,
        "size_bytes": device.size_bytes,
        "wiped": wiped,
        "diff": {
            "before": f"{path}: {device.signature or 'empty'}\n",
            "after": f"{path}: {wanted.filesystem} labelled '{wanted.label}'\n",
        }
        if make
        else {},
    }


def _make(module: AnsibleModule, path: str, wanted: bd.Wanted, wipe: bool) -> None:
    commands = [["wipefs", "--all", "--quiet", path]] if wipe else []
    for command in [*commands, bd.mkfs_command(path, wanted)]:
        if module.get_bin_path(command[0]) is None:
            package = "xfsprogs" if "xfs" in command[0] else "e2fsprogs and util-linux"
            raise FleetError(f"{command[0]} is not installed; install {package}")
        code, _out, err = module.run_command(command)
        if code != 0:
            raise FleetError(f"`{' '.join(command)}` failed: {err.strip()}; see `journalctl -k` there")


def main() -> None:
    """Entry point."""
    run_module(prepare, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
