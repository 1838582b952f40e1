#!/usr/bin/python
"""Ansible module: kernel settings and limits of a node, in effect and kept over a reboot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import files
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, run_command
from ansible_collections.muster.fleet.plugins.module_utils.host.systemd_unit import systemctl
from ansible_collections.muster.fleet.plugins.module_utils.tuning import peer_path
from ansible_collections.muster.fleet.plugins.module_utils.tuning.effective import (
    NEEDS_REBOOT,
    OVERRIDDEN,
    SHARED_KERNEL,
    WRONG,
    Host,
    low_limits,
    settle,
)
from ansible_collections.muster.fleet.plugins.module_utils.tuning.files import MANAGER_FILE, MODULE_FILE, contents
from ansible_collections.muster.fleet.plugins.module_utils.tuning.table import GPU, PROFILES, Wanted, wanted

DOCUMENTATION = r"""
module: node_tuning
short_description: Kernel settings and limits of a node, in effect and kept over a reboot
version_added: "0.1.0"
description:
  - Writes the files that keep the values, sets what differs, and reads each value back. A value that does not take
    effect fails the task with its reason.
  - Warns of a file that would win at the next boot, of what needs a reboot or a restart, and of an IOMMU or PCIe
    switch that makes transfers between GPUs slow.
options:
  profile:
    description: Which nodes' values; V(none) removes the files and leaves what is in effect until the next boot.
    type: str
    choices: [gpu, system, none]
    required: true
  values:
    description: Own values for settings of the table or for any sysctl key. V(leave) leaves a setting alone.
    type: dict
    default: {}
  shared_kernel:
    description: The host is a container. What belongs to the kernel is neither set nor kept then, and named.
    type: bool
    default: false
  kernel_root:
    description: Where C(sys) of the kernel is, for its modules and its PCI devices.
    type: path
    default: /
attributes:
  diff_mode:
    support: full
    description: Shows the files.
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Tune a GPU node
  muster.fleet.node_tuning:
    profile: gpu
    values: {cpu_governor: leave, vm.max_map_count: "1048576"}
"""

RETURN = r"""
settings:
  description: >-
    Each setting with its name, the value wanted and in effect, its state (as_wanted, set, overridden, needs_reboot,
    not_here, shared_kernel) and a note.
  returned: success
  type: list
  elements: dict
reboot:
  description: Why the node must be booted once more; empty when it need not.
  returned: success
  type: list
  elements: str
not_set:
  description: Settings that belong to a kernel which is not the host's own.
  returned: success
  type: list
  elements: str
peer_path:
  description: >-
    C(iommu), the type of each GPU's IOMMU group; C(redirecting), the PCIe switch ports above GPUs that redirect
    transfers; C(unread), those of which this cannot be read.
  returned: success
  type: dict
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "profile": {"type": "str", "choices": list(PROFILES), "required": True},
    "values": {"type": "dict", "default": {}},
    "shared_kernel": {"type": "bool", "default": False},
    "kernel_root": {"type": "path", "default": "/"},
}

ROOT = Path("/")
# Seconds on an idle machine; minutes where its disk is slow.
_INITRAMFS_TIMEOUT_S = 1800.0


def tune(module: AnsibleModule) -> dict[str, Any]:
    """Bring everything to its value. Raises FleetError and OSError."""
    given = module.params
    act = not module.check_mode
    host = Host(ROOT, Path(given["kernel_root"]), given["shared_kernel"], systemctl)
    items = wanted(given["profile"], {key: _text(key, value) for key, value in given["values"].items()})
    outcome = keep([item for item in items if item.setting.per_namespace or not host.shared], act=act)
    found = [settle(item, host, act=act) for item in items]
    wrong = [
        f"{item.name} is {item.effective} and not {item.wanted}: {item.note}" for item in found if item.state == WRONG
    ]
    if wrong:
        raise FleetError("; ".join(wrong))
    rebuilt = refresh_initramfs(module, act=act)
    path = peer_path.observe(host.kernel_root)
    reboot = [item.note for item in found if item.state == NEEDS_REBOOT]
    overridden = [item.note for item in found if item.state == OVERRIDDEN]
    problems = path.problems if given["profile"] == GPU else []
    for text in [*overridden, *reboot, *low_limits(items, host), *problems]:
        module.warn(f"{os.uname().nodename}: {text}")
    return {
        "changed": bool(outcome.changed_files) or rebuilt or any(item.changed for item in found),
        "diff": [diff.as_ansible() for diff in outcome.diffs],
        "settings": [asdict(item) for item in found],
        "reboot": reboot,
        "not_set": [item.name for item in found if item.state == SHARED_KERNEL],
        "peer_path": asdict(path),
    }


def keep(items: Sequence[Wanted], *, act: bool) -> files.Outcome:
    """Write the files that keep the values over a reboot; remove those of which nothing is left."""
    texts = {str(ROOT / file): text for file, text in contents(items).items()}
    specs = [files.FileSpec(path, text.encode(), 0o644, "root", "root") for path, text in texts.items() if text]
    folders = [files.DirectorySpec(str(Path(spec.dest).parent)) for spec in specs]
    outcome = files.apply(specs, folders, [path for path, text in texts.items() if not text], check=not act)
    if act and str(ROOT / MANAGER_FILE) in outcome.changed_files:
        systemctl(["daemon-reload"])
    return outcome


def refresh_initramfs(module: AnsibleModule, *, act: bool) -> bool:
    """Make the boot images again that are older than our modprobe file, of which they hold a copy.

    A run that was killed before still owes it, which the files' times show.
    """
    kept = ROOT / MODULE_FILE
    program = module.get_bin_path("update-initramfs")
    if program is None or not kept.exists():
        return False
    written = kept.stat().st_mtime
    stale = [image for image in sorted((ROOT / "boot").glob("initrd.img-*")) if image.stat().st_mtime < written]
    for image in stale if act else ():
        release = image.name.removeprefix("initrd.img-")
        try:
            done = run_command([program, "-u", "-k", release], _INITRAMFS_TIMEOUT_S)
        except CommandError as error:
            raise FleetError(f"{image}: {error}; see the disk of /boot") from error
        if done.code != 0:
            raise FleetError(
                f"{image}: update-initramfs failed: {(done.err or done.out).strip()}; see the room in /boot"
            )
    return bool(stale)


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise FleetError(f"node_tuning_values: {key} is {value!r}; write a number, or text in quotes")
    return " ".join(str(value).split())


def main() -> None:
    """Entry point."""
    run_module(tune, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
