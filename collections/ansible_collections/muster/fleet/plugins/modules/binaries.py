#!/usr/bin/python
"""Ansible module: install a list of binaries whose SHA-256 is known."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import binaries

DOCUMENTATION = r"""
module: binaries
short_description: Install binaries from a mirror, each with its SHA-256
version_added: "0.1.0"
description:
  - Downloads every file that is missing or differs from its checksum, compares it, and renames it into place. What is
    there already and right is not fetched.
  - All checksums are looked at before the first download.
options:
  names:
    description: Names of the binaries.
    type: list
    elements: str
    required: true
  directory:
    description: Where they go.
    type: path
    default: /usr/local/bin
extends_documentation_fragment:
  - muster.fleet.mirror
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Install etcd
  muster.fleet.binaries:
    names: [etcd, etcdctl]
    url: https://mirror.example.com/etcd/v3.6.16
    checksums: "{{ kube_binaries_checksums }}"
"""

RETURN = r"""
installed:
  description: Binaries that were fetched (or would be, in check mode).
  type: list
  elements: str
  returned: always
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "names": {"type": "list", "elements": "str", "required": True},
    **binaries.MIRROR_OPTIONS,
    "directory": {"type": "path", "default": "/usr/local/bin"},
}


def install(module: AnsibleModule) -> dict[str, Any]:
    """Bring every binary that is missing or wrong. Raises FleetError, OSError."""
    given = module.params
    installed, permitted = binaries.have(given, given["names"], given["directory"], act=not module.check_mode)
    return {"changed": bool(installed or permitted), "installed": installed}


def main() -> None:
    """Entry point."""
    run_module(install, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
