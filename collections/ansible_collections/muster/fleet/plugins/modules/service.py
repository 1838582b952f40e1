#!/usr/bin/python
"""Ansible module: packages, files and systemd units of a service in one task."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.apt_get import LOCK_TIMEOUT_S
from ansible_collections.muster.fleet.plugins.module_utils.host.file_options import FILE_OPTIONS, place, placed
from ansible_collections.muster.fleet.plugins.module_utils.host.packages import install
from ansible_collections.muster.fleet.plugins.module_utils.host.unit_options import UNIT_OPTIONS, keep_running

DOCUMENTATION = r"""
module: service
short_description: Keep packages, files and systemd units of a service as asked in one task
version_added: "0.2.0"
description:
  - Does what M(muster.fleet.packages), M(muster.fleet.file_set) and M(muster.fleet.unit) do, in this order, in one call
    on the host. Each call costs the controller a worker, a connection and the start of a Python on the host, and a
    fleet pays that for each node.
  - What one step refuses, those after it do not see. What an earlier one did stays; the next run goes on from there,
    also with a restart that is owed.
options:
  packages:
    description: Names of Debian packages that must be installed.
    type: list
    elements: str
    default: []
  files_first:
    description: Place the files before the packages, whose services would otherwise start as the distribution has them.
    type: bool
    default: false
  units:
    description: The units, one after the other, once packages and files are there.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the unit, with its ending.
        type: str
        required: true
      enabled:
        description: Start it at boot.
        type: bool
        default: true
      start:
        description: Start it when it does not run. False leaves that to the next boot, or to who waits for its end.
        type: bool
        default: true
      restart_after:
        description: Files, or folders of files, that the unit reads at start. A newer one makes a restart necessary.
        type: list
        elements: path
        default: []
      restart:
        description: Restart when stale. False leaves that to another task.
        type: bool
        default: true
      restart_because:
        description:
          - A reason to restart a running unit that no file shows, as a sentence without a full stop. Empty when there
            is none. The task then warns that it restarted the unit, or in check mode that it would, and why.
        type: str
        default: ""
      wait:
        description: Wait until systemd says that it is up.
        type: bool
        default: true
attributes:
  diff_mode:
    support: full
    description: Shows the change of each file, but of those that are O(files[].sensitive).
extends_documentation_fragment:
  - muster.fleet.files
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Run chrony
  muster.fleet.service:
    packages: [chrony]
    files:
      - {dest: /etc/chrony/chrony.conf, template: chrony.conf.j2, mode: "0644"}
    units:
      - {name: chrony.service, restart_after: [/etc/chrony/chrony.conf]}
"""

RETURN = r"""
installed:
  description: The packages that were (in check mode would be) installed.
  returned: success
  type: list
  elements: str
changed_files:
  description: The paths that changed, or would change in check mode.
  returned: success
  type: list
  elements: str
actions:
  description: By unit what was done (or would be, in check mode), of daemon-reload, enable, start, restart.
  returned: success
  type: dict
log:
  description: The last lines of the journal of the unit that failed.
  returned: when a unit failed
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    **FILE_OPTIONS,
    "packages": {"type": "list", "elements": "str", "default": []},
    "files_first": {"type": "bool", "default": False},
    "units": {"type": "list", "elements": "dict", "default": [], "options": UNIT_OPTIONS},
}


def bring_up(module: AnsibleModule) -> dict[str, Any]:
    """Packages, files, units. Raises FleetError with the last log lines of a unit, OSError."""
    params = module.params
    if params["files_first"]:
        outcome = place(module)
        installed = install(module, params["packages"], LOCK_TIMEOUT_S)
    else:
        installed = install(module, params["packages"], LOCK_TIMEOUT_S)
        outcome = place(module)
    actions = {unit["name"]: keep_running(module, unit).actions for unit in params["units"]}
    result = placed(module, outcome)
    changed = bool(installed) or result["changed"] or any(actions.values())
    return {**result, "changed": changed, "installed": installed, "actions": actions}


def main() -> None:
    """Entry point."""
    run_module(bring_up, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
