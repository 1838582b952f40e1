#!/usr/bin/python
"""Ansible module: what connects a host's GPUs is managed, and each GPU has registered with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import files, systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run, run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import fabric, imex, nvml, parts, services

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
    NVML must show each GPU that is on the bus, and must tell of the fabric where it can, which is since Hopper.
  - With O(imex_nodes) the daemon of this host must be ready too. Nodes of its domain that are not are told in C(notes).
  - A host that does not get there is no failed task; its reason, with the GPU, is in C(held).
  - A host that does work is not changed; what is not as asked is told in C(waits).
  - With O(source=image) no host is changed. The image has to run the services that the host needs, with nvlsm, the
    module C(ib_umad) and IMEX's list of nodes where it needs them; one that does not run is told in C(held).
options:
  source:
    description: As C(fleet_nvidia_source). With V(image) nothing is installed, written, loaded or started.
    type: str
    choices: [image, nvidia, debian, ubuntu]
    default: image
  nvlsm_version:
    description: Version of nvlsm, which is not the driver's. Empty takes the newest of the repository.
    type: str
    default: ""
  imex_nodes:
    description: Addresses of all hosts of this host's NVLink domain; with any, IMEX runs here, and is to find them all.
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
- name: Run the fabric manager
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
waits:
  description: What is not as asked and not changed while the host does work. Empty when nothing waits.
  returned: success
  type: str
notes:
  description: That, and the nodes of the IMEX domain that are not there.
  returned: success
  type: list
  elements: str
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
IMAGE = "image"
MANAGER = "nvidia-fabricmanager.service"
IMEX = "nvidia-imex.service"
_BINARIES = {MANAGER: "/usr/bin/nv-fabricmanager", IMEX: "/usr/bin/nvidia-imex"}
# What a unit of theirs starts: the script of NVLink 5 starts nvlsm, too.
_STARTS = {MANAGER: (_BINARIES[MANAGER], "/usr/bin/nvidia-fabricmanager-start.sh"), IMEX: (_BINARIES[IMEX],)}
_NODES = "/etc/nvidia-imex/nodes_config.cfg"
_UMAD = "/etc/modules-load.d/muster-nvlink5.conf"
_POLL_S = 1.0


def manage(module: AnsibleModule) -> dict[str, Any]:
    """Bring the fabric up and look at each GPU. Raises FleetError for mistakes of the inventory."""
    given = module.params
    root, act = Path(given["kernel_root"]), not module.check_mode
    platform = fabric.platform(root)
    managed = platform.kind != fabric.NONE
    busy = services.at_work(run_command) if managed else ""
    may_change = act and not busy
    changed: list[str] = []
    notes: list[str] = []
    held = ""
    gpus: tuple[nvml.Gpu, ...] = ()
    try:
        loaded = parts.loaded(root)
        if managed and not loaded and act:
            raise parts.Held("the NVIDIA driver is not loaded, and the fabric needs it; see the role nvidia_driver")
        if managed and loaded:
            units = _units(platform, given["imex_nodes"])
            if given["source"] == IMAGE:
                for unit in units:
                    _see_service(unit, platform, given["deadline_s"] if act and not busy else 0.0)
            else:
                _install(given, platform, loaded, changed, act=may_change)
                for unit in units:
                    _run_service(unit, changed, act=may_change)
        if loaded and (act or not changed):
            deadline_s = given["deadline_s"] if act and not busy else 0.0
            gpus = registered(platform, run_command, deadline_s)
            if given["imex_nodes"] and managed and not (busy and changed):
                fresh = any(IMEX in done for done in changed)
                notes += _imex(len(given["imex_nodes"]), run_command, deadline_s, wait_for_peers=fresh)
    except parts.Held as reason:
        held = str(reason)
    waits = ""
    if busy and changed:
        waits = f"the fabric would change ({', '.join(changed)}), and {busy}; {services.WHEN_IDLE}"
        notes.append(waits)
    for text in filter(None, [held, *notes]):
        module.warn(f"{os.uname().nodename}: {text}")
    return {
        "changed": bool(changed) and not busy,
        "platform": platform.kind,
        "evidence": platform.evidence,
        "held": held,
        "waits": waits,
        "notes": notes,
        "untold": managed and bool(gpus) and fabric.untold(gpus),
        "gpus": [{key: getattr(gpu, key) for key in ("uuid", "pci", "fabric_state", "fabric_status")} for gpu in gpus],
    }


def _install(given: dict[str, Any], platform: fabric.Platform, version: str, changed: list[str], *, act: bool) -> None:
    """Packages, the module of InfiniBand's user access for nvlsm, and the nodes of IMEX. Raises Held, FleetError."""
    if given["source"] == "debian" and platform.needs_manager:
        raise parts.Held(
            f"Debian has no fabric manager and this host needs it ({platform.evidence}): use the source nvidia"
        )
    wanted = fabric.packages(
        platform.kind, given["source"], version, given["nvlsm_version"], imex=bool(given["imex_nodes"])
    )
    if wanted:
        source, numbered = parts.repository(given), fabric.BRANCHED
        changed += parts.ensure("nvidia-fabric", wanted, source, run_command, act=act, numbered=numbered)
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
        if act:
            _load_umad()


