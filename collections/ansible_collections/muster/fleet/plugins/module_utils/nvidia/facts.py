"""Everything of a host that the NVIDIA stack depends on, in one reading. Changes nothing; works without a driver."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, NotInstalledError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import (
    driver,
    fabric,
    kernel,
    library,
    nvml,
    packages,
    services,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.packages import Package
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.pci import PciDevice, devices

_T = TypeVar("_T")

_FABRIC = re.compile(r"nvidia-fabric-?manager.*|nvlsm|nvidia-imex.*|libnvsdm.*")
_DCGM = re.compile(r"datacenter-gpu-manager.*")
_TOOLKIT = re.compile(r"nvidia-container-toolkit.*|libnvidia-container.*")
_KERNEL = re.compile(r"linux-(image|headers)-.*")
_SERVICES = ("nvidia-fabricmanager", "nvidia-dcgm", "nvidia-persistenced")


@dataclass(frozen=True)
class Driver:
    """The driver: loaded (empty: none is), on disk by kernel release, as packages, and what stands in its way.

    `nouveau`: the kernel's own driver is loaded. `runfile`: NVIDIA's installer was run, which no package manager knows.
    """

    loaded_version: str | None
    loaded_flavour: str | None
    on_disk: dict[str, driver.Module] | None
    packages: tuple[Package, ...] | None
    nouveau: bool | None
    runfile: bool
    persistenced: str | None


@dataclass(frozen=True)
class Fabric:
    """NVSwitches on the PCI bus, and what runs them; `service`: systemd's ActiveState or not-found.

    `platform` is what the module nvidia_fabric goes by: NVSwitches of NVLink 5 and of a rack are not on the bus.
    """

    platform: fabric.Platform | None
    nvswitches: int | None
    packages: tuple[Package, ...] | None
    service: str | None


@dataclass(frozen=True)
class Dcgm:
    """DCGM's packages and its host engine; `service`: systemd's ActiveState or not-found."""

    packages: tuple[Package, ...] | None
    service: str | None


@dataclass(frozen=True)
class Toolkit:
    """The container toolkit's packages, and the version that `nvidia-ctk` tells of itself (empty: there is none)."""

    packages: tuple[Package, ...] | None
    version: str | None


@dataclass(frozen=True)
class Facts:
    """A host. What could not be read is None, and `errors` says why under the fact's name, such as `kernel.release`.

    `simulated`: what is read here is no real kernel's or no real GPU's.
    """

    pci: tuple[PciDevice, ...] | None
    kernel: kernel.Kernel
    driver: Driver
    library: library.Library
    nvml: nvml.Nvml
    fabric: Fabric
    dcgm: Dcgm
    toolkit: Toolkit
    simulated: bool
    errors: dict[str, str]

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """The GPUs on the PCI bus, whether a driver knows them or not."""
        return tuple(device for device in self.pci or () if device.is_gpu)

    def to_json(self) -> dict[str, Any]:
        """The facts as a module returns them."""
        return asdict(self)


def gather(root: Path, run: Run, kernel_root: Path | None = None, nvml_timeout_s: float = nvml.TIMEOUT_S) -> Facts:
    """Read everything.

    `kernel_root` is where proc, sys and lib/modules of the kernel are, where that is not `root`: for labs, whose
    facts are then marked as simulated.
    """
    tree = kernel_root or root
    errors: dict[str, str] = {}

    def fact(name: str, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except (OSError, ValueError, CommandError) as error:
            errors[name] = str(error)
            return None

    release = fact("kernel.release", lambda: kernel.release(tree))
    boot = fact("kernel.secure_boot", lambda: kernel.secure_boot(tree))
    loaded = fact("driver.loaded", lambda: driver.loaded(tree))
    bus = fact("pci", lambda: devices(tree))
    known = fact("packages", lambda: packages.installed(run))
    states = fact("services", lambda: services.states(_SERVICES, run)) or {}
    answers = nvml.read(run, may_start=bool(loaded and loaded.version), timeout_s=nvml_timeout_s)
    found = fact("library", lambda: library.find(run)) or library.Library(None, None)
    if not found.version and answers.library_version:
        # A file without a version in its name, or in a folder that the loader's cache leaves out.
        found = library.Library(answers.library_version, found.path or None)

    def those(pattern: re.Pattern[str]) -> tuple[Package, ...] | None:
        return None if known is None else tuple(one for one in known if pattern.fullmatch(one.name))

    other = re.compile("|".join(pattern.pattern for pattern in (_FABRIC, _DCGM, _TOOLKIT, _KERNEL)))
    kernels = those(_KERNEL)
    return Facts(
        pci=bus,
        kernel=kernel.Kernel(
            release=release,
            headers=None if release is None else kernel.has_headers(tree, release),
            secure_boot=boot,
            signing_keys=fact("kernel.signing_keys", lambda: kernel.signing_keys(root, run)) if boot == "on" else None,
            cmdline=fact("kernel.cmdline", lambda: kernel.cmdline(tree)),
            installed=fact("kernel.installed", lambda: kernel.installed(tree)),
            packages=None if kernels is None else tuple(one.name for one in kernels if one.state == "installed"),
            key_serials=kernel.key_serials(root) if boot == "on" else None,
        ),
        driver=Driver(
            loaded_version=loaded.version if loaded else None,
            loaded_flavour=loaded.flavour if loaded else None,
            on_disk=fact("driver.on_disk", lambda: driver.on_disk(tree, run)),
            packages=None if known is None else tuple(one for one in known if not other.fullmatch(one.name)),
            nouveau=fact("driver.nouveau", lambda: driver.nouveau_loaded(tree)),
            runfile=(root / "usr/bin/nvidia-uninstall").exists(),
            persistenced=states.get("nvidia-persistenced"),
        ),
        library=found,
        nvml=answers,
        fabric=Fabric(
            platform=fact("fabric.platform", lambda: fabric.platform(tree)),
            nvswitches=None if bus is None else sum(device.is_nvswitch for device in bus),
            packages=those(_FABRIC),
            service=states.get("nvidia-fabricmanager"),
        ),
        dcgm=Dcgm(those(_DCGM), states.get("nvidia-dcgm")),
        toolkit=Toolkit(those(_TOOLKIT), fact("toolkit.version", lambda: toolkit_version(run))),
        simulated=tree != root or answers.simulated,
        errors=errors,
    )


def toolkit_version(run: Run) -> str:
    """The version that `nvidia-ctk` tells; empty where it is not installed. Raises CommandError."""
    try:
        done = run(["nvidia-ctk", "--version"])
    except NotInstalledError:
        return ""
    match = re.search(r"version (\d+(?:\.\d+)+\S*)", done.out)
    if done.code != 0 or match is None:
        raise CommandError(f"nvidia-ctk --version said {(done.out + done.err).strip()[:200]!r}")
    return match[1]
