#!/usr/bin/python
"""Ansible module: what a host says of itself before it is touched."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import block_device
from ansible_collections.muster.fleet.plugins.module_utils.host.binaries import mirror_fault
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import run_command
from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import other_builds
from ansible_collections.muster.fleet.plugins.module_utils.host.wheel_venv import is_complete
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import beside, fabric
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import preflight as stack
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import gather as gather_gpu_facts
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import Models
from ansible_collections.muster.fleet.plugins.module_utils.preflight.facts import gather, os_release

DOCUMENTATION = r"""
module: preflight
short_description: Read a host's facts before it is touched
version_added: "0.1.0"
description:
  - Reads system, identity, clock, size, ports and, where asked, the disk and the NVIDIA stack of a host, and asks the
    mirror for one header. Changes nothing.
  - The action plugin adds the controller's clock before and after, so that a slow link is no clock skew.
  - The facts are judged by M(muster.fleet.preflight_report), for all hosts at once.
options:
  ports:
    description: TCP ports that the host's roles need.
    type: list
    elements: dict
    default: []
    suboptions:
      port:
        description: The port.
        type: int
        required: true
      units:
        description: systemd units that may hold it already, on a second run.
        type: list
        elements: str
        default: []
  is_node:
    description: Whether the host runs a kubelet.
    type: bool
    default: false
  mirror:
    description: What the host will fetch. One HEAD request for the first name says whether it can.
    type: dict
    suboptions:
      url:
        description: Where the files are, without the name.
        type: str
        required: true
      names:
        description: Names of the files; none asks nothing.
        type: list
        elements: str
        required: true
      checksums:
        description: SHA-256 by name. A host that has all files already needs no mirror.
        type: dict
        required: true
      directory:
        description: Where the files are installed.
        type: path
        required: true
      timeout_s:
        description: Longest wait for the mirror, in seconds.
        type: float
        default: 5
  archive:
    description:
      - The archive of gpu-burnin that the host will fetch from a mirror. One HEAD request says whether it can. A host
        that has this build, or the archive, needs no mirror.
    type: dict
    version_added: "0.2.0"
    suboptions:
      url:
        description: Where the archive is, without its name.
        type: str
        required: true
      name:
        description: Its name.
        type: str
        required: true
      sha256:
        description: Its SHA-256.
        type: str
        required: true
      build:
        description: Where it would be installed. The archive itself would lie beside that folder's parent.
        type: path
        required: true
      timeout_s:
        description: Longest wait for the mirror, in seconds.
        type: float
        default: 5
  settled:
    description:
      - Programs of O(mirror) that a running fleet changes with C(playbooks/upgrade.yml) alone. One that has a unit here
        and is not the one of its checksum is told with its version.
    type: list
    elements: str
    default: []
  kept:
    description:
      - Programs of O(mirror) that a running node keeps as they are until C(playbooks/upgrade.yml) changes them. One
        that has a unit here and is not the one of its checksum is told with its version, and in the fact
        C(preflight_kept).
    type: list
    elements: str
    default: []
  disk:
    description: The disk that the host is going to give away, judged as M(muster.fleet.local_ssd) does.
    type: dict
    suboptions:
      device:
        description: The disk, as /dev/disk/by-id/NAME.
        type: str
        required: true
      mount_point:
        description: Where it is going to be mounted.
        type: str
        required: true
      filesystem:
        description: Type of filesystem.
        type: str
        choices: [ext4, xfs]
        default: ext4
      label:
        description: Label of the filesystem.
        type: str
        default: muster-ssd
      min_bytes:
        description: Smallest size accepted, in bytes.
        type: int
        default: 0
      wipe:
        description: Whether what is on it may be destroyed.
        type: bool
        default: false
      allow_loop:
        description: Accept a loop device. For labs.
        type: bool
        default: false
  limits:
    description: What is asked of the host; handed to M(muster.fleet.preflight_report) with the facts.
    type: dict
    required: true
    suboptions:
      supported_os:
        description: Systems as C(ID VERSION_ID) of os-release.
        type: list
        elements: str
        required: true
      max_skew_s:
        description: Seconds by which the clock may differ from the controller's.
        type: float
        required: true
      min_memory_bytes:
        description: Memory at least.
        type: int
        required: true
      min_disk_free_bytes:
        description: Free space on / at least.
        type: int
        required: true
      check_product_uuid:
        description: Whether the product UUID must be the host's own.
        type: bool
        default: true
      allow_swap:
        description: Whether a node may have swap.
        type: bool
        default: false
      allow_cgroup_v1:
        description: Whether a node may have cgroup v1.
        type: bool
        default: false
extends_documentation_fragment:
  - muster.fleet.nvidia_beside.nvidia
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Run the preflight checks on the host
  muster.fleet.preflight:
    ports:
      - {port: 2379, units: [etcd.service]}
    limits:
      supported_os: [debian 12, ubuntu 24.04]
      max_skew_s: 2
      min_memory_bytes: 2147483648
      min_disk_free_bytes: 10737418240
  register: __preflight_facts
"""

RETURN = r"""
facts:
  description: The facts, sizes in bytes, times in seconds since 1970.
  returned: success
  type: dict
limits:
  description: The limits as given, defaults filled in.
  returned: success
  type: dict
