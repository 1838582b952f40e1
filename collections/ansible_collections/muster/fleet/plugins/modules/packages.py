#!/usr/bin/python
"""Ansible module: have Debian packages installed, at the cost of one dpkg-query when they are."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.apt_get import LOCK_TIMEOUT_S
from ansible_collections.muster.fleet.plugins.module_utils.host.packages import install

DOCUMENTATION = r"""
module: packages
short_description: Have Debian packages installed
version_added: "0.1.0"
description:
  - Asks dpkg, which takes 10 ms; only when something is missing are the package lists updated and apt-get
    called. ansible.builtin.apt opens the whole package cache each time (about 1 s of processor time).
  - Installs without recommended packages and keeps configuration files that were changed.
options:
  name:
    description: Package names.
    type: list
    elements: str
    required: true
  lock_timeout_s:
    description: How long to wait for another apt-get to let go of its lock, in seconds.
    type: int
    default: 300
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Install containerd
  muster.fleet.packages:
    name: [containerd, runc]
"""

RETURN = r"""
installed:
  description: The packages that were (in check mode would be) installed.
  returned: success
  type: list
  elements: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "list", "elements": "str", "required": True},
    "lock_timeout_s": {"type": "int", "default": LOCK_TIMEOUT_S},
}


def bring(module: AnsibleModule) -> dict[str, Any]:
    """Install what dpkg does not have. Raises FleetError."""
    installed = install(module, module.params["name"], module.params["lock_timeout_s"])
    return {"changed": bool(installed), "installed": installed}


def main() -> None:
    """Entry point."""
    run_module(bring, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
