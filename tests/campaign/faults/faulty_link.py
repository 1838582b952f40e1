"""CPU devices whose copies go over faulty wires (wires.py): below the checks' filling and verifying."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from gpu_burnin.checks.nvlink.port import PIECES, NvlinkUnavailable
from gpu_burnin.checks.nvlink.port import Direction as NvlinkDirection
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.pcie.port import WAYS, Direction
from gpu_burnin.exact.operands import U64
from gpu_burnin.types import JSON, Verdict
from tests.campaign.faults.wires import FAULTY_WIRES, Wire
from tests.support.devices import DeviceWith

# Copies that a slow link takes for one: NVLink beside PCIe.
SLOWER = 96


class FaultyPcie(CpuPcie):
    """Each way that has a wire goes over it."""

    def __init__(self, wires: Mapping[str, Wire]) -> None:
        super().__init__()
        self._wires = wires

    def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
        wires = [self._wires[way] for way in WAYS[direction] if way in self._wires]
        for wire in wires:
            wire.batch(copies)
        super().begin(direction, copies, load=load)
        for wire in wires:
            wire.end()

    def _copy(self, way: str, copy: int, destination: U64, source: U64) -> None:
        if way in self._wires:
            self._wires[way].carry(destination, source)
        else:
            super()._copy(way, copy, destination, source)


class _NoPinnedMemory(CpuPcie):
    """The kernel refuses to pin memory: RLIMIT_MEMLOCK."""

    def _pin(self, size_bytes: int) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")


class NoPinnedDevice(DeviceWith):
    """A host that pins no memory for this GPU's worker."""

    def __init__(self) -> None:
        super().__init__(pcie=_NoPinnedMemory)


class FaultyPcieDevice(DeviceWith):
    """A device at the end of faulty wires: `wires` by the way of a copy, "h2d" or "d2h". The link that is asked for
    first has them, which is the one for large copies."""

    def __init__(self, wires: Mapping[str, Wire]) -> None:
        super().__init__(pcie=self._link)
        self._wires = wires
        self._asked = False

    def _link(self) -> FaultyPcie:
        wires, self._asked = ({} if self._asked else self._wires), True
        return FaultyPcie(wires)


class FaultyNvlink(CpuNvlink):
    """Copies of this GPU with another go over the wire of (UUID, direction) where there is one; `slow` are UUIDs to
    which each copy takes SLOWER copies' time, `dead` those that cannot be reached."""

    def __init__(
        self,
        wires: Mapping[tuple[str, str], Wire],
        slow: frozenset[str] = frozenset(),
        dead: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._wires, self._slow, self._dead = wires, slow, dead or {}

    def attach(self, uuid: str, handle: JSON) -> None:
        if uuid in self._dead:
            raise NvlinkUnavailable(self._dead[uuid])
        super().attach(uuid, handle)

    def _transfer(self, uuid: str, direction: NvlinkDirection, source: U64, target: U64, times: int) -> None:
        wire = self._wires.get((uuid, direction))
        if wire is None:
            super()._transfer(uuid, direction, source, target, times)
            return
        # Only what the last of several equal copies brings is still there to be looked at.
        if times > 1:
            super()._transfer(uuid, direction, source, target, times - 1)
        sources, targets = source.reshape(PIECES, -1), target.reshape(PIECES, -1)
        wire.batch(PIECES)
        for piece in range(PIECES):
            wire.carry(targets[piece], sources[piece])
        wire.end()

    def _copy(self, uuid: str, direction: NvlinkDirection, place: int, target: U64, source: U64) -> None:
        for _ in range(SLOWER if uuid in self._slow else 1):
            super()._copy(uuid, direction, place, target, source)


class FaultyNvlinkDevice(DeviceWith):
    """A device with faulty links to other GPUs, as FaultyNvlink has them."""

    def __init__(
        self,
        wires: Mapping[tuple[str, str], Wire] | None = None,
        slow: frozenset[str] = frozenset(),
        dead: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(nvlink=lambda: FaultyNvlink(wires or {}, slow, dead))


@dataclass(frozen=True)
class NvlinkFault:
    """Faulty copies between GPUs. `code` and `problem` as the attribution names them.

    With `make` the copies bring wrong data, over such wires. Otherwise they are slow, or cannot be made because of
    `dead`, the words of the refusal. `whole_gpu`: all links of one GPU are so, else the one between two.
    """

    name: str
    code: str
    problem: str
    make: Callable[[int], Wire] | None = None
    dead: str = ""
    whole_gpu: bool = False
    verdict: Verdict = Verdict.FAIL


def _nvlink_faults() -> Iterator[NvlinkFault]:
    for name, make in FAULTY_WIRES.items():
        yield NvlinkFault(f"link: {name}", "P2P_CORRUPTED", "wrong", make)
    for name in ("copies corrupted", "copies dropped", "data line stuck"):
        yield NvlinkFault(f"gpu: {name}", "P2P_CORRUPTED", "wrong", FAULTY_WIRES[name], whole_gpu=True)
    refused = "CUDA error 217: peer access is not supported between these two devices"
    for whole, word in ((False, "link"), (True, "gpu")):
        slow = "P2P_GPU_SLOW" if whole else "P2P_LINK_SLOW"
        yield NvlinkFault(f"{word}: slow", slow, "slow", whole_gpu=whole, verdict=Verdict.PASS)
        yield NvlinkFault(f"{word}: dead", "P2P_UNAVAILABLE", "dead", dead=refused, whole_gpu=whole)


PEER_FAULTS = {fault.name: fault for fault in _nvlink_faults()}
