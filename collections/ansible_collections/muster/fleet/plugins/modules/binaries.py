#!/usr/bin/python
"""Ansible module: install a list of binaries whose SHA-256 is known."""

from __future__ import annotations

import shutil
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
  unlike:
    description:
      - For staging, the folder of the binaries that are in use. Only those that are not right there are fetched, and
        where one cannot be, O(directory) is removed.
    type: path
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
    "unlike": {"type": "path"},
}


def install(module: AnsibleModule) -> dict[str, Any]:
    """Bring every binary that is missing or wrong. Raises FleetError, OSError."""
    given, act = module.params, not module.check_mode
    names = given["names"]
    try:
        if given["unlike"]:
            names, _ = binaries.have(given, names, given["unlike"], act=False)
        installed, permitted = binaries.have(given, names, given["directory"], act=act)
    except BaseException:
        if given["unlike"] and act:
            # The error that ended it is the one to tell, and not one of the clean-up.
            shutil.rmtree(given["directory"], ignore_errors=True)
        raise
    return {"changed": bool(installed or permitted), "installed": installed}


def main() -> None:
    """Entry point."""
    run_module(install, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
