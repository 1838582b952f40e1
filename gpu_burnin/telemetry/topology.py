"""How the GPUs of a node reach each other, and why they may not: NVML and sysfs.

Everything here is optional: what cannot be read is None. Sources: nvml.h (nvmlGpuP2PStatus_t, nvmlGpuP2PCapsIndex_t,
nvmlGpuTopologyLevel_t, nvmlIntNvLinkDeviceType_t); PCI Express Base Specification, section 7.7.8 (Access Control
Services); Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.telemetry.pci import SYS, normal_bus_id
from gpu_burnin.types import JSON

# nvmlGpuP2PStatus_t.
P2P_STATUS: Mapping[int, str] = {
    0: "ok", 1: "chipset_not_supported", 2: "gpu_not_supported", 3: "topology_not_supported",
    4: "disabled_by_regkey", 5: "not_supported", 6: "unknown",
}  # fmt: skip
# nvmlGpuTopologyLevel_t, in words.
LEVELS: Mapping[int, str] = {
    0: "one board", 10: "one PCIe switch", 20: "several PCIe switches", 30: "one host bridge", 40: "one NUMA node",
    50: "across NUMA nodes",
}  # fmt: skip
# Values of PairTopology.path that are NVLink all the way.
NVLINK_PATHS = ("nvlink", "nvswitch")
_ACROSS_NODES = 50
_READ, _WRITE, _NVLINK = 0, 1, 2
_SWITCH = 2
_ACS_CAPABILITY = 0x000D
_FIRST_EXTENDED = 0x100
# Bits of the ACS control register that send copies between GPUs up to the root complex, or stop them.
_REDIRECT_BITS = {2: "request redirect", 3: "completion redirect", 5: "egress control"}


@dataclass(frozen=True)
class PairTopology:
    """One GPU as seen from another.

    `path` is nvlink, nvswitch, pcie or none, "" when NVML does not tell; `links` the NVLinks of the path; `level` their
    common ancestor on PCIe. `read`, `write` and `nvlink` are NVML's P2P status. `redirecting` are PCI bridges between
    the two with ACS redirection on, `iommu` the kinds of translation of the two, `mig` whether it is on for either.
    """

    path: str = ""
    links: int | None = None
    level: str | None = None
    read: str | None = None
    write: str | None = None
    nvlink: str | None = None
    redirecting: tuple[str, ...] = ()
    iommu: tuple[str, ...] = ()
    mig: bool = False

    @property
    def possible(self) -> bool | None:
        """Whether NVML says that both may read and write the other's memory; None when it does not say."""
        if self.read is None or self.write is None:
            return None
        return self.read == self.write == "ok"

    def to_json(self) -> dict[str, JSON]:
        """For the report."""
        plain = asdict(self)
        return {**plain, "redirecting": [*self.redirecting], "iommu": [*self.iommu]}


@dataclass(frozen=True)
class Seen:
    """What NVML gave for one pair, as numbers."""

    read: int | None
    write: int | None
    nvlink: int | None
    level: int | None
    switched: bool
    direct_links: int
    active_links: int
    mig: bool


def pair_from(
    seen: Seen, redirecting: Iterable[str] = (), iommu: Iterable[str] = (), sockets: Sequence[int | None] = ()
) -> PairTopology:
    """The path of a pair by what NVML says of it. `sockets` are those of the two: a processor can be many NUMA nodes,
    between which copies are faster than between processors."""
    statuses = {name: _status(getattr(seen, name)) for name in ("read", "write", "nvlink")}
    path, links = "", None
    if seen.direct_links:
        path, links = "nvlink", seen.direct_links
    elif statuses["nvlink"] == "ok":
        path, links = ("nvswitch", seen.active_links) if seen.switched else ("nvlink", None)
    elif statuses["read"] == statuses["write"] == "ok":
        path = "pcie"
    elif statuses["read"] is not None and statuses["write"] is not None:
        path = "none"
    level = None if seen.level is None else LEVELS.get(seen.level, f"level {seen.level}")
    if seen.level == _ACROSS_NODES and sockets and None not in sockets:
        level = "across sockets" if len(set(sockets)) > 1 else "across NUMA nodes of one socket"
    return PairTopology(
        path, links, level, **statuses, redirecting=tuple(redirecting), iommu=tuple(iommu), mig=seen.mig
    )


