"""What connects the GPUs of a host, by what the host shows of it, and whether each GPU has registered with it.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.nvidia.nvml import Gpu
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.pci import devices

_BUS = "sys/bus/pci/devices"
NONE, NVSWITCH, NVLINK5, RACK = "none", "nvswitch", "nvlink5", "rack"
# GPUs whose NVSwitches are in trays of their rack, which run the fabric manager: GB200, GB300 (the list of supported
# devices of the open kernel modules; awslabs/amazon-eks-ami, fabric manager's condition).
_RACK_GPUS = ("2941", "31c2", "31c3")
# A ConnectX-7 in front of the NVSwitches of NVLink 5 says so in its product data; NVIDIA's own start script of the
# fabric manager (nvidia-fabricmanager-start.sh) asks for the same words to choose its way with nvlsm.
_MELLANOX, _MANAGES_SWITCHES = "15b3", b"SW_MNG"
# Since this branch the packages' names are without the branch (NVIDIA/gpu-driver-container).
_WITHOUT_BRANCH = 580
_MANAGER, _IMEX = "nvidia-fabricmanager", "nvidia-imex"
# The packages that have it in their names before, and Ubuntu's always.
BRANCHED = (_MANAGER, _IMEX)
_COMPLETED, _NOT_SUPPORTED = "completed", "not_supported"
# NVSwitches of GPUs before Hopper, of whose fabric NVML knows nothing: 1ae8 to 1aff are A100's (in the open kernel
# modules nvswitch_lr10_device_ids), those before them V100's.
_SILENT_SWITCHES = "1a"
# Drivers under which the kernel has a GPU for this host; one that a virtual machine got has another.
_OWN_DRIVERS = ("", "nvidia")


@dataclass(frozen=True)
class Platform:
    """`kind`: none, nvswitch (up to NVLink 4), nvlink5 (HGX B200 and newer) or rack; `evidence`: what shows it.

    `tells`: NVML must tell of its fabric. `gpus`: the addresses of the host's GPUs on the bus.
    """

    kind: str
    evidence: str
    tells: bool = False
    gpus: tuple[str, ...] = ()

    @property
    def needs_manager(self) -> bool:
        """Whether this host runs the fabric manager."""
        return self.kind in (NVSWITCH, NVLINK5)


def platform(kernel_root: Path) -> Platform:
    """By PCI ids and product data; no driver is needed and no name counts. Raises OSError."""
    if not (kernel_root / _BUS).is_dir():
        return Platform(NONE, "no PCI bus")
    found = devices(kernel_root)
    gpus = tuple(device.address for device in found if device.is_gpu and device.bound_driver in _OWN_DRIVERS)
    gpu = next((device for device in found if device.is_gpu and device.device in _RACK_GPUS), None)
    if gpu is not None:
        where = f"GPU 10de:{gpu.device} at {gpu.address}: its NVSwitches are in trays of the rack"
        return Platform(RACK, where, True, gpus)
    switches = [device for device in found if device.is_nvswitch]
    if switches:
        tells = not all(device.device.startswith(_SILENT_SWITCHES) for device in switches)
        return Platform(NVSWITCH, f"NVSwitch at {', '.join(device.address for device in switches)}", tells, gpus)
    bridges = _bridges(kernel_root)
    if bridges and any(device.is_gpu for device in found):
        return Platform(NVLINK5, f"bridges to NVSwitches at {', '.join(bridges)}", True, gpus)
    return Platform(NONE, "no NVSwitch and no bridge to one on the PCI bus")


def packages(kind: str, source: str, version: str, nvlsm_version: str, imex: bool) -> dict[str, str]:
    """{package: version} that a platform needs beside a driver of `version`; nvlsm has versions of its own."""
    branch = version.split(".")[0]
    suffix = "" if source == "nvidia" and int(branch) >= _WITHOUT_BRANCH else f"-{branch}"
    wanted = {}
    if kind in (NVSWITCH, NVLINK5):
        wanted[f"{_MANAGER}{suffix}"] = version
    if kind == NVLINK5:
        # The start script of the fabric manager starts nvlsm, and asks ibstat which bridge to use.
        wanted |= {"nvlsm": nvlsm_version, "infiniband-diags": ""}
    if imex:
        wanted[f"{_IMEX}{suffix}"] = version
    return wanted


def unregistered(platform: Platform, gpus: Sequence[Gpu]) -> list[str]:
    """The GPUs that are not on the fabric, a clause each.

    NVML tells nothing of GPUs before Hopper. A host without an NVSwitch may have GPUs on a fabric all the same: a
    virtual machine, whose switches another system manages.
    """
    if platform.kind == NONE and not any(gpu.fabric_state not in (_NOT_SUPPORTED, None) for gpu in gpus):
        return []
    shown = {gpu.pci for gpu in gpus}
    lost = [f"GPU at {address}: NVML does not show it" for address in platform.gpus if address not in shown]
    if untold(gpus) and not platform.tells:
        return lost
    return lost + [_clause(gpu) for gpu in gpus if (gpu.fabric_state, gpu.fabric_status) != (_COMPLETED, 0)]


def untold(gpus: Sequence[Gpu]) -> bool:
    """Whether NVML knows no fabric state of any GPU, as of those before Hopper."""
    return all(gpu.fabric_state == _NOT_SUPPORTED for gpu in gpus)


def _clause(gpu: Gpu) -> str:
    where = f"GPU {gpu.uuid or 'of unknown UUID'} at {gpu.pci or 'an unknown address'}"
    if gpu.fabric_state is None:
        return f"{where}: its fabric state cannot be read ({gpu.errors.get('fabric_state', 'no reason given')})"
    status = f" with status {gpu.fabric_status}" if gpu.fabric_state == _COMPLETED else ""
    return f"{where}: {gpu.fabric_state}{status}"


def _bridges(kernel_root: Path) -> list[str]:
    found = []
    for path in sorted((kernel_root / _BUS).iterdir()):
        try:
            vendor = (path / "vendor").read_text(encoding="ascii").strip().lower().removeprefix("0x")
            if vendor == _MELLANOX and _MANAGES_SWITCHES in (path / "vpd").read_bytes():
                found.append(path.name)
        except OSError:
            continue  # not every card has product data
    return found
