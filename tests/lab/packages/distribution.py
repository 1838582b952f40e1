"""What the distribution brings: the stand-in machine with DKMS, and kernels with their headers.

A lab host takes them from this machine, so that nothing is fetched from a real package source.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .deb import Package, package, with_scripts
from .driver import KERNEL, MACHINE, VERSIONS, library_files, modprobe_files, persistenced, tool, with_ldconfig
from .machine.kernel import MODULES, OPEN, PROPRIETARY, module_text

DEBIAN, UBUNTU = (
    "Debian Kernel Team <debian-kernel@lists.debian.org>",
    "Ubuntu Kernel Team <kernel-team@lists.ubuntu.com>",
)
# Each has an image and headers; a host that runs another kernel finds no headers for it. The newest is last.
KERNELS = {
    "debian12": ("6.1.0-41-amd64", "6.1.0-42-amd64"),
    "ubuntu2404": ("6.8.0-88-generic", "6.8.0-90-generic"),
}
SIGNER = "Canonical Ltd. Kernel Module Signing"
_META = {"debian12": "amd64", "ubuntu2404": "generic"}
_PROGRAMS = ("sbin/modprobe", "sbin/rmmod", "sbin/modinfo", "sbin/lsmod", "sbin/dkms", "sbin/lab-nvidia",
             "bin/modinfo", "bin/lsmod", "bin/mokutil")  # fmt: skip
_PROGRAM = (
    f"#!/usr/bin/python3\nimport sys\nsys.path.insert(0, {MACHINE!r})\n"
    "from machine import tools\nsys.exit(tools.main(sys.argv))\n"
)


def machine() -> Package:
    """The stand-in machine: installed on a lab host before its first boot. It stands for the real DKMS too."""
    source = Path(__file__).parent / "machine"
    files = {f"{MACHINE}/machine/{path.name}": path.read_text() for path in sorted(source.glob("*.py"))}
    programs = {f"/usr/{name}": _PROGRAM for name in _PROGRAMS}
    return package("muster-lab-machine", "1", files | programs, provides="dkms (= 3.0.10), mokutil (= 0.6)")


def packages(distribution: str, libraries: Path) -> list[Package]:
    """Kernels, headers, the tools of InfiniBand; Ubuntu's own driver with modules that Canonical has signed."""
    maintainer = DEBIAN if distribution.startswith("debian") else UBUNTU
    newest = KERNELS[distribution][-1]
    built = [one for release in KERNELS[distribution] for one in (_image(release), _headers(release))]
    for kind in ("image", "headers"):
        meta = f"linux-{kind}-{_META[distribution]}"
        built.append(package(meta, f"{newest.split('-', 1)[0]}.1", {}, (f"linux-{kind}-{newest}",)))
    built.append(package("infiniband-diags", "44.0-2", {"/usr/sbin/ibstat": "#!/bin/sh\necho \"CA 'mlx5_0'\"\n"}))
    if distribution == "ubuntu2404":
        built += _prebuilt(libraries)
    return [replace(one, maintainer=maintainer) for one in built]


def _prebuilt(libraries: Path) -> list[Package]:
    """Ubuntu's branch for servers: names of its archive, where each kernel has a package of modules and DKMS none.

    The real package of modules links and signs them when it is installed; here they are in it.
    """
    version, full, branch = VERSIONS[0], f"{VERSIONS[0]}-0ubuntu0.24.04.1", f"{VERSIONS[0].split('.')[0]}-server"
    parts = [f"{name}-{branch} (= {full})" for name in ("libnvidia-compute", "nvidia-compute-utils")]

    def one_of(name: str) -> dict[str, str]:
        return {"provides": name, "conflicts": name, "replaces": name}

    built = [
        with_ldconfig(
            package(
                f"libnvidia-compute-{branch}",
                full,
                library_files("libnvidia-ml", version, libraries) | library_files("libcuda", version, libraries),
                **one_of("libnvidia-compute"),
            )
        ),
        package(
            f"nvidia-utils-{branch}", full, {"/usr/bin/nvidia-smi": tool("nvidia_smi")}, parts[:1],
            **one_of("nvidia-smi"),
        ),
        persistenced(full, f"nvidia-compute-utils-{branch}", *parts[:1], **one_of("nvidia-persistenced")),
        package(f"nvidia-kernel-common-{branch}", full, modprobe_files(), **one_of("nvidia-kernel-common")),
    ]  # fmt: skip
    for suffix, flavour in (("-open", OPEN), ("", PROPRIETARY)):
        built.append(package(f"nvidia-headless-no-dkms-{branch}{suffix}", full, {}, parts))
        for release in KERNELS["ubuntu2404"]:
            folder = f"{KERNEL}/lib/modules/{release}/kernel/nvidia-{branch.replace('-server', 'srv')}{suffix}"
            modules = {f"{folder}/{name}.ko": module_text(name, version, flavour, release, SIGNER) for name in MODULES}
            other = f"linux-modules-nvidia-{branch}{'' if suffix else '-open'}-{release}"
            name = f"linux-modules-nvidia-{branch}{suffix}-{release}"
            built.append(package(name, "6.8.0-1", modules, (f"nvidia-kernel-common-{branch}",), conflicts=other))
    return built


def _image(release: str) -> Package:
    """A kernel that runs from the next boot on."""
    return with_scripts(package(f"linux-image-{release}", "1-1", {}), postinst=f"lab-nvidia kernel {release}\n")


def _headers(release: str) -> Package:
    """Headers, for which DKMS builds at once."""
    return with_scripts(
        package(f"linux-headers-{release}", "1-1", {}),
        postinst=f"lab-nvidia headers {release}\n",
        prerm=f"lab-nvidia no-headers {release}\n",
    )