def _status(value: int | None) -> str | None:
    return None if value is None else P2P_STATUS.get(value, f"status {value}")


def why_not(pair: PairTopology, refusal: str, by_nvlink: bool = False) -> str:
    """One sentence on why two GPUs cannot copy between each other, with the fix.

    `refusal` is what CUDA said; `by_nvlink`: their models have NVLink to all others of the board.
    """
    status = next((s for s in (pair.write, pair.read) if s not in (None, "ok")), None)
    if pair.mig:
        return "MIG mode is on, and GPUs with MIG have no peer access: switch it off (nvidia-smi -mig 0) and reset them"
    if status == "disabled_by_regkey":
        return "peer access is switched off by a setting of the driver: remove it (NVreg_RegistryDwords) and reload it"
    if by_nvlink and (status is not None or pair.nvlink not in (None, "ok")):
        answers = f"read {pair.read}, write {pair.write}, NVLink {pair.nvlink}"
        return (
            f"the NVLink between them does not work (NVML says {answers}): check that the fabric manager runs and that "
            "the links are up (nvidia-smi nvlink -s), then reset the GPUs"
        )
    if status in ("chipset_not_supported", "topology_not_supported"):
        where = f" ({pair.level})" if pair.level else ""
        return f"the way between them over PCIe{where} does not carry peer traffic: put them under one PCIe switch"
    if status == "gpu_not_supported":
        return "NVML says that the GPU does not support it: nothing can be done where the model has no peer access"
    if pair.redirecting:
        bridges = ", ".join(pair.redirecting)
        return f"ACS redirection is on in the PCI bridges {bridges}: switch it off in the firmware or with setpci"
    if any(kind.startswith("DMA") for kind in pair.iommu):
        return f"the IOMMU translates their addresses: boot with iommu=pt, or switch it off ({refusal})"
    if status is not None:
        return f"NVML says {status} without more: look at nvidia-smi topo -p2p rw ({refusal})"
    return refusal


# --- NVML ---


@contextlib.contextmanager
def _open_nvml() -> Iterator[Any]:
    """NVML while it is in use; None where it cannot be used."""
    try:
        import pynvml

        from gpu_burnin.telemetry.nvml_library import initialise
    except ImportError:
        yield None
        return
    try:
        initialise()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def read_topology(own: str, others: Iterable[str]) -> dict[str, PairTopology]:
    """How the GPU `own` (UUID) reaches each of the others; {} where NVML cannot be used."""
    with _open_nvml() as nvml:
        if nvml is None:
            return {}
        from gpu_burnin.telemetry.nvml_library import is_simulated

        root = None if is_simulated() else SYS  # behind a fake there is no PCI device
        return {other: pair for other in others if (pair := _read_pair(nvml, own, other, root)) is not None}


def bar1_bytes(own: str) -> int | None:
    """Bytes of the window onto the memory of a GPU (UUID) that other PCIe devices have, BAR1; None if not known."""
    with _open_nvml() as nvml:
        if nvml is None:
            return None
        try:
            return int(nvml.nvmlDeviceGetBAR1MemoryInfo(nvml.nvmlDeviceGetHandleByUUID(own)).bar1Total)
        except nvml.NVMLError:
            return None


