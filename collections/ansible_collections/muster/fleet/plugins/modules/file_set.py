#!/usr/bin/python
"""Ansible module: place a set of files in one task."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.files import (
    DirectorySpec,
    FileSpec,
    apply,
    parse_mode,
)

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
options:
  files:
    description: The files.
    type: list
    elements: dict
    default: []
    suboptions:
      dest:
        description: Absolute path on the host. A symbolic link there is replaced, not followed.
        type: str
        required: true
      template:
        description: Name of a template in the role's C(templates) folder, or a path on the controller.
        type: str
      src:
        description:
          - Name of a file in the role's O(files) folder, or a path on the controller. Copied byte for byte.
        type: str
      content:
        description: The text itself.
        type: str
      content_b64:
        description: The bytes themselves, base64 encoded.
        type: str
      mode:
        description: Octal mode as a quoted string.
        type: str
        required: true
      owner:
        description: User name or number. Left as it is when not given.
        type: str
      group:
        description: Group name or number. Left as it is when not given.
        type: str
      sensitive:
        description: Keep content and the validate command's output out of diffs and errors.
        type: bool
        default: false
      validate:
        description:
          - Command that must exit 0 before anything is placed.
          - C(%s) is a copy of the new file under the same file name, in a private folder.
          - No shell is involved.
        type: str
  directories:
    description: Directories, made before the files. Missing parents get mode 0755.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Absolute path on the host.
        type: str
        required: true
      mode:
        description: Octal mode as a quoted string.
        type: str
        default: "0755"
      owner:
        description: User name or number. Left as it is when not given.
        type: str
      group:
        description: Group name or number. Left as it is when not given.
        type: str
  absent:
    description: Absolute paths that must not exist. Folders go with all that is in them.
    type: list
    elements: str
    default: []
attributes:
  diff_mode:
    support: full
    description: Shows the change of each file, but of those that are O(files[].sensitive).
extends_documentation_fragment:
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

SOURCES = ("template", "src", "content", "content_b64")

ARGUMENT_SPEC: dict[str, Any] = {
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "dest": {"type": "str", "required": True},
            "template": {"type": "str"},
            "src": {"type": "str"},
            "content": {"type": "str", "no_log": True},
            # Base64 of whole files: kept out of the host's syslog and of the result's invocation.
            "content_b64": {"type": "str", "no_log": True},
            "mode": {"type": "str", "required": True},
            "owner": {"type": "str"},
            "group": {"type": "str"},
            "sensitive": {"type": "bool", "default": False},
            "validate": {"type": "str"},
        },
        "mutually_exclusive": [SOURCES],
        "required_one_of": [SOURCES],
    },
    "directories": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "str", "required": True},
            "mode": {"type": "str", "default": "0755"},
            "owner": {"type": "str"},
            "group": {"type": "str"},
        },
    },
    "absent": {"type": "list", "elements": "str", "default": []},
}


def file_spec(item: dict) -> FileSpec:
    """The typed form of one entry of `files`. Raises FleetError."""
    if item["content_b64"] is None:
        raise FleetError(f"{item['dest']}: has no content; run the module through its action plugin")
    try:
        content = base64.b64decode(item["content_b64"], validate=True)
    except binascii.Error as error:
        raise FleetError(f"{item['dest']}: content_b64 is not base64: {error}") from error
    return FileSpec(
        dest=item["dest"],
        content=content,
        mode=parse_mode(item["mode"], item["dest"]),
        owner=item["owner"],
        group=item["group"],
        sensitive=item["sensitive"],
        validate=item["validate"],
    )


def place(module: AnsibleModule) -> dict[str, Any]:
    """Place the set. Raises FleetError, OSError."""
    params = module.params
    files = [file_spec(item) for item in params["files"]]
    directories = [
        DirectorySpec(item["path"], parse_mode(item["mode"], item["path"]), item["owner"], item["group"])
        for item in params["directories"]
    ]
    outcome = apply(files, directories, params["absent"], check=module.check_mode)
    result: dict[str, Any] = {"changed": bool(outcome.changed_files), "changed_files": list(outcome.changed_files)}
    if module._diff:
        result["diff"] = [diff.as_ansible() for diff in outcome.diffs]
    return result


def main() -> None:
    """Entry point."""
    run_module(place, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
