#!/usr/bin/python
"""Ansible module: the CDI specification of a host's GPUs, made again by its units, and compared with the GPUs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import binaries, files, systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import cdi, nvml, parts, services

DOCUMENTATION = r"""
module: cdi_spec
short_description: Have a CDI specification that fits the GPUs of the host
version_added: "0.1.0"
description:
  - Has the O(packages) of the container toolkit in exact versions and held, where there are any. On a host that does
    work they stay, and RV(waits) tells what is not as asked.
  - Or has the O(binaries) of the toolkit, from a mirror.
  - Writes the O(files) after them, since releases of the toolkit bring units of the same names, and take them away.
  - Enables the units that make the specification at boot and when the driver changes, starts the one that compares and
    makes it, and then looks whether it has a device for each GPU that NVML shows, for no other, and names only files
    that are there; and whether the containerd that runs reads such files at all.
  - A specification that does not fit is an answer, in RV(held), and no error.
options:
  packages:
    description: Packages of the toolkit and the version of each.
    type: dict
    default: {}
  binaries:
    description: Programs of the toolkit that come from a mirror, where any do.
    type: dict
    suboptions:
      names:
        description: Names of the files.
        type: list
        elements: str
        required: true
      directory:
        description: Where they go.
        type: path
        default: /usr/local/bin
      url:
        description: Folder of the files. http, https or file (a folder on the host).
        type: str
        required: true
      checksums:
        description: SHA-256 of each file, by its name.
        type: dict
        required: true
      timeout_s:
        description: Give up when the mirror is silent for so long, in seconds.
        type: float
        default: 30
  files:
    description: Text of each file by its path, such as those of O(service) and O(watcher).
    type: dict
    default: {}
  path:
    description: The specification.
    type: path
    default: /var/run/cdi/nvidia.yaml
  service:
    description: The unit that makes it.
    type: str
    default: nvidia-cdi-refresh.service
  watcher:
    description: The unit that starts O(service) when a file of the driver changes.
    type: str
    default: nvidia-cdi-refresh.path
  kernel_root:
    description: Where proc of the kernel is. For labs.
    type: path
    default: /
  timeout_s:
    description: How long NVML may take to answer, in seconds.
    type: float
    default: 60
extends_documentation_fragment:
  - muster.fleet.nvidia_repository
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Generate the CDI specification of the GPUs
  muster.fleet.cdi_spec:
    path: /var/run/cdi/nvidia.yaml
  register: __spec
"""

RETURN = r"""
actions:
  description:
    - What was done (or would be, in check mode), of daemon-reload, enable, start and make; before them the binaries and
      packages that were installed, mended or held, and the files that changed.
  type: list
  elements: str
  returned: success
devices:
  description: UUIDs of the GPUs that NVML shows.
  type: list
  elements: str
  returned: success
held:
  description: Why containers would not get the GPUs that they ask for; empty when they do.
  type: str
  returned: success
waits:
  description: What is not as asked and not changed while the host does work. Empty when nothing waits.
  type: str
  returned: success
notes:
  description: The same, for the summary.
  type: list
  elements: str
  returned: success
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "packages": {"type": "dict", "default": {}},
    "binaries": {
        "type": "dict",
        "options": {
            "names": {"type": "list", "elements": "str", "required": True},
            **binaries.MIRROR_OPTIONS,
            "directory": {"type": "path", "default": "/usr/local/bin"},
        },
    },
    **parts.REPOSITORY_OPTIONS,
    "files": {"type": "dict", "default": {}},
    "path": {"type": "path", "default": "/var/run/cdi/nvidia.yaml"},
    "service": {"type": "str", "default": "nvidia-cdi-refresh.service"},
    "watcher": {"type": "str", "default": "nvidia-cdi-refresh.path"},
    "kernel_root": {"type": "path", "default": "/"},
    "timeout_s": {"type": "float", "default": nvml.TIMEOUT_S},
}


