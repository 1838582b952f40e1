"""What to do about a host's driver, out of what is installed, what is on the disk and what is loaded. Pure.

Never by what a task changed: a run that was killed in between leaves what the next one finds by these three.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ansible_collections.muster.fleet.plugins.module_utils.nvidia import driver_packages, preflight, settings
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.driver import Module
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.explain import nvml_problem
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import Facts
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import (
    AUTO,
    EITHER,
    Models,
    chosen,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.packages import Package, lacking
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.services import WHEN_IDLE
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.settings import Settings

IMAGE = "image"
# Kinds of actions, in the order in which they are done.
REPAIR, INSTALL, HOLD, BUILD, FOLLOW, INITRAMFS, LOAD, RELOAD, PERSIST, SET = (
    "repair", "install", "hold", "build", "follow", "initramfs", "load", "reload", "persist", "set",
)  # fmt: skip
_NEEDED = ("pci", "kernel.release", "kernel.installed", "driver.loaded", "driver.on_disk", "packages")
# Who signed a module that was built on the host: a key of DKMS, or the one of Ubuntu, with the name of the host first.
_BUILT_HERE = re.compile(r"DKMS module signing key|.*\bSecure Boot Module Signature key")


@dataclass(frozen=True)
class Wanted:
    """What a host should have. `modules`: auto, open or proprietary; `cuda`: none, or the burn-in's major version.

    `busy`: what a change would disturb (services.at_work), so nothing is changed.
    `nouveau_off`: a file of modprobe.d keeps nouveau from loading.
    `stale_initramfs`: the initramfs is older than such a file.
    """

    source: str
    version: str
    system: str
    models: Models
    modules: str = "auto"
    cuda: str = "none"
    settings: Settings = field(default_factory=Settings)
    busy: str = ""
    nouveau_off: bool = True
    stale_initramfs: bool = False


@dataclass(frozen=True)
class Action:
    """One thing to do, and why. `target`: a kernel's release for `build`, a package for `follow`, words for `set`."""

    kind: str
    why: str
    target: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """What tells two actions of one run apart."""
        return (self.kind, *self.target)


@dataclass(frozen=True)
class Plan:
    """What to do next. `reboot`: why the host needs one. `problems`: why it is not as asked; each one sentence.

    `warnings`: what is not wrong yet. `waits`: the one of them that waits for the host to do no work.
    """

    actions: tuple[Action, ...] = ()
    reboot: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    waits: str = ""

    @property
    def held(self) -> str:
        """Why the host may not take work; empty when it may."""
        return self.problems[0] if self.problems else self.reboot


def decide(facts: Facts, wanted: Wanted, done: Mapping[tuple[str, ...], str] | None = None) -> Plan:
    """What is to be done. `done`: what this run did already (by Action.key) and what it said; it is not done again."""
    if wanted.source == IMAGE:
        # Nothing is changed there, at work or not.
        wanted = replace(wanted, busy="")
    if wanted.source == IMAGE and not facts.gpus and facts.nvml.simulated and not facts.nvml.error:
        # GPUs that a library makes up have no module and no PCI device.
        return _of_image(_settled(facts, wanted, {}))
    if refused := tuple(refusals(facts, wanted)):
        return Plan(problems=refused)
    if wanted.source == IMAGE:
        problem = nvml_problem(facts)
        return Plan(problems=(problem,)) if problem else _of_image(_settled(facts, wanted, {}))
    plan = _next(facts, wanted, done or {})
    return _left_alone(facts, wanted, plan) if wanted.busy else plan


