"""What is in effect on this host now, and setting it: sysctl values, files of sysfs, systemd's limits, modules.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, os_error
from ansible_collections.muster.fleet.plugins.module_utils.tuning.files import Assignment, overriding, sysctl_path
from ansible_collections.muster.fleet.plugins.module_utils.tuning.table import (
    MANAGER,
    MODULE,
    OFF,
    SYSCTL,
    SYSFS,
    Wanted,
)

# What a setting is found to be. Of these, WRONG is an error.
AS_WANTED, SET, NOT_HERE, SHARED_KERNEL, OVERRIDDEN, NEEDS_REBOOT, WRONG = (
    *("as_wanted", "set", "not_here", "shared_kernel", "overridden", "needs_reboot", "wrong"),
)
# What runs the containers, whose limits theirs are.
_SERVICES = ("containerd.service", "kubelet.service")
_LIMITS = {"DefaultLimitNOFILE": "LimitNOFILE", "DefaultLimitMEMLOCK": "LimitMEMLOCK"}
_LIMIT_NAMES = {"LimitNOFILE": "Max open files", "LimitMEMLOCK": "Max locked memory"}

Systemctl = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Found:
    """One setting: what it should be, what it is in effect (None: not to be read), its state and a sentence on it.

    `changed`: it was set, or with `act` false would be.
    """

    name: str
    wanted: str
    effective: str | None
    state: str
    note: str = ""
    changed: bool = False


@dataclass(frozen=True)
class Host:
    """Where to look: `shared`: its kernel is that of other hosts too. `kernel_root` has the kernel's modules."""

    root: Path
    kernel_root: Path
    shared: bool
    systemctl: Systemctl


def settle(item: Wanted, host: Host, *, act: bool) -> Found:
    """Have one setting in effect (with `act` false: say what it is and whether it would be set)."""
    setting = item.setting
    if host.shared and not setting.per_namespace:
        return Found(
            setting.name,
            item.value,
            None,
            SHARED_KERNEL,
            "the kernel is not this host's own: set it where the kernel runs",
        )
    if setting.kind == MODULE:
        return _module(item, host)
    paths = _paths(item, host.root)
    if setting.kind != MANAGER and not paths:
        return Found(setting.name, item.value, None, NOT_HERE, "this kernel or this machine has no such setting")
    before = effective = _read(item, host, paths)
    if before != item.value and act:
        problem = _set(item, host, paths)
        effective = _read(item, host, paths)
        if effective != item.value:
            winner = overriding(item, host.root)
            note = _wins(item, winner) if winner else problem or "the kernel took another value"
            return Found(setting.name, item.value, effective, WRONG, note)
    changed = before != item.value
    winner = overriding(item, host.root)
    if winner is not None:
        return Found(setting.name, item.value, effective, OVERRIDDEN, _wins(item, winner), changed)
    return Found(setting.name, item.value, effective, SET if changed else AS_WANTED, changed=changed)


def low_limits(items: Sequence[Wanted], host: Host) -> list[str]:
    """The services that still run with less than the limits of `items`, a sentence each."""
    if host.shared:  # what a container may raise is its runtime's business
        return []
    found = []
    for item in items:
        limit = _LIMITS.get(item.setting.where)
        if limit is None:
            continue
        for service in _SERVICES:
            pid = host.systemctl(["show", "--property=MainPID", "--value", "--", service]).strip()
            soft = _process_limit(host.root, pid, _LIMIT_NAMES[limit])
            if soft is not None and _number(soft) < _number(item.value.partition(":")[0]):
                found.append(
                    f"{service} runs with {limit}={soft} instead of {item.value}: restart it when the node is idle"
                )
    return found


def _wins(item: Wanted, winner: Assignment) -> str:
    """What is in effect now will not be after the next boot."""
    return (
        f"/{winner.file} line {winner.line} sets {item.setting.where} to {winner.value} and wins at the next boot: "
        "remove that line"
    )


def _module(item: Wanted, host: Host) -> Found:
    loaded = (host.kernel_root / "sys/module" / item.setting.where).is_dir()
    if item.value == OFF and loaded:
        note = f"{item.setting.where} is loaded: the node must be booted once more"
        return Found(item.setting.name, item.value, "loaded", NEEDS_REBOOT, note)
    return Found(item.setting.name, item.value, "loaded" if loaded else OFF, AS_WANTED)


def _paths(item: Wanted, root: Path) -> list[Path]:
    if item.setting.kind == SYSCTL:
        path = root / "proc/sys" / sysctl_path(item.setting.where)
        return [path] if path.is_file() else []
    return sorted(root.glob(item.setting.where)) if item.setting.kind == SYSFS else []


def _read(item: Wanted, host: Host, paths: Sequence[Path]) -> str | None:
    """The value in effect; of several files those that differ from what is wanted, None when it is not to be read."""
    if item.setting.kind == MANAGER:
        key = item.setting.where
        shown = host.systemctl(["show", f"--property={key},{key}Soft"])
        pairs = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        hard, soft = pairs.get(key, ""), pairs.get(f"{key}Soft", "")
        return hard if soft == hard else f"{soft}:{hard}"
    try:
        values = {_chosen(path.read_text()) for path in paths}
    except OSError:
        return None
    return ", ".join(sorted(values - {item.value})) or item.value


def _chosen(text: str) -> str:
    """The value of a file; of a list of choices the one in brackets."""
    if "[" in text:
        return text.partition("[")[2].partition("]")[0]
    return " ".join(text.split())


def _set(item: Wanted, host: Host, paths: Sequence[Path]) -> str:
    """Set the value; the reason when it could not be."""
    if item.setting.kind == MANAGER:
        host.systemctl(["daemon-reload"])  # it reads system.conf and its folder again
        return ""
    try:
        for path in paths:
            descriptor = os.open(path, os.O_WRONLY)
            try:
                os.write(descriptor, item.value.encode())
            finally:
                os.close(descriptor)
    except OSError as error:
        return os_error(error)
    return ""


def _process_limit(root: Path, pid: str, name: str) -> str | None:
    try:
        lines = (root / "proc" / pid / "limits").read_text().splitlines()
    except OSError:
        return None  # it does not run
    return next((line.removeprefix(name).split()[0] for line in lines if line.startswith(name)), None)


def _number(limit: str) -> float:
    if limit in ("infinity", "unlimited"):
        return float("inf")
    try:
        return int(limit)
    except ValueError as error:
        raise FleetError(f"node_tuning_values: limit {limit!r} is neither a number nor infinity; correct it") from error