def _read_pair(nvml: Any, own: str, other: str, sys_root: Path | None) -> PairTopology | None:
    def number(call: Any, *arguments: Any) -> int | None:
        try:
            return int(call(*arguments))
        except nvml.NVMLError:
            return None

    try:
        one, two = nvml.nvmlDeviceGetHandleByUUID(own), nvml.nvmlDeviceGetHandleByUUID(other)
        addresses = [normal_bus_id(str(nvml.nvmlDeviceGetPciInfo_v3(handle).busId)) for handle in (one, two)]
    except nvml.NVMLError:
        return None
    switched, direct, active = _links(nvml, one, addresses[1])
    seen = Seen(
        read=number(nvml.nvmlDeviceGetP2PStatus, one, two, _READ),
        write=number(nvml.nvmlDeviceGetP2PStatus, one, two, _WRITE),
        nvlink=number(nvml.nvmlDeviceGetP2PStatus, one, two, _NVLINK),
        level=number(nvml.nvmlDeviceGetTopologyCommonAncestor, one, two),
        switched=switched,
        direct_links=direct,
        active_links=active,
        mig=any(number(lambda handle: nvml.nvmlDeviceGetMigMode(handle)[0], handle) == 1 for handle in (one, two)),
    )
    if sys_root is None:
        return pair_from(seen)
    one_address, other_address = addresses
    redirecting = redirecting_bridges(one_address, other_address, sys_root)
    iommu = iommu_types(addresses, sys_root)
    return pair_from(seen, redirecting, iommu, [socket_of(address, sys_root) for address in addresses])


def _links(nvml: Any, handle: Any, peer_address: str) -> tuple[bool, int, int]:
    """Whether active links go to switches, how many go to the GPU at that address, and how many are active."""
    switched, direct, active = False, 0, 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if int(nvml.nvmlDeviceGetNvLinkState(handle, link)) != nvml.NVML_FEATURE_ENABLED:
                continue
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT:
                break
            continue
        active += 1
        try:
            switched |= int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)) == _SWITCH
            remote = str(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
            direct += normal_bus_id(remote) == peer_address
        except nvml.NVMLError:
            continue
    return switched, direct, active


# --- sysfs ---


def acs_control(config: bytes) -> int | None:
    """The ACS control register of a PCI function from its configuration space (little endian).

    None when the function has no ACS, or the extended space is not there: without root only 64 bytes are.
    """
    offset, seen = _FIRST_EXTENDED, set()
    while _FIRST_EXTENDED <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == _ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return int(control)
        offset = header >> 20
    return None


def redirects(control: int) -> tuple[str, ...]:
    """What an ACS control register does to copies between GPUs; () when it lets them pass."""
    return tuple(text for bit, text in _REDIRECT_BITS.items() if control >> bit & 1)


def redirecting_bridges(one: str, two: str, sys_root: Path = SYS) -> tuple[str, ...]:
    """Addresses of the PCI bridges between two GPUs, below their common ancestor, that have ACS redirection on."""
    first, second = _bridges(one, sys_root), _bridges(two, sys_root)
    found = []
    for bridge in sorted(set(first) ^ set(second)):
        try:
            config = (sys_root / "bus/pci/devices" / bridge / "config").read_bytes()
        except OSError:
            continue
        control = acs_control(config)
        if control is not None and redirects(control):
            found.append(bridge)
    return tuple(found)


def _bridges(address: str, sys_root: Path) -> tuple[str, ...]:
    """Addresses of the bridges above a device, the root port first: the names on its path in sysfs."""
    device = sys_root / "bus/pci/devices" / address
    if not address or not device.exists():
        return ()
    return tuple(part for part in device.resolve().parts[:-1] if normal_bus_id(part) and part.count(":") == 2)


def iommu_types(addresses: Iterable[str], sys_root: Path = SYS) -> tuple[str, ...]:
    """Kinds of IOMMU domain of some devices: DMA or DMA-FQ translate, identity passes through; () without IOMMU."""
    found = set()
    for address in addresses:
        try:
            group = sys_root / "bus/pci/devices" / address / "iommu_group" / "type"
            found.add(group.read_text(encoding="ascii", errors="replace").strip())
        except OSError:
            continue
    return tuple(sorted(found))


def socket_of(address: str, sys_root: Path = SYS) -> int | None:
    """The processor package next to a PCI device, by its first near CPU; None where it cannot be read."""
    try:
        near = (sys_root / "bus/pci/devices" / address / "local_cpulist").read_text(encoding="ascii")
        cpu = f"cpu{int(near.strip().replace('-', ',').split(',')[0])}"
        return int((sys_root / "devices/system/cpu" / cpu / "topology/physical_package_id").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