def refusals(facts: Facts, wanted: Wanted) -> Iterator[str]:
    """Why nothing may be changed at all; known before anything is."""
    unread = [name for name in _NEEDED if name in facts.errors]
    if unread:
        yield f"{unread[0]} cannot be read: {facts.errors[unread[0]]}"
        return
    if not facts.gpus:
        yield "no NVIDIA GPU is on the PCI bus; look at `lspci -d 10de:` and the machine's event log"
        return
    if wanted.source != IMAGE:
        yield from _system(wanted)
        yield from _kind(facts, wanted)
    asked = preflight.Asked(wanted.source, wanted.version, wanted.cuda, "", 0)
    for finding in preflight.misfits(asked, facts, wanted.models):
        yield f"{finding.message}; {finding.fix}"
    if wanted.source == IMAGE and wanted.version and facts.driver.loaded_version not in ("", wanted.version):
        yield (
            f"the image brings driver {facts.driver.loaded_version} and fleet_nvidia_driver_version asks for "
            f"{wanted.version}; use an image with it, or set fleet_nvidia_source"
        )


def flavour(facts: Facts, wanted: Wanted) -> str:
    """Which kernel modules to install: the ones asked for, else those that the GPUs need, open where both do."""
    return chosen(wanted.modules, filter(None, map(wanted.models.needs, facts.gpus)))


def kernels(facts: Facts) -> tuple[str, ...]:
    """The kernels that must have a module: the running one, and the one that the next boot takes."""
    running, newest = facts.kernel.release or "", (facts.kernel.installed or ("",))[-1]
    return tuple(dict.fromkeys(name for name in (running, newest) if name))


def wanted_packages(facts: Facts, wanted: Wanted) -> tuple[driver_packages.Wanted, ...]:
    """The packages that the host should have."""
    return driver_packages.packages(
        wanted.source, wanted.system, wanted.version, flavour(facts, wanted), kernels(facts)
    )


def to_install(facts: Facts, wanted: Wanted) -> dict[str, str]:
    """{package: version (empty: any)} of what is not there as asked, with the headers that its modules need.

    Nothing of an image, nor where nothing may be changed.
    """
    if wanted.source == IMAGE or any(refusals(facts, wanted)):
        return {}
    asked = {one.name: one.version for one in wanted_packages(facts, wanted)}
    found = {name: asked[name] for name in lacking(asked, {one.name: one for one in facts.driver.packages or ()})}
    if found and driver_packages.builds_modules(wanted.source) and facts.kernel.headers is False:
        found[f"linux-headers-{facts.kernel.release}"] = ""
    return found


def _system(wanted: Wanted) -> Iterator[str]:
    if not driver_packages.supported(wanted.source, wanted.system):
        yield (
            f"fleet_nvidia_source {wanted.source} has no packages for {wanted.system}; use Debian 12 or Ubuntu 24.04 "
            "and "
            "their own source, nvidia or image"
        )


def _kind(facts: Facts, wanted: Wanted) -> Iterator[str]:
    for needs in filter(None, map(wanted.models.needs, facts.gpus)):
        if wanted.modules not in (AUTO, EITHER) and needs.modules not in (EITHER, wanted.modules):
            yield (
                f"{needs.name} needs the {needs.modules} kernel modules and nvidia_driver_modules is {wanted.modules}; "
                "set it to auto"
            )


def _next(facts: Facts, wanted: Wanted, done: Mapping[tuple[str, ...], str]) -> Plan:
    """The first step that is still to be done, or what its failure means."""
    release = facts.kernel.release or ""
    asked = wanted_packages(facts, wanted)
    # All that comes in the driver's version, such as nvidia-persistenced, changes with it alone.
    mine = [
        one
        for one in facts.driver.packages or ()
        if driver_packages.is_driver(one.stem) or one.upstream == wanted.version
    ]
    module = (facts.driver.on_disk or {}).get(release)
    kind = flavour(facts, wanted)
    warnings: list[str] = []
    for action in _on_disk(facts, wanted, asked, mine, kind):
        if action.key not in done:
            return Plan((action,))
        said = (
            f"{action.why}; the attempt to {action.kind} it failed{f': {done[action.key]}' if done[action.key] else ''}"
        )
        if action.kind == FOLLOW:
            warnings.append(f"{said}; after an upgrade of the kernel run site.yml before the reboot")
            continue
        if action.kind != BUILD or action.target == (release,):
            return Plan(problems=(said,))
        # The next boot would come up without a driver; what runs now is as it should be.
        warnings.append(f"{said}; do not reboot before that is mended")
    assert module is not None  # _on_disk asks for one
    if facts.driver.nouveau:
        return _nouveau(wanted, done)
    loaded = (facts.driver.loaded_version, facts.driver.loaded_flavour)
    if loaded != (wanted.version, kind):
        # What is loaded was signed well enough.
        if problem := _secure_boot(facts, module):
            return Plan(problems=(problem,))
        return _load(facts, wanted, module, done)
    if problem := nvml_problem(facts):
        return Plan(problems=(problem,))
    settled = _settled(facts, wanted, done)
    return replace(settled, warnings=(*warnings, *settled.warnings))