is_node:
  description: As given.
  returned: success
  type: bool
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "ports": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "port": {"type": "int", "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
        },
    },
    "is_node": {"type": "bool", "default": False},
    "mirror": {
        "type": "dict",
        "options": {
            "url": {"type": "str", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
            "checksums": {"type": "dict", "required": True},
            "directory": {"type": "path", "required": True},
            "timeout_s": {"type": "float", "default": 5.0},
        },
    },
    "archive": {
        "type": "dict",
        "options": {
            "url": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "sha256": {"type": "str", "required": True},
            "build": {"type": "path", "required": True},
            "timeout_s": {"type": "float", "default": 5.0},
        },
    },
    "settled": {"type": "list", "elements": "str", "default": []},
    "kept": {"type": "list", "elements": "str", "default": []},
    "disk": {"type": "dict", "options": {"device": {"type": "str", "required": True}, **block_device.WANTED_OPTIONS}},
    "nvidia": {
        "type": "dict",
        "options": {
            "source": {"type": "str", "choices": ["image", "nvidia", "debian", "ubuntu"], "required": True},
            "driver_version": {"type": "str", "default": ""},
            "modules": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
            "cuda": {"type": "str", "default": "none"},
            "repository_url": {"type": "str", "default": ""},
            **beside.OPTIONS,
            "min_free_bytes": {"type": "int", "default": 0},
            "models": {"type": "dict", "required": True},
            "kernel_root": {"type": "path", "default": "/"},
            "timeout_s": {"type": "float", "default": 5.0},
            "nvml_timeout_s": {"type": "float", "default": 60.0},
        },
    },
    "limits": {
        "type": "dict",
        "required": True,
        "options": {
            "supported_os": {"type": "list", "elements": "str", "required": True},
            "max_skew_s": {"type": "float", "required": True},
            "min_memory_bytes": {"type": "int", "required": True},
            "min_disk_free_bytes": {"type": "int", "required": True},
            "check_product_uuid": {"type": "bool", "default": True},
            "allow_swap": {"type": "bool", "default": False},
            "allow_cgroup_v1": {"type": "bool", "default": False},
        },
    },
}


def disk_faults(disk: Mapping[str, Any] | None) -> list[str]:
    """What speaks against the disk; nothing without a disk, and not for a login that may not look."""
    if disk is None or os.geteuid() != 0:
        return []
    wanted = {name: disk[name] for name in block_device.WANTED_OPTIONS}
    return block_device.faults(disk["device"], block_device.Wanted(**wanted))


def nvidia_problems(nvidia: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What speaks against the node's NVIDIA stack, each as a Finding; nothing for a host without one.

    Raises OSError.
    """
    if nvidia is None:
        return []
    root, kernel_root, models = Path("/"), Path(nvidia["kernel_root"]), Models(nvidia["models"])
    parts = beside.Parts(**{name: nvidia[name] for name in beside.Parts.__dataclass_fields__})
    facts = gather_gpu_facts(root, run_command, kernel_root, nvidia["nvml_timeout_s"])
    # Of a bus that cannot be read others tell.
    connected = fabric.platform(kernel_root) if facts.pci is not None else fabric.Platform(fabric.NONE, "")
    asked = stack.Asked(
        source=nvidia["source"],
        driver_version=nvidia["driver_version"],
        cuda=nvidia["cuda"],
        repository_url=nvidia["repository_url"],
        min_free_bytes=nvidia["min_free_bytes"],
        modules=nvidia["modules"],
        beside=beside.packages(nvidia["source"], nvidia["driver_version"], parts, connected),
    )
    offers = stack.observe(root, run_command, asked, facts, models, nvidia["timeout_s"])
    system = stack.System(os_release(root)["id"], platform.machine())
    found = stack.problems(asked, facts, models, offers, system)
    return [asdict(one) for one in found]


def archive_fault(url: str, name: str, sha256: str, build: str, timeout_s: float) -> str:
    """Why the mirror cannot give this host the archive that it lacks; empty when it can, or none is needed."""
    if is_complete(Path(build)):
        return ""
    return mirror_fault(url, [name], {name: sha256}, str(Path(build).parents[1]), timeout_s)


def observe(module: AnsibleModule) -> dict[str, Any]:
    """Gather the facts. Raises OSError."""
    facts = gather({entry["port"]: entry["units"] for entry in module.params["ports"]})
    facts["mirror_fault"] = mirror_fault(**module.params["mirror"]) if module.params["mirror"] else ""
    facts["archive_fault"] = archive_fault(**module.params["archive"]) if module.params["archive"] else ""
    mirror = module.params["mirror"] or {"checksums": {}, "directory": "/"}
    place = mirror["checksums"], Path(mirror["directory"])
    facts["other_builds"] = [str(build) for build in other_builds(module.params["settled"], *place)]
    kept = other_builds(module.params["kept"], *place)
    facts["kept_builds"] = [str(build) for build in kept]
    facts["disk_faults"] = disk_faults(module.params["disk"])
    facts["nvidia_problems"] = nvidia_problems(module.params["nvidia"])
    # Those that every play of this run reads.
    shared = {
        "preflight_kept": {build.name: build.sha256 for build in kept},
        "preflight_node_dns": Path("/etc/node-dns").exists(),
    }
    asked = {name: module.params[name] for name in ("limits", "is_node")}
    return {"changed": False, "facts": facts, "ansible_facts": shared, **asked}


def main() -> None:
    """Entry point."""
    run_module(observe, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
