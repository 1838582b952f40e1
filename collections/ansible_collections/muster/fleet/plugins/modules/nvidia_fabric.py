#!/usr/bin/python
"""Ansible module: what connects a host's GPUs is managed, and each GPU has registered with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils import files, systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import driver, fabric, nvml, parts, services
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.commands import Run, run_command

DOCUMENTATION = r"""
module: nvidia_fabric
short_description: The NVLink fabric of a host - managed, and every GPU registered with it
version_added: "0.1.0"
description:
  - Finds out from PCI ids and product data what connects the GPUs. Up to NVLink 4 NVSwitches are on the PCI bus and
    need the fabric manager; with NVLink 5 they are behind bridges and need nvlsm too; in a rack such as GB200 NVL72 the
    switch trays manage them, and the host needs IMEX at most.
  - Has the packages in the version of the driver that is loaded, since the fabric manager refuses every other one.
  - Waits until NVML says of each GPU that it is on the fabric. That a service is active proves nothing.
  - A host that does not get there is no failed task; its reason is in C(held).
  - Where kubelet runs nothing is installed or restarted; the difference is told in C(held).
options:
  source:
    description: As C(fleet_nvidia_source). With V(image) nothing is installed.
    type: str
    choices: [image, nvidia, debian, ubuntu]
    default: image
  nvlsm_version:
    description: Version of nvlsm, which is not the driver's. Empty takes the newest of the repository.
    type: str
    default: ""
  imex_nodes:
    description: Addresses of all hosts of this host's NVLink domain; with any, IMEX runs here.
    type: list
    elements: str
    default: []
  deadline_s:
    description: How long GPUs may take to register with the fabric, in seconds.
    type: float
    default: 120
  kernel_root:
    description: Where C(proc) and C(sys) of the kernel are.
    type: path
    default: /
extends_documentation_fragment:
  - muster.fleet.nvidia_repository
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Have every GPU on the fabric
  muster.fleet.nvidia_fabric:
    source: nvidia
"""

RETURN = r"""
platform:
  description: What connects the GPUs - none, nvswitch, nvlink5 or rack.
  returned: success
  type: str
evidence:
  description: What shows it.
  returned: success
  type: str
held:
  description: Why this host cannot do work, as a sentence; empty when it can.
  returned: success
  type: str
untold:
  description: NVML tells nothing of the fabric, as of GPUs before Hopper. All that is known is that the service runs.
  returned: success
  type: bool
gpus:
  description: Of each GPU its C(uuid), C(pci) address, C(fabric_state) and C(fabric_status).
  returned: success
  type: list
  elements: dict
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "source": {"type": "str", "choices": ["image", "nvidia", "debian", "ubuntu"], "default": "image"},
    **parts.REPOSITORY_OPTIONS,
    "nvlsm_version": {"type": "str", "default": ""},
    "imex_nodes": {"type": "list", "elements": "str", "default": []},
    "deadline_s": {"type": "float", "default": 120},
    "kernel_root": {"type": "path", "default": "/"},
}
MANAGER = "nvidia-fabricmanager.service"
IMEX = "nvidia-imex.service"
_BINARIES = {MANAGER: "/usr/bin/nv-fabricmanager", IMEX: "/usr/bin/nvidia-imex"}
_NODES = "/etc/nvidia-imex/nodes_config.cfg"
_UMAD = "/etc/modules-load.d/muster-nvlink5.conf"
_POLL_S = 1.0


class Held(Exception):
    """Why the host cannot do work, as a clause."""


def manage(module: AnsibleModule) -> dict[str, Any]:
    """Bring the fabric up and look at each GPU. Raises FleetError for mistakes of the inventory."""
    given = module.params
    root, act = Path(given["kernel_root"]), not module.check_mode
    platform, loaded = fabric.platform(root), driver.loaded(root).version
    changed: list[str] = []
    held = ""
    gpus: tuple[nvml.Gpu, ...] = ()
    try:
        if platform.kind != fabric.NONE:
            if not loaded:
                raise Held("the NVIDIA driver is not loaded, and the fabric needs it; see the role nvidia_driver")
            _install(given, platform, loaded, changed, act=act)
            for unit in _units(platform, given["imex_nodes"]):
                _run_service(unit, changed, act=act)
        if loaded and (act or not changed):
            gpus = registered(platform.kind, run_command, given["deadline_s"] if act else 0.0)
    except Held as reason:
        held = str(reason)
        module.warn(f"{os.uname().nodename}: {held}")
    return {
        "changed": bool(changed),
        "platform": platform.kind,
        "evidence": platform.evidence,
        "held": held,
        "untold": platform.kind != fabric.NONE and bool(gpus) and fabric.untold(gpus),
        "gpus": [{key: getattr(gpu, key) for key in ("uuid", "pci", "fabric_state", "fabric_status")} for gpu in gpus],
    }