def _on_disk(
    facts: Facts, wanted: Wanted, asked: Iterable[driver_packages.Wanted], mine: list[Package], kind: str
) -> Iterator[Action]:
    broken = [one for one in facts.driver.packages or () if one.state not in ("installed", "not-installed")]
    if broken:
        yield Action(REPAIR, f"{broken[0].name} is {broken[0].state}: its installation was interrupted")
    there = {one.name: one for one in facts.driver.packages or ()}
    for one in asked:
        found = there.get(one.name)
        if found is None:
            yield Action(INSTALL, f"{one.name} {one.version}".strip() + " is not installed")
        elif one.version and found.upstream != one.version:
            yield Action(INSTALL, f"{one.name} is {found.version} and should be {one.version}")
    free = [one.name for one in mine if not (one.held or driver_packages.follows_kernels(one.stem))]
    if free:
        yield Action(HOLD, f"{free[0]} is not held, so `apt upgrade` could change it", tuple(free))
    for release in kernels(facts):
        module = (facts.driver.on_disk or {}).get(release)
        if module is None or (module.version, module.flavour) != (wanted.version, kind):
            has = f"has the {module.flavour} module {module.version}" if module else "has no module"
            which = "the running kernel" if release == facts.kernel.release else "the kernel that the next boot takes,"
            why = f"{which} {release} {has} and needs the {kind} one of {wanted.version}"
            yield Action(BUILD, why, (release,))
    whole = {*(facts.kernel.packages or ()), *(name for name, one in there.items() if one.state == "installed")}
    for name in driver_packages.followers(wanted.source, wanted.version, kind, facts.kernel.followed):
        if name not in whole:
            yield Action(FOLLOW, f"without {name} the next kernel that apt brings has no module", (name,))


def _secure_boot(facts: Facts, module: Module) -> str:
    if facts.kernel.secure_boot != "on":
        return ""
    keys = facts.kernel.signing_keys or {}
    key = next(iter(keys), "/var/lib/dkms/mok.pub")
    steps = (
        f"run `mokutil --import {key}`, reboot, and enrol the key at the machine's console, or take Ubuntu's signed "
        "modules "
        "(fleet_nvidia_source ubuntu)"
    )
    if not module.signer:
        return (
            f"Secure Boot is on and {module.path} is signed by nobody; have DKMS sign it (package shim-signed), then "
            f"{steps}"
        )
    if _untrusted(facts, module):
        return f"Secure Boot is on and the firmware does not trust the key that signed {module.path}; {steps}"
    return ""


def _untrusted(facts: Facts, module: Module) -> bool:
    """Whether the module is signed with a key of this host that the firmware does not trust.

    By the certificate where modinfo and the keys' files tell it: signed by none of them, whether it loads is for the
    kernel to say. Else by the signer's name.
    """
    keys, serials = facts.kernel.signing_keys or {}, facts.kernel.key_serials or {}
    if module.key and serials and set(serials) == set(keys):
        return any(serial == module.key and not keys[path] for path, serial in serials.items())
    return _BUILT_HERE.fullmatch(module.signer) is not None and not any(keys.values())


