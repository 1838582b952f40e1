#!/usr/bin/python
"""Ansible module: measure p99 fdatasync on a mount and refuse a disk that is too slow."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import disk_latency as dl

DOCUMENTATION = r"""
module: disk_latency
short_description: Gate a disk on its p99 fdatasync latency
version_added: "0.1.0"
description:
  - Writes blocks one after the other into a preallocated file on the mount, each followed by fdatasync, and compares
    the 99th percentile with a limit. Comparable with
    C(fio --rw=write --ioengine=sync --fdatasync=1 --bs=8k), percentiles of C(sync).
  - A result within the limit is kept on the host and used again for the same device, so that a rerun measures nothing.
    A result over the limit is measured anew each time.
  - Nothing stays on the disk. In check mode nothing is measured.
options:
  path:
    description: A mount point. A folder that is not one is refused, so is a filesystem in memory.
    type: str
    required: true
  device:
    description: Stable id of the device, under which the result is kept.
    type: str
    required: true
  max_p99_ms:
    description: Limit in milliseconds.
    type: float
    required: true
  samples:
    description: Number of writes.
    type: int
    default: 2000
  block_bytes:
    description: Size of a write.
    type: int
    default: 8192
  max_seconds:
    description: Stop measuring after this many seconds.
    type: float
    default: 15
  results:
    description: File on the host that keeps the results.
    type: str
    default: /var/lib/muster/disk_latency.json
  force:
    description: Measure again even when a good result is known.
    type: bool
    default: false
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Measure the disk of etcd
  muster.fleet.disk_latency:
    path: /var/lib/etcd
    device: /dev/disk/by-id/nvme-eui.0025388b710116a1
    max_p99_ms: 2
  throttle: 1
"""

RETURN = r"""
latency:
  description: The result, durations in milliseconds; absent in check mode when nothing is known yet.
  type: dict
  returned: when known
  sample: {samples: 2000, block_bytes: 8192, p50_ms: 0.41, p99_ms: 0.9, p999_ms: 1.8, max_ms: 2.2}
measured:
  description: Whether it was measured in this run.
  type: bool
  returned: always
"""


ARGUMENT_SPEC: dict[str, Any] = {
    "path": {"type": "str", "required": True},
    "device": {"type": "str", "required": True},
    "max_p99_ms": {"type": "float", "required": True},
    "samples": {"type": "int", "default": 2000},
    "block_bytes": {"type": "int", "default": 8192},
    "max_seconds": {"type": "float", "default": 15.0},
    "results": {"type": "str", "default": "/var/lib/muster/disk_latency.json"},
    "force": {"type": "bool", "default": False},
}


def gate(module: AnsibleModule) -> dict[str, Any]:
    """Measure unless a good result is known. Raises FleetError, OSError."""
    given = module.params
    path, device, limit = given["path"], given["device"], given["max_p99_ms"]
    known = dl.read_results(given["results"])
    latency = known.get(device)
    if latency and not given["force"] and dl.refusal(latency, limit) is None:
        return {"changed": False, "measured": False, "latency": asdict(latency)}
    if module.check_mode:
        return {"changed": True, "measured": False}
    filesystem = dl.mount_filesystem(path, Path("/proc/self/mountinfo").read_text())
    if filesystem is None or filesystem in dl.UNFIT_FILESYSTEMS:
        found = f"a {filesystem} filesystem" if filesystem else "not a mount point"
        raise FleetError(f"{path} is {found}; mount the disk there before measuring it")
    latency = dl.measure(path, given["samples"], given["block_bytes"], given["max_seconds"])
    problem = dl.refusal(latency, limit)
    if problem:
        raise FleetError(
            f"{device} on {path} is too slow: {problem}; give a local SSD or keep other load off this one",
            latency=asdict(latency),
            measured=True,
        )
    dl.write_results(given["results"], {**known, device: latency})
    return {"changed": True, "measured": True, "latency": asdict(latency)}


def main() -> None:
    """Entry point."""
    run_module(gate, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
