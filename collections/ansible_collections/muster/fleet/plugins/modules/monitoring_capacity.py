#!/usr/bin/python
"""Ansible module: whether a host can be the monitoring of a fleet, before it is."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.preflight import monitoring_size as size
from ansible_collections.muster.fleet.plugins.module_utils.preflight.facts import memory_bytes

DOCUMENTATION = r"""
module: monitoring_capacity
short_description: See that a host's disk and memory suffice for Prometheus
version_added: "0.2.0"
description:
  - Computes what the planned fleet takes and compares it with the host. Changes nothing.
options:
  series:
    description: What is kept of each job, C(files/series.yaml) of the role C(fleet_monitoring).
    type: dict
    required: true
  targets:
    description: How many targets each job will have.
    type: dict
    required: true
  interval_s:
    description: Seconds between two readings of a target.
    type: float
    required: true
  retention_days:
    description: Days that are kept.
    type: float
    required: true
  disk_gib:
    description: Room that Prometheus may take; 0 is what the days need.
    type: float
    default: 0
  allow_little_memory:
    description: Warn, and do not fail, where the host has too little memory.
    type: bool
    default: false
  folder:
    description: Folder of Prometheus' data.
    type: path
    default: /var/lib/prometheus
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Check that disk and memory suffice
  muster.fleet.monitoring_capacity:
    series: "{{ lookup('ansible.builtin.file', 'series.yaml') | from_yaml }}"
    targets: {node: 260, gpu: 256}
    interval_s: 30
    retention_days: 30
"""

RETURN = r"""
line:
  description: The calculation in one line.
  type: str
  returned: success
retention_mib:
  description: What Prometheus may keep at most, in MiB.
  type: int
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "series": {"type": "dict", "required": True},
    "targets": {"type": "dict", "required": True},
    "interval_s": {"type": "float", "required": True},
    "retention_days": {"type": "float", "required": True},
    "disk_gib": {"type": "float", "default": 0},
    "allow_little_memory": {"type": "bool", "default": False},
    "folder": {"type": "path", "default": "/var/lib/prometheus"},
}


def room_bytes(folder: Path) -> int:
    """What Prometheus may have of the folder's file system: what is free, and what it has there already."""
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    disk = os.statvfs(there)
    used = 0
    for place, _, names in os.walk(folder):
        for name in names:
            # Prometheus cuts its log and its blocks meanwhile.
            with contextlib.suppress(FileNotFoundError):
                used += (Path(place) / name).lstat().st_blocks * 512
    return disk.f_bavail * disk.f_frsize + used


def judge(given: dict[str, Any], room: int, memory: int) -> dict[str, Any]:
    """The result of the task: line, retention_mib, warnings. Raises FleetError for a host that is too small."""
    if min(given["interval_s"], given["retention_days"]) <= 0 or given["disk_gib"] < 0:
        raise FleetError("interval_s and retention_days must be above 0 and disk_gib not below; correct the variables")
    targets = {job: int(count) for job, count in given["targets"].items()}
    series, interval_s, days = size.fleet_series(given["series"], targets), given["interval_s"], given["retention_days"]
    if given["disk_gib"]:
        may_keep = given["disk_gib"] * size.GIB * size.SHARE_OF_DISK
        days = min(days, size.days_that_fit(series, interval_s, may_keep))
    wanted = size.need(series, interval_s, days)
    short = [problem for problem in (size.disk_problem(wanted, room, given["folder"]),) if problem]
    if days < min(1, given["retention_days"]):
        short.append(
            f"fleet_monitoring_disk_gib {given['disk_gib']:g} keeps {days:.1f} days of {series:,} series; "
            f"one day needs {size.need(series, interval_s, 1).disk_bytes / size.GIB:,.1f} GiB"
        )
    memory_problem = size.memory_problem(wanted, memory)
    warnings = [memory_problem] if memory_problem and given["allow_little_memory"] else []
    if memory_problem and not warnings:
        short.append(memory_problem)
    if short:
        raise FleetError(". ".join(short))
    # What the fleet is computed to take is no limit for what it may take where a site said so.
    kept = int(given["disk_gib"] * size.GIB * size.SHARE_OF_DISK) if given["disk_gib"] else wanted.kept_bytes
    return {
        "changed": False,
        "line": size.line(wanted, days, room, memory),
        "retention_mib": max(1, kept >> 20),
        "warnings": warnings,
    }


def main() -> None:
    """Run the module."""

    def work(module: AnsibleModule) -> dict[str, Any]:
        return judge(module.params, room_bytes(Path(module.params["folder"])), memory_bytes(Path("/")))

    run_module(work, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
