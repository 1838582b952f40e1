#!/usr/bin/python
"""Ansible module: have Debian packages installed, at the cost of one dpkg-query when they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.apt_get import (
    ENVIRONMENT,
    LOCK_TIMEOUT_S,
    apt_errors,
    apt_get,
)

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

QUERY = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\\n"]


def missing(names: Sequence[str], query_output: str) -> list[str]:
    """Those of `names` that the output of QUERY does not list as installed, in order."""
    installed = {
        package
        for status, _, package in (line.partition(" ") for line in query_output.splitlines())
        if status == "installed"
    }
    return [name for name in dict.fromkeys(names) if name not in installed]


def install(module: AnsibleModule) -> dict[str, Any]:
    """Install what dpkg does not have. Raises FleetError."""
    names: list[str] = module.params["name"]
    # Exit code 1: at least one name is unknown to dpkg, which is an answer.
    code, out, err = module.run_command([*QUERY, *names]) if names else (0, "", "")
    if code not in (0, 1):
        raise FleetError(f"dpkg-query failed: {err.strip()}; run `dpkg --audit` there")
    wanted = missing(names, out)
    if wanted and not module.check_mode:
        apt = apt_get(module.params["lock_timeout_s"])
        code, out, err = module.run_command([*apt, "update"], environ_update=ENVIRONMENT)
        if code != 0:
            raise FleetError(
                f"package lists cannot be updated: {apt_errors(out + err)}; see /etc/apt/sources.list.d and the network"
            )
        code, out, err = module.run_command([*apt, "install", *wanted], environ_update=ENVIRONMENT)
        if code != 0:
            raise FleetError(
                f"cannot install {', '.join(wanted)}: {apt_errors(out + err)}; "
                "see /etc/apt/sources.list.d and the package names"
            )
    return {"changed": bool(wanted), "installed": wanted}


def main() -> None:
    """Entry point."""
    run_module(install, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
