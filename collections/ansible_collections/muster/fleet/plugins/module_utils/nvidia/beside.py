"""What a host takes from NVIDIA's repository beside its driver: fabric manager, DCGM, the container toolkit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import dcgm, fabric
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.packages import installed, lacking

IMAGE, DEBIAN = "image", "debian"
# As roles/nvidia_container_toolkit/vars/main.yml has it.
TOOLKIT = "nvidia-container-toolkit-base"


@dataclass(frozen=True)
class Parts:
    """What the roles are asked for, as their variables; an empty version installs none.

    `toolkit_version` is empty too where the toolkit is not of the repository. `imex`: nodes of IMEX are named.
    """

    dcgm_version: str = ""
    dcgm_exporter_version: str = ""
    dcgm_cuda: str = "13"
    toolkit_version: str = ""
    nvlsm_version: str = ""
    imex: bool = False


# As options of a module, whose types have the same names. Documentation: doc_fragments/nvidia_beside.py.
OPTIONS = {part.name: {"type": str(part.type), "default": part.default} for part in fields(Parts)}


def packages(source: str, driver_version: str, parts: Parts, platform: fabric.Platform) -> dict[str, str]:
    """{package: version (empty: any)} that the roles will have, each by the same rule as its role."""
    wanted = {TOOLKIT: parts.toolkit_version} if parts.toolkit_version else {}
    if source == IMAGE:
        return wanted
    if parts.dcgm_version:
        wanted |= dcgm.packages(parts.dcgm_version, parts.dcgm_exporter_version, parts.dcgm_cuda)
    # Debian has no fabric manager: the role holds such a host and installs nothing.
    refused = source == DEBIAN and platform.needs_manager
    if platform.kind != fabric.NONE and driver_version and not refused:
        wanted |= fabric.packages(platform.kind, source, driver_version, parts.nvlsm_version, parts.imex)
    return wanted


def missing(wanted: Mapping[str, str], run: Run) -> list[str]:
    """The packages that are not there whole and as asked; all of them where dpkg does not tell."""
    if not wanted:
        return []
    try:
        there = {package.name: package for package in installed(run, wanted)}
    except CommandError:
        return list(wanted)
    return lacking(wanted, there)
