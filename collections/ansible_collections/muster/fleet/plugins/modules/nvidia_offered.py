#!/usr/bin/python
"""Ansible module: whether the package sources of a host have what its NVIDIA stack would install."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import beside, fabric, offered, parts

DOCUMENTATION = r"""
module: nvidia_offered
short_description: Whether the package sources have what the NVIDIA stack would install
version_added: "0.2.0"
description:
  - Reads the host's package sources anew, and NVIDIA's repository as the inventory has it, into a folder of its own.
    The lists of apt stay as they are, and nothing is installed.
  - Asks for the driver's packages as O(driver) names them, and for those of the fabric manager, DCGM and the container
    toolkit that are not there as asked. Without any of them it asks nobody.
options:
  driver:
    description: The driver's packages that would be installed, with their versions, as M(muster.fleet.nvidia_driver)
      gives them in RV(muster.fleet.nvidia_driver#module:to_install).
    type: dict
    default: {}
  source:
    description: Where the driver comes from.
    type: str
    choices: [image, nvidia, debian, ubuntu]
    required: true
  driver_version:
    description: The driver that is asked for, which the fabric manager follows.
    type: str
    default: ""
  kernel_root:
    description: Where sys of the kernel is. For labs.
    type: path
    default: /
extends_documentation_fragment:
  - muster.fleet.nvidia_beside
  - muster.fleet.nvidia_repository
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Check that a package source has the driver
  muster.fleet.nvidia_offered:
    driver: {nvidia-driver-cuda: 580.105.08}
    source: nvidia
    driver_version: 580.105.08
    repository_url: "{{ fleet_nvidia_repository_url }}"
    repository_key: "{{ fleet_nvidia_repository_key }}"
    repository_fingerprint: "{{ fleet_nvidia_repository_fingerprint }}"
"""

RETURN = r"""
lacks:
  description: Why not all of it can be had, in one sentence; empty where it can.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "driver": {"type": "dict", "default": {}},
    "source": {"type": "str", "choices": ["image", "nvidia", "debian", "ubuntu"], "required": True},
    "driver_version": {"type": "str", "default": ""},
    **beside.OPTIONS,
    **parts.REPOSITORY_OPTIONS,
    "kernel_root": {"type": "path", "default": "/"},
}


def observe(module: AnsibleModule) -> dict[str, Any]:
    """Ask the sources. Raises OSError."""
    given = module.params
    asked = beside.Parts(**{name: given[name] for name in beside.Parts.__dataclass_fields__})
    platform = fabric.platform(Path(given["kernel_root"]))
    wanted = beside.packages(given["source"], given["driver_version"], asked, platform)
    others = {name: wanted[name] for name in beside.missing(wanted, run_command)}
    repository = parts.repository(given)
    lacks = ""
    if given["driver"] or others:
        lacks = offered.lacks(given["driver"], others, repository, of_nvidia=given["source"] == "nvidia")
    return {"changed": False, "lacks": lacks}


def main() -> None:
    """Entry point."""
    run_module(observe, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
