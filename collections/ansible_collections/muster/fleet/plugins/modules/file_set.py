#!/usr/bin/python
"""Ansible module: place a set of files in one task."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.file_options import FILE_OPTIONS, place, placed

DOCUMENTATION = r"""
module: file_set
short_description: Place a set of files, directories and removals in one task
version_added: "0.1.0"
description:
  - Renders templates and reads sources on the controller, then makes one call on the host that compares
    content, mode and ownership, validates every new content, and only then places each file by rename.
  - When one C(validate) command refuses, no file of the set is placed.
  - In check mode nothing is written and C(validate) commands do not run, because their program may not be
    installed yet.
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
- name: Configure etcd
  muster.fleet.file_set:
    directories:
      - {path: /etc/etcd/pki, mode: "0750", owner: root, group: etcd}
    files:
      - {dest: /etc/etcd/etcd.yaml, template: etcd.yaml.j2, mode: "0640", owner: root, group: etcd}
      - dest: /etc/etcd/pki/member.key
        src: "{{ pki_dir }}/etcd/member.key"
        mode: "0600"
        owner: etcd
        sensitive: true
      - {dest: /etc/haproxy/haproxy.cfg, template: haproxy.cfg.j2, mode: "0644", validate: haproxy -c -f %s}
    absent:
      - /etc/etcd/etcd.conf
  notify: Restart etcd
"""

RETURN = r"""
changed_files:
  description: The paths that changed, or would change in check mode.
  returned: success
  type: list
  elements: str
"""

ARGUMENT_SPEC = FILE_OPTIONS


def bring(module: AnsibleModule) -> dict[str, Any]:
    """Place the set. Raises FleetError, OSError."""
    return placed(module, place(module))


def main() -> None:
    """Entry point."""
    run_module(bring, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
