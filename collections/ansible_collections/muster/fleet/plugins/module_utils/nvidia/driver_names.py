"""What the driver's packages are called in each source, from which branch on, and where that was read."""

from __future__ import annotations

from dataclasses import dataclass

DEBIAN, UBUNTU = "debian12", "ubuntu24.04"
# From this branch on NVIDIA's Ubuntu packages have no branch in their names (driver installation guide r590, "Ubuntu
# 590 and later packages"). Ubuntu's own archive keeps the branch: it has nvidia-headless-590-server.
UNBRANCHED = 590
# How a name is known. READ: in NVIDIA's guide or code, or in the distribution's archive. REPORTED: in what others wrote
# of their installations. ASSUMED: in neither.
READ, REPORTED, ASSUMED = "read", "reported", "assumed"


@dataclass(frozen=True)
class Name:
    """A package. `mark`: READ, REPORTED or ASSUMED. `with_driver`: it has the driver's version."""

    name: str
    mark: str
    with_driver: bool = True


def names(source: str, system: str, branch: int, *, is_open: bool) -> tuple[Name, ...]:
    """The packages of a driver for computing alone, without prebuilt modules; `branch`: 580 of 580.105.08."""
    suffix = "-open" if is_open else ""
    if source == "nvidia" and system == DEBIAN:
        # Guide r590, "compute-only": nvidia-driver-cuda nvidia-kernel-open-dkms.
        kernel = Name("nvidia-kernel-open-dkms", READ) if is_open else Name("nvidia-kernel-dkms", REPORTED)
        return (kernel, Name("nvidia-driver-cuda", READ))
    if source == "nvidia" and branch >= UNBRANCHED:
        # REPORTED: both with open modules at 615.71.09 on Ubuntu 24.04, nvidia-smi there without nvidia-utils; all of
        # them in a list of cuda-repo-ubuntu2404-13-2-local (595.45.04). NVIDIA/gpu-driver-container installs
        # nvidia-headless-no-dkms-open, and its daemon without naming it (ubuntu26.04/install.sh).
        return (Name(f"nvidia-headless{suffix}", REPORTED), Name("nvidia-persistenced", REPORTED))
    if source == "nvidia":
        # READ: control template of NVIDIA/ubuntu-packaging-nvidia-driver.
        return (Name(f"nvidia-headless-{branch}{suffix}", READ), Name(f"nvidia-utils-{branch}", READ))
    if source == "debian":
        kernel = Name("nvidia-open-kernel-dkms" if is_open else "nvidia-kernel-dkms", READ)
        libraries = (Name(name, READ) for name in ("nvidia-smi", "libnvidia-ml1", "libcuda1"))
        return (kernel, *libraries, Name("nvidia-persistenced", READ, with_driver=False))
    # READ: packages.ubuntu.com for 580-server and 590-server; ASSUMED for later ones.
    server, mark = f"{branch}-server", READ if branch <= UNBRANCHED else ASSUMED
    parts = (f"nvidia-headless-no-dkms-{server}{suffix}", f"nvidia-utils-{server}", f"nvidia-compute-utils-{server}")
    return tuple(Name(name, mark) for name in parts)
