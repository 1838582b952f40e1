#!/usr/bin/python
"""Ansible module: a wheelhouse archive becomes the virtual environment in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.wheel_venv import (
    fetch,
    install,
    is_complete,
    prune,
    set_link,
    wrong_links,
)

DOCUMENTATION = r"""
module: wheel_venv
short_description: Install a wheelhouse archive as a versioned virtual environment
version_added: "0.1.0"
description:
  - Makes C(root/build) from a tar archive of wheels (pip among them, and a C(requirements.txt)), points
    C(root/current) and further links to it by rename, and keeps the build before it.
  - Needs neither network nor pip nor python3-venv on the host.
  - When the build is not there and neither is the archive, fetches it from O(url), compares its SHA-256 and renames it
    into place. Without O(url) it does nothing but say C(archive_needed). So a large archive travels only to hosts that
    lack its build.
options:
  root:
    description: Folder of the builds.
    type: path
    required: true
  build:
    description: Name of the build, one for each content.
    type: str
    required: true
  archive:
    description: The archive on the host; removed once it is installed.
    type: path
    required: true
  sha256:
    description: SHA-256 of the archive, in hex.
    type: str
    required: true
  url:
    description: Folder of a mirror that has the archive, under its name. http, https or file (a folder on the host).
    type: str
    default: ""
    version_added: "0.2.0"
  timeout_s:
    description: Give up when the mirror is silent for so long, in seconds.
    type: float
    default: 30
    version_added: "0.2.0"
  links:
    description: Symbolic links to make, path to target.
    type: dict
    default: {}
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Install gpu-burnin
  muster.fleet.wheel_venv:
    root: /opt/gpu-burnin
    build: 0123456789abcdef
    archive: /opt/gpu-burnin-0123456789abcdef.tar
    sha256: "{{ archive_sha256 }}"
    url: http://mirror.example.com/muster
    links:
      /usr/local/bin/gpu-burnin: /opt/gpu-burnin/current/bin/gpu-burnin
"""

RETURN = r"""
archive_needed:
  description: The build is missing, so is the archive, and there is no O(url); copy it and call again.
  returned: success
  type: bool
"""


ARGUMENT_SPEC: dict[str, Any] = {
    "root": {"type": "path", "required": True},
    "build": {"type": "str", "required": True},
    "archive": {"type": "path", "required": True},
    "sha256": {"type": "str", "required": True},
    "url": {"type": "str", "default": ""},
    "timeout_s": {"type": "float", "default": 30.0},
    "links": {"type": "dict", "default": {}},
}


def apply(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Do what is missing and give the task's result. Raises FleetError, OSError."""
    root, archive = Path(params["root"]), Path(params["archive"])
    build = root / params["build"]
    links = {str(root / "current"): params["build"], **params["links"]}
    installed = is_complete(build)
    wrong = wrong_links(links)
    if not installed and not params["url"] and not archive.exists():
        return {"changed": check_mode, "archive_needed": True}
    if not check_mode:
        current = root / "current"
        previous = current.readlink().name if current.is_symlink() else None
        if not installed:
            if params["url"]:
                fetch(params["url"], archive, params["sha256"], params["timeout_s"])
            install(archive, params["sha256"], build)
        for path in wrong:
            set_link(Path(path), links[path])
        archive.unlink(missing_ok=True)
        if not installed:
            prune(root, params["build"], previous)
    return {"changed": not installed or bool(wrong), "archive_needed": False}


def main() -> None:
    """Entry point."""
    run_module(lambda module: apply(module.params, module.check_mode), ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
