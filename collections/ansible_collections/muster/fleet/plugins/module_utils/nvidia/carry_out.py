"""Does what `decide` asks for, one step at a time, and looks again after each."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import files
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import (
    apt,
    decide,
    driver_packages,
    kernel,
    services,
    settings,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.decide import Action, Plan, Wanted
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import Facts

NAME = "nvidia-driver"
NVIDIA = "nvidia"
SETTINGS_WANTS = f"/etc/systemd/system/multi-user.target.wants/{settings.UNIT}"
_MODULES = ("nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
# DKMS compiles the modules for minutes, some kernels' headers come over the network before.
_BUILD_TIMEOUT_S = 3600.0
_LOAD_TIMEOUT_S = 300.0
# Steps that one run can need, each of them once, and one for each mode of sixteen GPUs.
_MOST_STEPS = 80


@dataclass(frozen=True)
class Result:
    """How it ended. `steps`: why each thing was (in check mode: would be) done."""

    facts: Facts
    plan: Plan
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """The host that is worked on. `gather` reads its facts, `run` runs its commands.

    `repository` is NVIDIA's where the inventory names it, whether or not the driver is of it.
    """

    gather: Callable[[], Facts]
    run: Run
    kernel_root: Path
    repository: apt.Repository | None


def converge(host: Host, wanted: Wanted, check: bool) -> Result:
    """Bring the driver to what is wanted. Raises FleetError when a package source or apt fails."""
    done: dict[tuple[str, ...], str] = {}
    steps: list[str] = []
    for _ in range(_MOST_STEPS):
        facts = host.gather()
        plan = decide.decide(facts, wanted, done)
        if check or not plan.actions:
            return Result(facts, plan, (*steps, *(action.why for action in plan.actions)))
        action = plan.actions[0]
        done[action.key] = _carry_out(action, host, facts, wanted)
        if not done[action.key]:
            steps.append(action.why)
    raise FleetError(f"the driver is not as asked after {_MOST_STEPS} steps, the last: {action.why}; run it again")


def config_files(wanted: Wanted, repository: apt.Repository | None) -> tuple[list[files.FileSpec], list[str]]:
    """The files of the role, and those that must not be there; a host at work keeps what it has, and so does an image.

    A host has NVIDIA's repository where the inventory names it, since DCGM and the container toolkit are nowhere else.
    A driver of another source is kept from it. Raises FleetError for a wrong key.
    """
    specs: list[files.FileSpec] = []
    absent: list[str] = []
    if wanted.busy or wanted.source == decide.IMAGE:
        return specs, absent
    kept_apart = repository is not None and wanted.source != NVIDIA
    others = driver_packages.FROM_NVIDIA_BESIDE if kept_apart else {}
    specs.append(apt.preferences(NAME, {driver_packages.PINNED: wanted.version}, others))
    if repository is not None:
        specs += apt.repository_files(repository)
    else:
        absent += [apt.SOURCES, apt.KEYRING]
    unit = settings.unit(wanted.settings)
    path = f"/etc/systemd/system/{settings.UNIT}"
    if unit:
        specs.append(files.FileSpec(path, unit.encode(), 0o644, "root", "root"))
    else:
        absent += [SETTINGS_WANTS, path]
    return specs, absent


def _carry_out(action: Action, host: Host, facts: Facts, wanted: Wanted) -> str:
    """Do it; what went wrong, empty when nothing did. Raises FleetError."""
    steps: Mapping[str, Callable[[], str]] = {
        decide.REPAIR: lambda: _repair(host, facts, wanted),
        decide.INSTALL: lambda: _install(host, facts, wanted),
        decide.HOLD: lambda: apt.hold(action.target, host.run) or "",
        decide.BUILD: lambda: _build(host, wanted, action.target[0]),
        decide.FOLLOW: lambda: _follow(host, action.target[0]),
        decide.INITRAMFS: lambda: _failure(host.run, ["update-initramfs", "-u", "-k", "all"], _BUILD_TIMEOUT_S),
        decide.LOAD: lambda: _load(host.run),
        decide.RELOAD: lambda: _reload(host.run),
        decide.PERSIST: lambda: _failure(host.run, ["systemctl", "enable", "--now", "nvidia-persistenced.service"]),
        decide.SET: lambda: _failure(host.run, list(action.target)),
    }
    return steps[action.kind]()


def _repair(host: Host, facts: Facts, wanted: Wanted) -> str:
    """End an installation that was interrupted; a package that builds modules ends well only with headers."""
    lacking = driver_packages.builds_modules(wanted.source) and facts.kernel.headers is False
    missing = _get_headers(host, str(facts.kernel.release)) if lacking else ""
    try:
        apt.repair(host.run)
    except FleetError as error:
        return f"{missing}; {error}" if missing else str(error)
    return ""


def _install(host: Host, facts: Facts, wanted: Wanted) -> str:
    apt.update(host.run, host.repository if wanted.source == NVIDIA else None)
    asked = {one.name: one.version for one in decide.wanted_packages(facts, wanted)}
    aside = host.repository.url if host.repository is not None and wanted.source != NVIDIA else ""
    exact = _resolve(asked, host, aside, facts, wanted)
    if driver_packages.builds_modules(wanted.source) and facts.kernel.headers is False:
        missing = _get_headers(host, str(facts.kernel.release))
        if missing:
            return missing
    there = facts.driver.packages or ()
    away = driver_packages.giving_way(wanted.source, wanted.system, wanted.version, [one.name for one in there])
    apt.install(exact, host.run, [one.name for one in there if one.held], away)
    return ""


def _resolve(asked: Mapping[str, str], host: Host, aside: str, facts: Facts, wanted: Wanted) -> dict[str, str]:
    try:
        return apt.resolve(asked, host.run, aside)
    except FleetError as error:
        kind = decide.flavour(facts, wanted)
        unread = driver_packages.unread(wanted.source, wanted.system, wanted.version, kind)
        named = [name for name in unread if f" {name}" in str(error)]
        if not named:
            raise
        raise FleetError(
            f"{error}; that {wanted.source} calls it {named[0]} in {wanted.version} is reported or assumed, not read: "
            f"if `apt-cache search nvidia` has it under another name, set fleet_nvidia_driver_version to another "
            "branch, or install the driver yourself and set fleet_nvidia_source: image"
        ) from error


def _get_headers(host: Host, release: str) -> str:
    """Install the headers of a kernel; why they cannot be had, empty where they are there now."""
    name = f"linux-headers-{release}"
    try:
        if not apt.versions(name, host.run):
            return (
                f"no package source of the host has {name}, without which no module can be built for the kernel "
                f"{release}; install a kernel of its package sources and reboot, or add the source of this one"
            )
        apt.install({name: ""}, host.run)
    except FleetError as error:
        # apt also tells of other packages that it could not end; what counts is whether the headers are there.
        return "" if kernel.has_headers(host.kernel_root, release) else str(error)
    return ""


def _build(host: Host, wanted: Wanted, release: str) -> str:
    if not driver_packages.builds_modules(wanted.source):
        return "Ubuntu's prebuilt modules for it are of another version; ask for theirs, or install another kernel"
    if not kernel.has_headers(host.kernel_root, release):
        try:
            apt.update(host.run)
        except FleetError as error:
            return str(error)
        if missing := _get_headers(host, release):
            return missing
    said = _failure(host.run, ["dkms", "autoinstall", "-k", release], _BUILD_TIMEOUT_S)
    if said:
        return f"{said} (see /var/lib/dkms/*/*/build/make.log)"
    # DKMS that was killed after it had put the modules there calls them installed, and modprobe does not know them.
    base = [] if host.kernel_root == Path("/") else ["-b", str(host.kernel_root)]
    return _failure(host.run, ["depmod", *base, release])


def _follow(host: Host, name: str) -> str:
    try:
        if not apt.versions(name, host.run):
            apt.update(host.run)
            if not apt.versions(name, host.run):
                return f"no package source of the host has {name}"
        apt.install({name: ""}, host.run)
    except FleetError as error:
        return str(error)
    return ""


def _load(run: Run) -> str:
    said = _failure(run, ["modprobe", "nvidia"], _LOAD_TIMEOUT_S)
    # Without the device files of nvidia-uvm no CUDA program starts.
    return said or _failure(run, ["modprobe", "nvidia-uvm"], _LOAD_TIMEOUT_S)


def _reload(run: Run) -> str:
    """Unload the old module and load the new one; nothing is lost where a program keeps the old one open."""
    try:
        states = services.states(services.OF_GPUS, run)
    except CommandError as error:
        return str(error)
    running = [f"{name}.service" for name in services.OF_GPUS if states[name] in services.RUNNING]
    if running:
        _failure(run, ["systemctl", "stop", *running])
    try:
        said = ""
        for module in _MODULES:
            said = _failure(run, ["modprobe", "-r", module], _LOAD_TIMEOUT_S)
        return said or _load(run)
    finally:
        if running:
            _failure(run, ["systemctl", "start", *reversed(running)])


def _failure(run: Run, command: list[str], timeout_s: float = 120.0) -> str:
    """Run a command; its last words when it failed, empty when it did not."""
    try:
        ended = run(command, timeout_s)
    except CommandError as error:
        return str(error)
    if ended.code == 0:
        return ""
    lines = [line.strip() for line in (ended.err + "\n" + ended.out).splitlines() if line.strip()]
    errors = [line for line in lines if re.search("error|fatal", line, re.IGNORECASE)]
    return (errors or lines or [f"{command[0]} ended with {ended.code}"])[0]


def stale_initramfs(root: Path, release: str) -> bool:
    """Whether the kernel's initramfs was made before a file of modprobe.d; not where there is none."""
    with contextlib.suppress(FileNotFoundError):
        made = (root / f"boot/initrd.img-{release}").stat().st_mtime
        return any(path.stat().st_mtime > made for path in (root / "etc/modprobe.d").glob("*.conf"))
    return False


def nouveau_off(root: Path) -> bool:
    """Whether a file of modprobe.d keeps nouveau from loading."""
    folders = ("etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d")
    found = (path for folder in folders for path in (root / folder).glob("*.conf"))
    lines = (line.split() for path in found for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return any(words[:2] in (["blacklist", "nouveau"], ["install", "nouveau"]) for words in lines)