def _load_umad() -> None:
    try:
        done = run_command(["modprobe", "ib_umad"])
    except CommandError as error:
        raise parts.Held(f"the kernel module ib_umad cannot be loaded, and nvlsm needs it: {error}") from error
    if done.code != 0:
        raise parts.Held(f"the kernel module ib_umad cannot be loaded, and nvlsm needs it: {done.err.strip()}")


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
        changed.append(f"start {unit}")  # its package would bring it
        return
    try:
        decision = systemd_unit.bring_up(systemd_unit.Wanted(unit, restart_after=stale_after), act=act)
    except FleetError as error:
        said = [systemd_unit.last_words(unit, *_STARTS[unit]), str(error)]
        raise parts.Held(f"{unit} does not start: {'; '.join(filter(None, said))}") from error
    changed += [f"{action} {unit}" for action in decision.actions]


def _see_service(unit: str, platform: fabric.Platform, deadline_s: float) -> None:
    """Have seen that the image runs a service of the fabric; one that is starting is waited for. Raises Held."""
    shown = systemd_unit.show(unit)

    def starts() -> str:
        nonlocal shown
        shown = systemd_unit.show(unit)
        return shown.active if shown.active == "activating" else ""

    if shown.active == "activating":
        _until_well(starts, deadline_s, time.monotonic, time.sleep)
    if not shown.loaded:
        raise parts.Held(
            f"the image has no {unit}, and this host needs it ({platform.evidence}): make the image with it, or set "
            "fleet_nvidia_source"
        )
    if shown.active != "active":
        last = systemd_unit.last_words(unit, *_STARTS[unit])
        why = f" ({last})" if last else ""
        raise parts.Held(
            f"{unit} is {shown.active}{why}; with fleet_nvidia_source: image it is for the image to start it"
        )


def registered(
    platform: fabric.Platform,
    run: Run,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[nvml.Gpu, ...]:
    """The GPUs, once all of them are on the fabric. Raises Held with those that are not within the deadline."""
    found: tuple[nvml.Gpu, ...] = ()

    def problem() -> str:
        nonlocal found
        answers = nvml.read(run, may_start=True)
        found = answers.gpus or ()
        if answers.gpus is None:
            # Whether the driver of a host without a fabric works is for others to tell.
            return f"NVML does not tell: {answers.error}" if platform.kind != fabric.NONE else ""
        return "; ".join(fabric.unregistered(platform, found))

    if missing := _until_well(problem, deadline_s, clock, sleep):
        raise parts.Held(
            f"the NVLink fabric is not complete{_after(deadline_s)}: {missing}; look at "
            "/var/log/fabricmanager.log and the kernel log for SXid"
        )
    return found


def _imex(
    nodes: int,
    run: Run,
    deadline_s: float,
    *,
    wait_for_peers: bool,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """What the domain lacks, which is not this host's fault; waited for where IMEX has just started. Raises Held."""
    if why := _until_well(lambda: imex.not_ready(run), deadline_s, clock, sleep):
        raise parts.Held(f"IMEX of this host is not ready{_after(deadline_s)}: {why}; look at /var/log/nvidia-imex.log")
    lacks = _until_well(lambda: imex.incomplete(run, nodes), deadline_s if wait_for_peers else 0.0, clock, sleep)
    return [f"{lacks}; look at these hosts"] if lacks else []


def _until_well(
    problem: Callable[[], str], deadline_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> str:
    """Look until there is no problem or the deadline is over; the problem that is left then."""
    end = clock() + deadline_s
    while found := problem():
        if clock() >= end:
            return found
        sleep(_POLL_S)
    return ""


def _after(deadline_s: float) -> str:
    return f" after {deadline_s:g} s" if deadline_s else ""


def main() -> None:
    """Entry point."""
    run_module(manage, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
