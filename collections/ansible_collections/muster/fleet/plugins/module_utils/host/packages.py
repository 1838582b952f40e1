"""Debian packages that are to be installed, at the cost of one dpkg-query when they are."""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.apt_get import ENVIRONMENT, apt_errors, apt_get

QUERY = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\\n"]


def missing(names: Sequence[str], query_output: str) -> list[str]:
    """Those of `names` that the output of QUERY does not list as installed, in order."""
    installed = {
        package
        for status, _, package in (line.partition(" ") for line in query_output.splitlines())
        if status == "installed"
    }
    return [name for name in dict.fromkeys(names) if name not in installed]


def install(module: AnsibleModule, names: Sequence[str], lock_timeout_s: int) -> list[str]:
    """Install what dpkg does not have, and give it; in check mode only give it. Raises FleetError."""
    # Exit code 1: at least one name is unknown to dpkg, which is an answer.
    code, out, err = module.run_command([*QUERY, *names]) if names else (0, "", "")
    if code not in (0, 1):
        raise FleetError(f"dpkg-query failed: {err.strip()}; run `dpkg --audit` there")
    wanted = missing(names, out)
    if not wanted or module.check_mode:
        return wanted
    apt = apt_get(lock_timeout_s)
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
    return wanted