def _nouveau(wanted: Wanted, done: Mapping[tuple[str, ...], str]) -> Plan:
    if not wanted.nouveau_off:
        return Plan(
            problems=(
                "nouveau is loaded and no file of modprobe.d keeps it off; apply the role node_tuning with profile gpu",
            )
        )
    action = Action(INITRAMFS, "the initramfs is older than the file that keeps nouveau off")
    if wanted.stale_initramfs and action.key not in done:
        return Plan((action,))
    if why := done.get(action.key):
        return Plan(problems=(f"{action.why}, and it could not be made again: {why}",))
    return Plan(reboot="nouveau is loaded, and a reboot without it makes room for NVIDIA's driver")


def _load(facts: Facts, wanted: Wanted, module: Module, done: Mapping[tuple[str, ...], str]) -> Plan:
    old = facts.driver.loaded_version
    if not old:
        action = Action(LOAD, f"no NVIDIA module is loaded and {module.version} is on the disk")
        if action.key not in done:
            return Plan((action,))
        return Plan(
            problems=(
                f"the module {module.version} does not load: {done[action.key] or 'modprobe gave no reason'}; look at "
                "the "
                "kernel log for NVRM",
            )
        )
    kind = "" if facts.driver.loaded_flavour == module.flavour else f"{facts.driver.loaded_flavour} "
    action = Action(RELOAD, f"the {kind}module {old} is loaded and {module.version} ({module.flavour}) is on the disk")
    if action.key not in done:
        return Plan((action,))
    return Plan(reboot=f"{action.why}, and it is in use")


def _settled(facts: Facts, wanted: Wanted, done: Mapping[tuple[str, ...], str]) -> Plan:
    """The driver is as asked: its daemon and the GPUs' modes."""
    actions = []
    if facts.driver.persistenced not in (None, "not-found", "active"):
        actions.append(Action(PERSIST, f"nvidia-persistenced is {facts.driver.persistenced}"))
    found = settings.differences(facts.nvml.gpus or (), wanted.settings)
    actions += [Action(SET, one.what, one.command) for one in found if one.command]
    fresh = tuple(action for action in actions if action.key not in done)
    tried = [action for action in actions if action.key in done]
    problems = [f"{action.why}; {done[action.key] or 'setting it had no effect'}" for action in tried]
    problems += [one.what for one in found if not (one.command or one.reboot)]
    reboot = next((one.what for one in found if one.reboot), "")
    if wanted.busy and (fresh or reboot):
        return _waiting(fresh[0].why if fresh else reboot, wanted, Plan(problems=tuple(problems)))
    return Plan(fresh, "" if fresh else reboot, tuple(problems))


def _left_alone(facts: Facts, wanted: Wanted, plan: Plan) -> Plan:
    """A host that may do work is not changed: what it lacks is said, and what changes it."""
    left = Plan(problems=plan.problems, warnings=plan.warnings, waits=plan.waits)
    loaded = facts.driver.loaded_version or "no driver"
    if loaded != wanted.version:
        return _waiting(f"asks for driver {wanted.version}, {loaded} is loaded", wanted, left)
    if plan.actions or plan.reboot:
        return _waiting(plan.actions[0].why if plan.actions else plan.reboot, wanted, left)
    return left


def left_alone(plan: Plan, busy: str) -> Plan:
    """The plan of a host to which work came while it was worked on: its reboot waits."""
    said = _when_idle(plan.reboot, busy)
    return replace(plan, reboot="", problems=(*plan.problems, said), waits=said)


def _waiting(what: str, wanted: Wanted, plan: Plan) -> Plan:
    said = _when_idle(what, wanted.busy)
    return replace(plan, warnings=(*plan.warnings, said), waits=said)


def _when_idle(what: str, busy: str) -> str:
    return f"{what}, and {busy}; {WHEN_IDLE}"


def _of_image(plan: Plan) -> Plan:
    """What the image should have otherwise: said, and never changed."""
    found = (*(action.why for action in plan.actions), *([plan.reboot] if plan.reboot else []))
    said = tuple(f"{one}; nothing of what an image brings is changed: set it there" for one in found)
    return Plan(problems=plan.problems, warnings=(*plan.warnings, *said))