# The name of apt's file of preferences.
PART = "nvidia-container-toolkit"


def bring(module: AnsibleModule) -> dict[str, Any]:
    """Have the specification made, then compare it. Raises FleetError, OSError."""
    given, act = module.params, not module.check_mode
    path = Path(given["path"])
    actions: list[str] = []
    problems: list[str] = []
    before = _digest(path)
    waits = ""
    if mirrored := given["binaries"]:
        fetched, permitted = binaries.have(mirrored, mirrored["names"], mirrored["directory"], act=act)
        actions += fetched + permitted
    if given["packages"]:
        busy = services.at_work(run_command)
        found = parts.ensure(PART, given["packages"], parts.repository(given), run_command, act=act and not busy)
        if busy and found:
            waits = f"the container toolkit would change ({', '.join(found)}), and {busy}; {services.WHEN_IDLE}"
        else:
            actions += found
    actions += _write(given["files"], act=act)
    actions += _read_again((given["service"], given["watcher"]), act=act)
    actions += systemd_unit.bring_up(systemd_unit.Wanted(unit=given["watcher"]), act=act).actions
    service = systemd_unit.show(given["service"])
    if not service.enabled:
        actions.append("enable")
    if act:
        if not service.enabled:
            systemd_unit.systemctl(["enable", "--", service.name])
        try:
            systemd_unit.systemctl(["start", "--", service.name])
        except FleetError:
            problems.append(_last_words(service.name))
    elif before is None:
        actions.append("make")
    if act and _digest(path) != before:
        actions.append("make")
    try:
        runtime = run_command(["ctr", "--connect-timeout", "2s", "version"]).out
    except CommandError:
        runtime = ""
    if act or before is not None:
        problems += filter(None, [cdi.runtime_problem(runtime)])
    answers = nvml.read(run_command, _loaded(Path(given["kernel_root"])), given["timeout_s"])
    gpus = answers.gpus or ()
    if answers.error:
        problems.append(f"NVML: {answers.error}; containers get no GPU")
    elif not gpus:
        problems.append("NVML shows no GPU; see `nvidia-smi -L` and the kernel log")
    elif act or before is not None:
        problems += cdi.problems(Path("/"), path, gpus)
    for text in filter(None, ["; ".join(problems), waits]):
        module.warn(f"{os.uname().nodename}: {text}")
    return {
        "changed": bool(actions),
        "actions": actions,
        "devices": [gpu.uuid for gpu in gpus if gpu.uuid],
        "held": "; ".join(problems),
        "waits": waits,
        "notes": [waits] if waits else [],
    }


def _write(texts: Mapping[str, str], *, act: bool) -> tuple[str, ...]:
    """Have the files; the paths of those that differed."""
    specs = [files.FileSpec(path, f"{text.rstrip()}\n".encode(), 0o644, "root", "root") for path, text in texts.items()]
    folders = [files.DirectorySpec(folder) for folder in sorted({str(Path(path).parent) for path in texts})]
    return files.apply(specs, folders, check=not act).changed_files


def _read_again(units: Sequence[str], *, act: bool) -> list[str]:
    """Have systemd read changed units again: neither a start nor an enabled watcher does that."""
    if not any(systemd_unit.show(unit).needs_reload for unit in units):
        return []
    if act:
        systemd_unit.systemctl(["daemon-reload"])
    return ["daemon-reload"]


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _loaded(kernel_root: Path) -> bool:
    try:
        return bool(parts.loaded(kernel_root))
    except parts.Held:
        return True


def _last_words(unit: str) -> str:
    lines = [line for line in systemd_unit.log_tail(unit).splitlines() if "nvidia-ctk" in line or "level=error" in line]
    return f"{unit} failed: {lines[-1].strip() if lines else 'it said nothing'}; see `journalctl -u {unit}`"


def main() -> None:
    """Entry point."""
    run_module(bring, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
