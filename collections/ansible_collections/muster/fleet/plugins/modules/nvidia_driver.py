#!/usr/bin/python
"""Ansible module: the NVIDIA driver of a host in the version asked for, loaded and working, or the reason why not."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import files
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import carry_out, decide, parts, reboots, services
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.apt import run_apt
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import Facts, gather
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import Models
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.settings import UNIT, Settings

DOCUMENTATION = r"""
module: nvidia_driver
short_description: Have the NVIDIA driver that was asked for, loaded and working
version_added: "0.2.0"
description:
  - Compares three facts, which are the packages that are installed, the module on the disk for the running kernel, and
    the module that is loaded. Does one step after the other until they agree, so that a run that was killed in between
    goes on where it stopped.
  - Ends with success and a reason in C(held) on a host that cannot have the driver. Fails when a package source or the
    repository's key is wrong.
  - Changes nothing on a host that does work (kubelet, pods or a burn-in run), and nothing of what an image brings.
options:
  source:
    description: Where the packages come from; with V(image) nothing is installed.
    type: str
    choices: [image, nvidia, debian, ubuntu]
    required: true
  version:
    description: Exact upstream version. Empty with V(image) accepts any that fits the GPUs.
    type: str
    default: ""
  modules:
    description: Which kernel modules; V(auto) takes the open ones wherever the GPUs have the choice.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  cuda:
    description: Major version of the CUDA libraries of the burn-in, or V(none).
    type: str
    default: none
  models:
    description: What GPUs need, from the filter muster.fleet.gpu_models.
    type: dict
    required: true
  mig:
    description: Whether MIG is on.
    type: bool
    default: false
  power_limit_w:
    description: Power limit of each GPU in watts; without it each GPU's own.
    type: float
  kernel_root:
    description: Folder with C(proc), C(sys) and C(lib/modules) of the kernel. For labs.
    type: path
    default: /
  nvml_timeout_s:
    description: Longest wait for NVML, in seconds.
    type: float
    default: 60
attributes:
  diff_mode:
    support: full
    description: Shows the files.
extends_documentation_fragment:
  - muster.fleet.nvidia_repository
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Install the driver
  muster.fleet.nvidia_driver:
    source: debian
    version: 535.261.03
    models: "{{ 'all' | muster.fleet.gpu_models }}"
  register: driver
"""

RETURN = r"""
held:
  description: Why the host may not take work, with what to do. Empty when the driver is as asked.
  returned: success
  type: str
unfit:
  description:
    - Why the host may not take work though NVML works, so that a burn-in might not tell it. Of V(image) alone, where
      everything else is left to the burn-in.
  returned: success
  type: str
  version_added: "0.2.0"
reboot:
  description: Why the host needs a reboot; empty when it needs none.
  returned: success
  type: str
problems:
  description: All reasons.
  returned: success
  type: list
  elements: str
notes:
  description: What is not wrong yet.
  returned: success
  type: list
  elements: str
waits:
  description: The note on what is asked for and not done while the host does work. Empty when nothing waits.
  returned: success
  type: str
steps:
  description: Why each thing was done (in check mode, would be next).
  returned: success
  type: list
  elements: str
to_install:
  description:
    - The packages of the driver that are not there as asked, and the headers that its modules need, with their versions
      (empty for any). Also of a host that does work, on which nothing is changed.
  returned: success
  type: dict
  version_added: "0.2.0"
driver:
  description: The loaded module's version and flavour, that of the library, and whether the host is simulated.
  returned: success
  type: dict
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "source": {"type": "str", "choices": ["image", "nvidia", "debian", "ubuntu"], "required": True},
    "version": {"type": "str", "default": ""},
    "modules": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
    "cuda": {"type": "str", "default": "none"},
    "models": {"type": "dict", "required": True},
    "mig": {"type": "bool", "default": False},
    "power_limit_w": {"type": "float"},
    **parts.REPOSITORY_OPTIONS,
    "kernel_root": {"type": "path", "default": "/"},
    "nvml_timeout_s": {"type": "float", "default": 60.0},
}
ROOT = Path("/")


