"""Collective operations of one rank: what a device offers for them, how it may fail, and what it tells of its ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpu_burnin.checks.nccl.operations import Operation, Outcome
from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.types import JSON


class NcclMissing(DeviceError):
    """There is no library for collective operations on this host; the message says what to install."""


class NcclTimeout(DeviceError):
    """An operation did not end before its deadline, or another rank gave it up."""


class NcclFailed(DeviceError):
    """The library refused an operation or reports an error of it."""


@dataclass(frozen=True)
class Route:
    """How one rank is connected to another, as the library says: "P2P/CUMEM", "SHM/direct", "NET/Socket/0"."""

    rank: int
    peer: int
    via: str


@dataclass(frozen=True)
class Transports:
    """What was read back of a communicator. `read` is False where nothing could be read.

    `multicast` is whether the switch can add (NVLS), None where the library does not say. `algorithms` are those that
    it said it has used, by operation ("AllReduce"). `ring_path` is the slowest kind of path in its rings ("NVL", "PIX",
    "SYS"): a route "P2P" goes over NVLink as well as over PCIe.
    """

    routes: tuple[Route, ...] = ()
    multicast: bool | None = None
    algorithms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    read: bool = False
    ring_path: str | None = None


class NcclPort(Protocol):
    """Collective operations of one rank. All ranks make the same calls in the same order.

    A communicator is made of what every rank offers: offer(), exchange the offers, join(). Operations work on one send
    and one receive buffer, made by open(). Errors: NcclMissing, NcclTimeout, NcclFailed, all
    DeviceError. After a timeout or failure only abort() and close() may be called.
    """

    algorithms: tuple[str, ...]

    def version(self) -> str:
        """Version of the library, such as "2.32.3". Raises NcclMissing."""
        ...

    def expected_version(self) -> str | None:
        """Version of the package that the library was installed with; None where it came otherwise."""
        ...

    def room_bytes(self) -> int:
        """The largest size for open that leaves half of the free memory to the library and others."""
        ...

    def open(self, size_bytes: int) -> None:
        """Make both buffers. Raises DeviceError when memory does not suffice."""

    def offer(self, rank: int, ranks: int) -> JSON:
        """What the other ranks need to know of this one to join."""
        ...

    def join(self, offers: Sequence[JSON], rank: int, algorithm: str, timeout_s: float) -> None:
        """Make a communicator of all ranks, in their order, that uses one algorithm ("default": its own choice)."""

    def fill(self, op: Operation) -> None:
        """Write what this rank sends, and poison into the receive buffer."""

    def begin(self, op: Operation, times: int, timeout_s: float) -> None:
        """Start an operation `times` times. Returns when the last is under way.

        Each result but the last is compared on the device and wiped before the next one comes; `verify` does it for the
        last, so that every one is looked at. A second call takes the place of the first for finish(); on a device it
        runs behind it.
        """

    def finish(self, timeout_s: float) -> float:
        """Wait for it: seconds of all operations on the device, without the comparisons between them."""
        ...

    def loop(self, op: Operation) -> None:
        """Copy the send buffer to the receive buffer: what an operation of one rank does, for the self-test."""

    def verify(self, op: Operation) -> Outcome:
        """Compare the receive buffer with what is right, on the device: what this and the comparisons since the last
        fill or verify have found. `compared` counts the elements of all of them."""
        ...

    def flip(self, op: Operation, position: int, mask: int) -> None:
        """Flip bits of one received element (fault injection)."""

    def forget(self, op: Operation) -> None:
        """Make the received elements look as if they had never been written (fault injection: a lost operation)."""

    def transports(self) -> Transports:
        """How the current communicator is connected, and what it has used until now."""
        ...

    def leave(self, timeout_s: float) -> None:
        """Give the communicator back in peace: all ranks have come here."""

    def abort(self) -> None:
        """Give up the communicator at once and never block, even when the others still work."""

    def close(self) -> None:
        """Give everything back; aborts what is still joined. A second call does nothing.

        Ends the process where an abort does not end: nothing can be done with its device any more.
        """


def nccl_port(device: Device) -> NcclPort:
    """Operations of all GPUs together, not yet opened or joined."""
    port: NcclPort = device.port(__package__)
    return port
