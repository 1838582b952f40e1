"""Options of the modules that place files, and the files, directories and removals that they give."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.files import (
    DirectorySpec,
    FileSpec,
    Outcome,
    apply,
    parse_mode,
)

SOURCES = ("template", "src", "content", "content_b64")
FILE_OPTIONS: dict[str, Any] = {
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


def place(module: AnsibleModule) -> Outcome:
    """Place the set of the module's parameters; in check mode only compare it. Raises FleetError, OSError."""
    params = module.params
    files = [_file(item) for item in params["files"]]
    directories = [
        DirectorySpec(item["path"], parse_mode(item["mode"], item["path"]), item["owner"], item["group"])
        for item in params["directories"]
    ]
    return apply(files, directories, params["absent"], check=module.check_mode)


def placed(module: AnsibleModule, outcome: Outcome) -> dict[str, Any]:
    """What a task returns of it."""
    result: dict[str, Any] = {"changed": bool(outcome.changed_files), "changed_files": list(outcome.changed_files)}
    if module._diff:
        result["diff"] = [diff.as_ansible() for diff in outcome.diffs]
    return result


def _file(item: Mapping[str, Any]) -> FileSpec:
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