def _install(given: dict[str, Any], platform: fabric.Platform, version: str, changed: list[str], *, act: bool) -> None:
    """Packages, the module of InfiniBand's user access for nvlsm, and the nodes of IMEX. Raises Held, FleetError."""
    if given["source"] == "debian" and platform.needs_manager:
        raise Held(f"Debian has no fabric manager and this host needs it ({platform.evidence}): use the source nvidia")
    wanted = fabric.packages(
        platform.kind, given["source"], version, given["nvlsm_version"], imex=bool(given["imex_nodes"])
    )
    if given["source"] != "image" and wanted:
        busy = services.at_work(run_command)
        done = parts.ensure("nvidia-fabric", wanted, parts.repository(given), run_command, act=act and not busy)
        if busy and done:
            raise Held(f"{', '.join(done)} is not as asked and {busy} here: drain it, stop kubelet, run site.yml again")
        changed += done
    specs = []
    if platform.kind == fabric.NVLINK5:
        specs.append(
            files.FileSpec(_UMAD, b"# nvlsm speaks to the switches through it.\nib_umad\n", 0o644, "root", "root")
        )
    if given["imex_nodes"]:
        text = "".join(f"{node}\n" for node in given["imex_nodes"])
        specs.append(files.FileSpec(_NODES, text.encode(), 0o644, "root", "root"))
    folders = [files.DirectorySpec(str(Path(spec.dest).parent)) for spec in specs]
    changed += files.apply(specs, folders, check=not act).changed_files
    if platform.kind == fabric.NVLINK5 and not _has_umad(Path(given["kernel_root"])):
        changed.append("ib_umad")
        done = run_command(["modprobe", "ib_umad"]) if act else None
        if done is not None and done.code != 0:
            raise Held(f"the kernel module ib_umad cannot be loaded, and nvlsm needs it: {done.err.strip()}")


def _has_umad(root: Path) -> bool:
    """Whether the module is loaded, or built into the kernel."""
    listed = (root / "proc/modules").read_text(encoding="utf-8").splitlines()
    return any(line.startswith("ib_umad ") for line in listed) or (root / "sys/module/ib_umad").is_dir()


def _units(platform: fabric.Platform, imex_nodes: list[str]) -> list[str]:
    return ([MANAGER] if platform.needs_manager else []) + ([IMEX] if imex_nodes else [])


def _run_service(unit: str, changed: list[str], *, act: bool) -> None:
    """Have a service of the fabric running in the version on the disk. Raises Held."""
    stale_after = [_BINARIES[unit], *([_NODES] if unit == IMEX else [])]
    if not act and not systemd_unit.show(unit).loaded:
        changed.append(unit)  # its package would bring it
        return
    busy = services.at_work(run_command)
    try:
        decision = systemd_unit.bring_up(
            systemd_unit.Wanted(unit, restart_after=stale_after, restart=not busy), act=act
        )
    except FleetError as error:
        last = systemd_unit.log_tail(unit).splitlines()[-1:]
        raise Held(f"{unit} does not start: {'; '.join([*last, str(error)])}") from error
    changed += decision.actions
    if decision.stale and busy:
        raise Held(f"{unit} runs older than {', '.join(decision.stale)} and {busy} here: restart it when idle")


def registered(
    kind: str,
    run: Run,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[nvml.Gpu, ...]:
    """The GPUs, once all of them are on the fabric. Raises Held with those that are not within the deadline."""
    end = clock() + deadline_s
    while True:
        found = nvml.read(run, may_start=True)
        if found.gpus is None:
            if kind == fabric.NONE:
                return ()  # whether the driver works is for others to tell
            raise Held(f"NVML does not tell of the fabric: {found.error}")
        missing = fabric.unregistered(kind, found.gpus)
        if not missing:
            return found.gpus
        if clock() >= end:
            raise Held(
                f"the NVLink fabric is not complete after {deadline_s:g} s: {'; '.join(missing)}; look at "
                "/var/log/fabricmanager.log and the kernel log for SXid"
            )
        sleep(_POLL_S)


def main() -> None:
    """Entry point."""
    run_module(manage, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
