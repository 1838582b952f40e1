"""The packages of a driver by their source, and which packages belong to a driver at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ansible_collections.muster.fleet.plugins.module_utils.nvidia import driver_names
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.driver import OPEN
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.driver_names import DEBIAN, UBUNTU

# What `Package:` of apt's preferences covers: all that is made of one release of the driver, and nothing with another
# version of its own that could be meant by the same version.
PINNED = "nvidia-* libnvidia-* libcuda1 cuda-drivers* firmware-nvidia-* xserver-xorg-video-nvidia*"
# The priority of these where they are of NVIDIA's repository and the driver is not: what is of no driver stays
# (specific before general), and the driver, whose packages have the same names there, never.
FROM_NVIDIA_BESIDE = {"nvidia-container-toolkit* libnvidia-container*": 500, PINNED: -1}
_DRIVER = re.compile(
    r"libnvidia-(ml1|compute.*|cfg1.*)|libcuda1|cuda-drivers.*|nvidia-(driver(?!-pinning).*|smi|utils.*|dkms.*|headless.*"
    r"|open(-\d+|-kernel.*)?|kernel.*|compute-utils.*|tesla.*|legacy.*)|linux-modules-nvidia-.*"
)


# That of one kernel has its release in the name: linux-modules-nvidia-570-server-open-6.8.0-60-generic.
_BRANCHED = re.compile(r"-\d{3}(-|$)")
_FOLLOWS = re.compile(r"linux-modules-nvidia-(?!.*-\d+\.\d+\.\d+-).*")


@dataclass(frozen=True)
class Wanted:
    """A package and its upstream version; empty for any, where it is not made with the driver."""

    name: str
    version: str


def is_driver(name: str) -> bool:
    """Whether a package is a part of a driver: its modules, its libraries, its tools."""
    return _DRIVER.fullmatch(name) is not None


def supported(source: str, system: str) -> bool:
    """Whether a system has packages of that source."""
    return (source, system) in (("nvidia", DEBIAN), ("nvidia", UBUNTU), ("debian", DEBIAN), ("ubuntu", UBUNTU))


def packages(source: str, system: str, version: str, flavour: str, kernels: tuple[str, ...]) -> tuple[Wanted, ...]:
    """What to install; `kernels`: the releases that get prebuilt modules, which Ubuntu's source alone has.

    Compute only: no X server. Raises ValueError for a version that does not begin with a branch.
    """
    branch, is_open = _branch(version), flavour == OPEN
    found = driver_names.names(source, system, branch, is_open=is_open)
    wanted = tuple(Wanted(one.name, version if one.with_driver else "") for one in found)
    if builds_modules(source):
        return wanted
    suffix = "-open" if is_open else ""
    return (*wanted, *(Wanted(f"linux-modules-nvidia-{branch}-server{suffix}-{kernel}", "") for kernel in kernels))


def unread(source: str, system: str, version: str, flavour: str) -> tuple[str, ...]:
    """The names among `packages` that are in no page of their source, but reported or assumed."""
    found = driver_names.names(source, system, _branch(version), is_open=flavour == OPEN)
    return tuple(one.name for one in found if one.mark != driver_names.READ)


def giving_way(source: str, system: str, version: str, installed: Iterable[str]) -> tuple[str, ...]:
    """Of the installed packages those that NVIDIA's Ubuntu drivers of the other kind of names have to replace.

    apt does not take them away by itself where only they name the conflict.
    """
    if (source, system) != ("nvidia", UBUNTU):
        return ()
    to_branch = _branch(version) < driver_names.UNBRANCHED
    mine = (name for name in installed if is_driver(name) or name == "nvidia-persistenced")
    return tuple(name for name in mine if (_BRANCHED.search(name) is None) == to_branch)


def _branch(version: str) -> int:
    return int(version.split(".")[0])


def followers(source: str, version: str, flavour: str, kernels: tuple[str, ...]) -> tuple[str, ...]:
    """What has to follow the kernels that apt brings by itself, so that the next one has a module: headers to build it
    with, or Ubuntu's prebuilt one. `kernels`: flavours, such as amd64 or generic.

    Names: Debian's linux-headers-amd64 and linux-headers-cloud-amd64 (source linux-signed-amd64), Ubuntu's
    linux-headers-generic (source linux-meta) and linux-modules-nvidia-570-server-open-generic (source
    linux-restricted-modules).
    """
    if builds_modules(source):
        return tuple(f"linux-headers-{kernel}" for kernel in kernels)
    suffix = "-open" if flavour == OPEN else ""
    return tuple(f"linux-modules-nvidia-{version.split('.')[0]}-server{suffix}-{kernel}" for kernel in kernels)


def follows_kernels(name: str) -> bool:
    """Whether a package brings modules for each new kernel: held, it could not."""
    return _FOLLOWS.fullmatch(name) is not None


def builds_modules(source: str) -> bool:
    """Whether DKMS builds the modules on the host."""
    return source != "ubuntu"