def system(os_release: str) -> str:
    """The system as driver_packages names it, such as debian12."""
    fields = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', os_release, re.MULTILINE))
    return f"{fields.get('ID', '')}{fields.get('VERSION_ID', '')}"


def unfit(source: str, plan: decide.Plan, facts: Facts) -> str:
    """Why a host with what an image brings may not take work, where a burn-in might not tell it."""
    return plan.held if source == decide.IMAGE and not facts.nvml.error else ""


def run(module: AnsibleModule) -> dict[str, Any]:
    """Have the driver. Raises FleetError."""
    given = module.params
    tree = Path(given["kernel_root"])
    read = partial(gather, ROOT, run_command, kernel_root=tree, nvml_timeout_s=given["nvml_timeout_s"])
    busy = services.at_work(run_command)
    repository = parts.repository(given)
    first = read()
    wanted = decide.Wanted(
        source=given["source"],
        version=given["version"],
        system=system((ROOT / "etc/os-release").read_text(encoding="utf-8")),
        models=Models(given["models"]),
        modules=given["modules"],
        cuda=given["cuda"],
        settings=Settings(given["mig"], given["power_limit_w"]),
        busy=busy,
        nouveau_off=carry_out.nouveau_off(ROOT),
        stale_initramfs=carry_out.stale_initramfs(ROOT, first.kernel.release or ""),
    )
    outcome = files.Outcome((), ())
    if not any(decide.refusals(first, wanted)):
        specs, absent = carry_out.config_files(wanted, repository)
        outcome = files.apply(specs, absent=absent, check=module.check_mode)
        _enable_settings(module)
    result = carry_out.converge(carry_out.Host(read, run_apt, tree, repository), wanted, module.check_mode)
    facts, plan = result.facts, _reboot(result.plan, wanted, module.check_mode)
    return {
        "changed": bool(outcome.changed_files or result.steps),
        "held": plan.held,
        "unfit": unfit(given["source"], plan, facts),
        "reboot": plan.reboot,
        "problems": list(plan.problems),
        "notes": list(plan.warnings),
        "waits": plan.waits,
        "steps": list(result.steps),
        "to_install": decide.to_install(facts, wanted),
        "driver": {
            "loaded": facts.driver.loaded_version,
            "modules": facts.driver.loaded_flavour,
            "library": facts.library.version,
            "simulated": facts.simulated,
        },
        "diff": [diff.as_ansible() for diff in outcome.diffs],
    }


def _reboot(plan: decide.Plan, wanted: decide.Wanted, check: bool) -> decide.Plan:
    """Whether a reboot that the plan wants may be, and may help; the host remembers that it was wanted."""
    if plan.reboot and not wanted.busy and (busy := services.at_work(run_command)):
        # To install and build took minutes, and work came meanwhile.
        plan = decide.left_alone(plan, busy)
    boot_id = (ROOT / "proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    kept = reboots.KEPT.read_text(encoding="utf-8", errors="replace") if reboots.KEPT.exists() else ""
    plan = reboots.judged(plan, boot_id, kept)
    keep = reboots.to_keep(plan, boot_id, kept)
    if keep != kept and not check:
        specs = [files.FileSpec(str(reboots.KEPT), keep.encode(), 0o644, "root", "root")] if keep else []
        folder = files.DirectorySpec(str(reboots.KEPT.parent), 0o755, "root", "root")
        files.apply(specs, [folder] if keep else [], [] if keep else [str(reboots.KEPT)])
    return plan


def _enable_settings(module: AnsibleModule) -> None:
    path = Path("/etc/systemd/system", UNIT)
    if module.check_mode or not path.exists() or Path(carry_out.SETTINGS_WANTS).is_symlink():
        return
    for command in (["systemctl", "daemon-reload"], ["systemctl", "enable", UNIT]):
        code, _, err = module.run_command(command)
        if code != 0:
            raise FleetError(f"{' '.join(command)} failed: {err.strip()}")


def main() -> None:
    """Entry point."""
    run_module(run, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
