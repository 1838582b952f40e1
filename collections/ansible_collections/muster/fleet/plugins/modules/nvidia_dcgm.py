#!/usr/bin/python
"""Ansible module: DCGM and its exporter run, watch health, see every GPU, and pause while a burn-in runs."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import files, systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run, run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import dcgm, nvml, parts, services

DOCUMENTATION = r"""
module: nvidia_dcgm
short_description: DCGM and its exporter - running, watching health, seeing every GPU, paused while a burn-in runs
version_added: "0.1.0"
description:
  - Has DCGM 4 and the exporter in exact versions, the host engine on a Unix socket, all health watches set at each of
    its starts, and the exporter with a small counter file.
  - Compares by UUID what the host engine, the exporter and NVML see. A host on which they differ is no failed task; the
    reason is in C(held).
  - A host that does work is not changed. What is not as asked, and what is wrong, is in C(notes).
  - While a burn-in runs on the host, nothing is started and nothing compared; C(paused) says so.
  - Where none is to be installed, nothing is done. C(present) tells whether the host has an engine all the same.
  - DCGM is in NVIDIA's repository alone, wherever the driver comes from.
options:
  source:
    description: As C(fleet_nvidia_source). With V(image) nothing is installed.
    type: str
    choices: [image, nvidia, debian, ubuntu]
    default: image
  version:
    description: Version of DCGM, such as C(4.5.2). Empty installs none.
    type: str
    default: ""
  exporter_version:
    description: Version of the exporter, such as C(4.8.2). Empty installs none.
    type: str
    default: ""
  cuda:
    description: For which CUDA release its tests are installed.
    type: str
    choices: ["12", "13"]
    default: "13"
  exporter_address:
    description: Where the exporter listens, as address and port; without an address on all.
    type: str
    default: ":9400"
  deadline_s:
    description: How long engine and exporter may take to see every GPU, in seconds.
    type: float
    default: 60
  kernel_root:
    description: Where C(proc) of the kernel is.
    type: path
    default: /
extends_documentation_fragment:
  - muster.fleet.nvidia_repository
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Run DCGM
  muster.fleet.nvidia_dcgm:
    source: nvidia
    repository_url: "{{ fleet_nvidia_repository_url }}"
    repository_key: "{{ fleet_nvidia_repository_key }}"
    repository_fingerprint: "{{ fleet_nvidia_repository_fingerprint }}"
    version: 4.5.2
"""

RETURN = r"""
held:
  description: What is wrong with it, as a sentence. Empty when nothing is, and on a host that does work.
  returned: success
  type: str
notes:
  description: On a host that does work, what is wrong with it and what is not as asked.
  returned: success
  type: list
  elements: str
waits:
  description: Of the notes that on what is not done while the host does work. Empty when nothing waits.
  returned: success
  type: str
paused:
  description: A burn-in runs, so nothing was started or compared.
  returned: success
  type: bool
present:
  description: The host has a host engine, whoever installed it.
  returned: success
  type: bool
compared:
  description: Engine and exporter saw each GPU that NVML shows, and health is watched. False where nobody looked, too.
  returned: success
  type: bool
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "source": {"type": "str", "choices": ["image", "nvidia", "debian", "ubuntu"], "default": "image"},
    **parts.REPOSITORY_OPTIONS,
    "version": {"type": "str", "default": ""},
    "exporter_version": {"type": "str", "default": ""},
    "cuda": {"type": "str", "choices": ["12", "13"], "default": "13"},
    "exporter_address": {"type": "str", "default": ":9400"},
    "deadline_s": {"type": "float", "default": 60},
    "kernel_root": {"type": "path", "default": "/"},
}
_BINARIES = {dcgm.ENGINE: "/usr/bin/nv-hostengine", dcgm.EXPORTER: "/usr/bin/dcgm-exporter"}
_POLL_S = 1.0
_HTTP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Host:
    """What decides whether something may be changed: `busy`: what a change would disturb; `paused`: a burn-in runs."""

    busy: str
    paused: bool
    act: bool

    @property
    def may_change(self) -> bool:
        """A restart loses the watches, groups and job records that schedulers keep in the engine."""
        return self.act and not self.busy


def manage(module: AnsibleModule) -> dict[str, Any]:
    """Bring DCGM up and compare what it sees. Raises FleetError for mistakes of the inventory."""
    given = module.params
    # An image's own engine is its maker's: sites have pods and tools that ask it where it listens.
    if given["source"] == "image" or not given["version"]:
        there = systemd_unit.show(dcgm.ENGINE).loaded
        nothing = {"changed": False, "held": "", "notes": [], "waits": "", "paused": False, "compared": False}
        return nothing | {"present": there}
    busy = services.at_work(run_command)
    host = Host(busy, systemd_unit.show(f"{services.BURNIN}.service").running, not module.check_mode)
    changed: list[str] = []
    wrong, compared = "", False
    try:
        exports = bool(given["exporter_version"])
        changed += install(given, act=host.may_change)
        changed += configure(given["exporter_address"] if exports else "", act=host.may_change)
        root = Path(given["kernel_root"])
        driver = parts.loaded(root)
        if not driver and host.act:
            raise parts.Held("the NVIDIA driver is not loaded, and DCGM would see no GPU; see the role nvidia_driver")
        if driver and not host.paused:
            changed += run_services(exports, root, act=host.may_change)
            if host.may_change or not changed or (busy and systemd_unit.show(dcgm.ENGINE).running):
                url = dcgm.metrics_url(given["exporter_address"]) if exports else ""
                compare(url, run_command, given["deadline_s"] if host.may_change else 0.0)
                compared = True
    except parts.Held as reason:
        wrong = str(reason)
    waits = f"DCGM would change ({', '.join(changed)}), and {busy}; {services.WHEN_IDLE}" if busy and changed else ""
    # No job on a host needs DCGM: a host that does work goes on.
    notes = [f"DCGM: {wrong}"] if busy and wrong else []
    held = "" if busy else wrong
    for text in filter(None, [*notes, waits, held]):
        module.warn(f"{os.uname().nodename}: {text}")
    return {
        "changed": bool(changed) and not busy,
        "held": held,
        "notes": [*notes, *([waits] if waits else [])],
        "waits": waits,
        "paused": host.paused,
        "present": systemd_unit.show(dcgm.ENGINE).loaded,
        "compared": compared,
    }


