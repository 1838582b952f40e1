"""What of a GPU node would stop its NVIDIA stack, found before anything is changed. Asks only what the source needs.

What the roles mend by themselves (a driver that is not installed, nouveau, packages that are half there) is no problem
where they install; a machine image has to bring it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import beside, driver_packages, nvml
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.explain import nvml_problem
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import Facts
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import (
    AUTO,
    Models,
    Needs,
    chosen,
    is_older,
    mismatched,
    modules_for,
    number,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.offers import (
    Offers,
    apt_versions,
    free_bytes,
    repository_fault,
)

IMAGE, NVIDIA, DEBIAN, UBUNTU = "image", "nvidia", "debian", "ubuntu"
GIB = 2**30
_MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Asked:
    """What the inventory asks of the node. `driver_version` is empty where any will do, `cuda` none, 12 or 13.

    `modules`: auto, open or proprietary. `beside`: {package: version} of what the repository has to give beside the
    driver.
    """

    source: str
    driver_version: str
    cuda: str
    repository_url: str
    min_free_bytes: int
    modules: str = AUTO
    beside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class System:
    """Where the stack is to run: id and machine as os-release and uname name them."""

    os_id: str
    machine: str


@dataclass(frozen=True)
class Finding:
    """One problem, without the host's name: what is wrong, and what to do.

    `of_machine`: a fact of this machine, which holds it alone, and no mistake of the inventory.
    """

    message: str
    fix: str
    of_machine: bool = False


def observe(root: Path, run: Run, asked: Asked, facts: Facts, models: Models, timeout_s: float) -> Offers:
    """What the host could install, as far as that is relevant. Raises OSError."""
    has_driver = asked.source == IMAGE or is_there(facts, asked.driver_version)
    others = beside.missing(asked.beside, run) if asked.repository_url else []
    is_used = (asked.source == NVIDIA and not has_driver) or others
    fault = repository_fault(asked.repository_url, timeout_s) if is_used else ""
    if has_driver:
        return Offers(None, fault, {})
    try:
        versions = apt_versions(root, _packages(asked, facts, models), run)
    except CommandError:
        versions = None
    return Offers(versions, fault, free_bytes(root))


def problems(asked: Asked, facts: Facts, models: Models, offers: Offers, system: System) -> list[Finding]:
    """Everything that speaks against the node's stack."""
    if asked.source == IMAGE:
        # A version that the inventory gives is judged as the inventory's; all else is the machine's image's.
        versions = list(_versions(asked, facts, models))
        given, own = (versions, []) if asked.driver_version else ([], versions)
        own += [*_flavours(asked, facts, models), *_two_drivers(asked, facts), *_image(asked, facts)]
        return [*given, *(replace(one, of_machine=True) for one in own), *_repository(offers)]
    found = [*misfits(asked, facts, models), *_repository(offers)]
    if is_there(facts, asked.driver_version):
        return found
    return [
        *found,
        *_system(asked, facts, models, system),
        *_installable(asked, facts, models, offers),
        *_space(asked, offers),
    ]


def _repository(offers: Offers) -> Iterator[Finding]:
    """The repository that something is to be installed from, whatever is there already."""
    if offers.repository_fault:
        yield Finding(
            offers.repository_fault, "start it, let the host reach it, or correct fleet_nvidia_repository_url"
        )


def misfits(asked: Asked, facts: Facts, models: Models) -> list[Finding]:
    """What speaks against the driver asked for, by the GPUs, the CUDA libraries and the drivers that are there."""
    return [*_versions(asked, facts, models), *_flavours(asked, facts, models), *_two_drivers(asked, facts)]


def is_there(facts: Facts, version: str) -> bool:
    """Whether the driver runs already and will after a reboot, so that nothing is to be installed."""
    module = (facts.driver.on_disk or {}).get(facts.kernel.release or "")
    return bool(version) and facts.driver.loaded_version == version and module is not None and module.version == version


def _versions(asked: Asked, facts: Facts, models: Models) -> Iterator[Finding]:
    """The driver against GPUs and CUDA libraries; that of an image is the one that runs."""
    is_asked = asked.source != IMAGE or bool(asked.driver_version)
    version = asked.driver_version if is_asked else facts.nvml.driver_version or facts.driver.loaded_version or ""
    name = f"fleet_nvidia_driver_version {version}" if is_asked else f"its driver {version}"
    fix = "give another one" if is_asked else "make the image with another one"
    if version and (branch := number(version)[0]) not in models.branches and branch < max(models.branches):
        near = min(models.branches, key=lambda known: abs(known - branch))
        yield Finding(
            f"{name} is of branch {branch}, which is none of NVIDIA's for data centers since "
            f"{min(models.branches)} (the nearest is {near})",
            fix,
        )
        return
    needs = {device.device: models.needs(device) for device in facts.gpus}
    for device, one in needs.items():
        if one is None and asked.source != IMAGE:
            yield Finding(
                f"its GPU with PCI id 10de:{device} is of no known architecture, so no driver can be chosen",
                "add it to gpu_burnin/hardware/skus.yaml and drivers.yaml, or set fleet_nvidia_source: image",
            )
    for one in _needs(facts, models) if version else ():
        yield from _fits(version, name, fix, one)
    least = models.oldest_driver_for_cuda(asked.cuda)
    if version and least and is_older(version, least):
        yield Finding(
            f"{name} is older than {least}, which the CUDA {asked.cuda} libraries of the burn-in need",
            f"{fix}, or set gpu_burnin_cuda lower",
        )


