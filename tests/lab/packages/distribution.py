"""What the distribution brings: the stand-in machine with DKMS, and kernels with their headers.

A lab host takes them from this machine, so that nothing is fetched from a real package source.
"""

from __future__ import annotations

from pathlib import Path

from .deb import Package, package, with_scripts
from .driver import MACHINE

DEBIAN, UBUNTU = (
    "Debian Kernel Team <debian-kernel@lists.debian.org>",
    "Ubuntu Kernel Team <kernel-team@lists.ubuntu.com>",
)
# Each has an image and headers; a host that runs another kernel finds no headers for it. The newest is last.
KERNELS = {
    "debian12": ("6.1.0-41-amd64", "6.1.0-42-amd64"),
    "ubuntu2404": ("6.8.0-88-generic", "6.8.0-90-generic"),
}
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


def packages(distribution: str) -> list[Package]:
    """Kernels and headers."""
    maintainer = DEBIAN if distribution.startswith("debian") else UBUNTU
    newest = KERNELS[distribution][-1]
    built = [one for release in KERNELS[distribution] for one in (_image(release), _headers(release))]
    for kind in ("image", "headers"):
        meta = f"linux-{kind}-{_META[distribution]}"
        built.append(package(meta, f"{newest.split('-', 1)[0]}.1", {}, (f"linux-{kind}-{newest}",)))
    return [Package(**{**vars(one), "maintainer": maintainer}) for one in built]


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