def install(given: dict[str, Any], *, act: bool) -> tuple[str, ...]:
    """The packages, of DCGM 4. Raises FleetError."""
    if not dcgm.is_supported(given["version"]):
        raise FleetError(f"nvidia_dcgm_version is {given['version']}: give a release of DCGM 4, such as 4.5.2")
    source = parts.repository(given)
    if source is None:
        raise FleetError("nvidia_dcgm_version is set and fleet_nvidia_repository_url is not: DCGM is nowhere else")
    wanted = dcgm.packages(given["version"], given["exporter_version"], given["cuda"])
    return parts.ensure("nvidia-dcgm", wanted, source, run_command, act=act, numbered=[dcgm.NUMBERED])


def configure(exporter: str, *, act: bool) -> tuple[str, ...]:
    """The units' files and the counters."""
    texts = dcgm.unit_files(exporter) | ({dcgm.COUNTERS: dcgm.counter_file()} if exporter else {})
    specs = [files.FileSpec(path, text.encode(), 0o644, "root", "root") for path, text in texts.items()]
    folders = sorted({str(Path(path).parent) for path in texts})
    return files.apply(specs, [files.DirectorySpec(folder) for folder in folders], check=not act).changed_files


def run_services(exports: bool, kernel_root: Path, *, act: bool) -> list[str]:
    """The target, and each service not older than its files and, the engine, than the driver. Raises Held."""
    done: list[str] = []
    units = [dcgm.ENGINE, *([dcgm.EXPORTER] if exports else [])]
    for unit in [*units, dcgm.TARGET]:
        shown = systemd_unit.show(unit)
        if not act and not shown.loaded:
            done.append(f"start {unit}")  # its package would bring it
            continue
        stale_after = [_BINARIES[unit], dcgm.COUNTERS] if unit == dcgm.EXPORTER else [_BINARIES.get(unit, "/dev/null")]
        wanted = systemd_unit.Wanted(
            unit,
            restart_after=stale_after,
            enabled=unit == dcgm.TARGET,
            restart_because=dcgm.blind_because(shown.started_at, kernel_root) if unit == dcgm.ENGINE else "",
        )
        try:
            done += [f"{action} {unit}" for action in systemd_unit.bring_up(wanted, act=act).actions]
        except FleetError as error:
            said = [systemd_unit.last_words(unit, _BINARIES.get(unit, unit)), str(error)]
            raise parts.Held(f"{unit} does not start: {'; '.join(filter(None, said))}") from error
    return done


def compare(
    url: str,
    run: Run,
    deadline_s: float,
    fetch: Callable[[str], str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until engine and exporter (at `url`; empty: none) see what NVML sees. Raises Held with what they do not."""
    by_nvml = nvml.read(run, may_start=True)
    if by_nvml.gpus is None:
        raise parts.Held(f"NVML does not tell the GPUs to compare DCGM with: {by_nvml.error}")
    expected = {gpu.uuid for gpu in by_nvml.gpus if gpu.uuid}
    end = clock() + deadline_s
    while problem := _problem(url, run, expected, fetch or metrics):
        if clock() >= end:
            raise parts.Held(
                f"after {deadline_s:g} s {problem}; look at journalctl -u {dcgm.ENGINE}, restart it when idle"
            )
        sleep(_POLL_S)


def _problem(url: str, run: Run, expected: set[str], fetch: Callable[[str], str]) -> str:
    try:
        seen = run(["dcgmi", "discovery", "--host", dcgm.ADDRESS, "-l"])
        if seen.code != 0:
            return f"the host engine does not answer: {' '.join((seen.out + seen.err).split())[:200]}"
        if found := dcgm.difference("the host engine", dcgm.uuids(seen.out), expected):
            return found
        off = dcgm.watches_off(run(["dcgmi", "health", "--host", dcgm.ADDRESS, "-f"]).out)
        if off is None or off:
            return f"health is not watched: {', '.join(off or ['dcgmi health -f shows no watch'])}"
        return dcgm.difference("the exporter", dcgm.uuids(fetch(url)), expected) if url else ""
    except CommandError as error:
        return f"the host engine does not answer: {error}"
    except (OSError, urllib.error.URLError) as error:
        return f"the exporter does not answer at {url}: {error}"


def metrics(url: str) -> str:
    """What the exporter shows. Raises OSError."""
    # The proxy that a host may need for the world does not know its loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_HTTP_TIMEOUT_S) as answer:
        text: str = answer.read().decode(errors="replace")
        return text


def main() -> None:
    """Entry point."""
    run_module(manage, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