def _needs(facts: Facts, models: Models) -> list[Needs]:
    return list(dict.fromkeys(one for one in map(models.needs, facts.gpus) if one is not None))


def _flavours(asked: Asked, facts: Facts, models: Models) -> Iterator[Finding]:
    """The kernel modules, open or proprietary, against the GPUs."""
    known = _needs(facts, models)
    if known and not modules_for(known):
        yield Finding(
            f"no kernel modules drive all of its GPUs: {_by_modules(known)}", "put them into different machines"
        )
    loaded = facts.driver.loaded_flavour or ""
    for one in known if asked.source == IMAGE else ():
        if mismatched(loaded, one):
            yield Finding(
                f"its {loaded} kernel modules do not drive {one.name}", f"make the image with {one.modules} ones"
            )


def _fits(version: str, name: str, fix: str, needs: Needs) -> Iterator[Finding]:
    if is_older(version, needs.since_driver):
        yield Finding(f"{name} is too old for {needs.name}, which needs {needs.since_driver} or newer", fix)
    if needs.until_branch is not None and number(version)[0] > needs.until_branch:
        yield Finding(f"{name} is too new for {needs.name}: its last branch is {needs.until_branch}", fix)


def _by_modules(needs: Iterable[Needs]) -> str:
    return ", ".join(f"{one.name} needs {one.modules} ones" for one in needs)


def _two_drivers(asked: Asked, facts: Facts) -> Iterator[Finding]:
    """Packages of two sources, or NVIDIA's installer beside packages, overwrite each other's files."""
    of: dict[str, list[str]] = {}
    for package in facts.driver.packages or ():
        if package.source and driver_packages.is_driver(package.name):
            of.setdefault(package.source, []).append(package.name)
    if len(of) > 1:
        named = " and ".join(f"{source} ({', '.join(sorted(names)[:3])})" for source, names in sorted(of.items()))
        keep = asked.source if asked.source in of else "one"
        yield Finding(f"has driver packages of two sources: {named}", f"purge those that are not of {keep}")
    elif asked.source != IMAGE and of and asked.source not in of:
        ((source, names),) = of.items()
        yield Finding(
            f"has driver packages of {source} ({', '.join(sorted(names)[:3])}), "
            f"but fleet_nvidia_source is {asked.source}",
            f"purge them, or set fleet_nvidia_source: {source}",
        )
    if facts.driver.runfile and (of or asked.source != IMAGE):
        yield Finding("has a driver of NVIDIA's installer beside packages", "run: nvidia-uninstall")


def _image(asked: Asked, facts: Facts) -> Iterator[Finding]:
    """What the image itself must bring. A sick GPU or driver is not its fault: that is the burn-in's to find."""
    if facts.nvml.code == nvml.DRIVER_NOT_LOADED and (facts.driver.loaded_version or not facts.gpus):
        return
    if facts.nvml.code in (nvml.LIBRARY_NOT_FOUND, nvml.DRIVER_NOT_LOADED, nvml.LIBRARY_MISMATCH):
        yield Finding(nvml_problem(facts).partition(";")[0], _fix_of(nvml_problem(facts)))
    elif asked.driver_version and facts.nvml.driver_version not in (None, asked.driver_version):
        yield Finding(
            f"its image has driver {facts.nvml.driver_version}, "
            f"and fleet_nvidia_driver_version is {asked.driver_version}",
            "boot another image, or correct the variable",
        )


def _fix_of(sentence: str) -> str:
    return sentence.partition("; ")[2] or "make another image"


def _system(asked: Asked, facts: Facts, models: Models, system: System) -> Iterator[Finding]:
    release = facts.kernel.release
    if release is not None and number(release)[:2] < number(models.oldest_kernel):
        yield Finding(
            f"runs kernel {release}, and NVIDIA's drivers need {models.oldest_kernel} or newer", "boot a newer kernel"
        )
    if asked.source in (DEBIAN, UBUNTU) and system.os_id and system.os_id != asked.source:
        yield Finding(f"fleet_nvidia_source is {asked.source}, but it runs {system.os_id}", "choose another source")
    if system.machine not in _MACHINES:
        yield Finding(f"NVIDIA has no driver for {system.machine}", f"use a machine of {' or '.join(_MACHINES)}")


