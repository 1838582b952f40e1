#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: what programs of etcd and Kubernetes a host runs, has and is to have."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.binaries import file_sha256
from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import ask
from ansible_collections.muster.fleet.plugins.module_utils.host.systemd_unit import active_at, booted_at, main_pid, show
from ansible_collections.muster.fleet.plugins.module_utils.kube import health as kube_health

DOCUMENTATION = r"""
module: upgrade_facts
short_description: See which versions of etcd and Kubernetes a host runs, has and is to have
version_added: "0.2.0"
description:
  - Asks the program that runs, through its process, and the one that is laid ready; no name and no list is believed.
  - Changes nothing.
options:
  programs:
    description: Names of programs that are also names of units.
    type: list
    elements: str
    required: true
  checksums:
    description: SHA-256 by name of the builds that are to run.
    type: dict
    required: true
  directory:
    description: Folder of the installed programs.
    type: path
    default: /usr/local/bin
  ready:
    description: Folder in which those programs lie ready that are to be installed.
    type: path
    required: true
  etcd:
    description: Client URL of the member of etcd on this host, where there is one.
    type: str
    default: ""
  server:
    description: URL of the API server on this host with the path that says whether it is ready, where there is one.
    type: str
    default: ""
  server_ca:
    description: CA of the API server.
    type: path
    default: /etc/kubernetes/pki/ca.crt
  expect:
    description: Those of O(programs) whose file and process have to be the build of the checksum; else the host fails.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - muster.fleet.etcd_client
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Read the running versions
  muster.fleet.upgrade_facts:
    programs: [kubelet, kube-proxy]
    checksums: "{{ kube_binaries_checksums }}"
    ready: /var/lib/muster/upgrade
  register: upgrade_found
"""

RETURN = r"""
programs:
  description: >-
    By name the version that C(running), the version that is C(wanted), each empty where there is none or it does not
    tell, and whether the file and the process, where one runs, are C(current), the build of the checksum.
  type: dict
  returned: success
  sample: {etcd: {running: 3.6.16, wanted: 3.7.3, current: false}}
sick:
  description: Why the member of etcd or the API server does not serve; empty where it does.
  type: str
  returned: success
served:
  description: >-
    Whether the API server has answered since its program was installed, and so may have stored what an older one cannot
    read. False only where systemd says that it has not.
  type: bool
  returned: success
leads:
  description: Whether the member of etcd is its cluster's leader.
  type: bool
  returned: success
room:
  description: What is too small for the programs that lie ready, in words; empty where there is room.
  type: str
  returned: success
closed:
  description: Whether an upgrade has closed admission on this host of an API server, and none has opened it since.
  type: bool
  returned: success
"""

ADMITTER = "muster-admitter.service"
SERVER = "kube-apiserver"

ARGUMENT_SPEC: dict[str, Any] = {
    "programs": {"type": "list", "elements": "str", "required": True},
    "checksums": {"type": "dict", "required": True},
    "directory": {"type": "path", "default": "/usr/local/bin"},
    "ready": {"type": "path", "required": True},
    "etcd": {"type": "str", "default": ""},
    "server": {"type": "str", "default": ""},
    "server_ca": {"type": "path", "default": "/etc/kubernetes/pki/ca.crt"},
    "expect": {"type": "list", "elements": "str", "default": []},
    **etcd_api.CREDENTIAL_OPTIONS,
}


def program(name: str, sha256: str, installed: Path, ready: Path, process: Path | None) -> dict[str, Any]:
    """What is known of one program. The process' own file is asked, also when another lies in its place by now."""
    ran = ask(process) if process else None
    right = file_sha256(str(installed / name)) == sha256
    wanted = ask((installed if right else ready) / name)
    current = right and (process is None or file_sha256(str(process)) == sha256)
    return {"running": str(ran or ""), "wanted": str(wanted or ""), "current": current}


def room(checksums: dict[str, str], installed: Path, ready: Path, free_bytes: int) -> str:
    """What is too small for what lies ready and is not installed; empty where there is room.

    All of it counts: what is replaced takes its place until its process ends.
    """
    names = [path.name for path in ready.iterdir() if path.name in checksums] if ready.is_dir() else []
    lacking = [name for name in names if file_sha256(str(installed / name)) != str(checksums[name]).lower()]
    needed = sum((ready / name).stat().st_size for name in lacking)
    if needed <= free_bytes:
        return ""
    return f"has {free_bytes >> 20} MiB free in {installed}, and {', '.join(sorted(lacking))} need {needed >> 20}"


def _process(name: str) -> Path | None:
    pid = main_pid(f"{name}.service")
    return Path(f"/proc/{pid}/exe") if pid else None


def _closed() -> bool:
    """The admitter is enabled wherever it is installed, but between the two: so a reboot does not start it."""
    admitter = show(ADMITTER)
    return admitter.loaded and not admitter.enabled


def _served(installed: Path) -> bool:
    """A server tells systemd that it is active when it listens (Type=notify). Where that is not known of the program
    that runs, since it is an older one or was installed before the boot, it counts as served."""
    unit = f"{SERVER}.service"
    try:
        since = installed.stat().st_ctime
    except FileNotFoundError:
        return False
    began, active = show(unit).started_at, active_at(unit)
    if began is not None and began < since:
        return True
    return active >= since if active is not None else booted_at() >= since


def _sick(given: dict[str, Any], member: etcd_api.Health | None) -> str:
    if member:
        return member.reason
    if given["server"]:
        url, _, path = given["server"].partition("/readyz")
        server = kube_health.Server(url, given["server_ca"])
        try:
            failure = kube_health.wait(server, [kube_health.Check(f"/readyz{path}")], 0.0)
        except FleetError as error:
            return str(error)
        return failure.reason if failure else ""
    return ""


def observe(module: AnsibleModule) -> dict[str, Any]:
    """Ask each program. Raises FleetError."""
    given = module.params
    places = Path(given["directory"]), Path(given["ready"])
    credentials = etcd_api.Credentials(given["ca"], given["cert"], given["key"])
    member = etcd_api.probe(given["etcd"], credentials, []) if given["etcd"] else None
    found = {
        name: program(name, str(given["checksums"].get(name, "")).lower(), *places, _process(name))
        for name in given["programs"]
    }
    for name in given["expect"]:
        if not found[name]["current"]:
            raise FleetError(
                f"{name} {found[name]['running'] or 'of no version'} still runs, and not {found[name]['wanted']}: see "
                f"`systemctl status {name}`, restart it, then run again"
            )
    return {
        "changed": False,
        "programs": found,
        "sick": _sick(given, member),
        "served": not given["server"] or _served(places[0] / SERVER),
        "leads": member is not None and member.leads,
        "room": room(given["checksums"], *places, shutil.disk_usage(places[0]).free),
        "closed": bool(given["server"]) and _closed(),
    }


def main() -> None:
    """Entry point."""
    run_module(observe, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