def _packages(asked: Asked, facts: Facts, models: Models) -> list[str]:
    """The packages that tell whether the driver can be installed for the running kernel."""
    release = facts.kernel.release
    if release is None:
        return []
    if asked.source == UBUNTU:
        return [one.name for one in _ubuntus(asked, facts, models, release)]
    headers = [] if facts.kernel.headers else [f"linux-headers-{release}"]
    return [*headers, *(["nvidia-smi"] if asked.source == DEBIAN else [])]


def _ubuntus(asked: Asked, facts: Facts, models: Models, release: str) -> tuple[driver_packages.Wanted, ...]:
    """What the role has to install from Ubuntu; nothing where no modules drive all GPUs, which is told elsewhere."""
    kind = chosen(asked.modules, _needs(facts, models))
    if not kind or not asked.driver_version:
        return ()
    wanted = driver_packages.packages(UBUNTU, driver_packages.UBUNTU, asked.driver_version, kind, (release,))
    # Ubuntu's archive keeps few releases of a branch: a host may have one that is there no more.
    there = {one.name: one.upstream for one in facts.driver.packages or () if one.state == "installed"}
    return tuple(one for one in wanted if one.name not in there or one.version not in ("", there[one.name]))


def _of_ubuntu(asked: Asked, facts: Facts, models: Models, offers: Offers, release: str) -> Iterator[Finding]:
    """Its signed modules for one kernel, in the kind that the GPUs need, and the driver in its version."""
    wanted = _ubuntus(asked, facts, models, release)
    kind, branch = chosen(asked.modules, _needs(facts, models)), asked.driver_version.partition(".")[0]
    unsigned = [one.name for one in wanted if not one.version and offers.has(one.name) is False]
    for name in unsigned:
        yield Finding(
            f"Ubuntu has no signed {kind} modules of driver {branch} for its kernel {release} ({name})",
            "run apt-get update there, or boot a kernel that it has them for",
        )
    lacks = [one.name for one in wanted if one.version and offers.has(one.name, one.version) is False]
    others = {name: ", ".join(versions) for name in lacks if (versions := (offers.versions or {}).get(name))}
    if others or (lacks and not unsigned):
        name, known = next(iter(others.items()), (lacks[0], "none"))
        yield Finding(
            f"Ubuntu has no driver {asked.driver_version} (of {name} apt knows {known})",
            "run apt-get update there, or set fleet_nvidia_driver_version to one that it has",
        )


def _installable(asked: Asked, facts: Facts, models: Models, offers: Offers) -> Iterator[Finding]:
    release = facts.kernel.release
    if asked.source == UBUNTU and release is not None:
        yield from _of_ubuntu(asked, facts, models, offers, release)
        return
    if asked.source == DEBIAN and offers.has("nvidia-smi") is False:
        yield Finding(
            "apt knows no package nvidia-smi",
            "add contrib, non-free and non-free-firmware to Debian's sources, run apt-get update",
        )
    elif asked.source == DEBIAN and offers.has("nvidia-smi", asked.driver_version) is False:
        offered = ", ".join((offers.versions or {}).get("nvidia-smi", ()))
        yield Finding(
            f"Debian has no driver {asked.driver_version} (apt knows {offered})",
            "set fleet_nvidia_driver_version to one of these, or choose another source",
        )
    if facts.kernel.headers is False and offers.has(f"linux-headers-{release}") is False:
        yield Finding(
            f"has no headers for its running kernel {release} and apt knows none, so no module can be built for it",
            "run apt-get update there, or boot the newest kernel of its repository",
        )
    if facts.kernel.secure_boot == "on":
        yield from _secure_boot(facts)


def _secure_boot(facts: Facts) -> Iterator[Finding]:
    steps = "enrol the key that DKMS signs with (mokutil --import, then confirm at the next boot), or switch it off"
    unread = facts.errors.get("kernel.signing_keys")
    if unread:
        yield Finding(
            f"Secure Boot is on, and nobody can tell if the firmware trusts the key that DKMS signs with: {unread}",
            "install mokutil there",
        )
    elif not any((facts.kernel.signing_keys or {}).values()):
        what = (
            "the firmware does not trust the key that DKMS signs with"
            if facts.kernel.signing_keys
            else "DKMS has no key"
        )
        yield Finding(f"Secure Boot is on and {what}, so modules that are built there would not load", steps)


def _space(asked: Asked, offers: Offers) -> Iterator[Finding]:
    for folder, size in offers.free_bytes.items():
        if size < asked.min_free_bytes:
            yield Finding(
                f"has {size / GIB:.1f} GiB free on {folder}, "
                f"{asked.min_free_bytes / GIB:.1f} are needed for the NVIDIA stack",
                "free some, or lower preflight_min_nvidia_free_bytes",
            )
