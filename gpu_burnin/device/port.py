"""What a device is to those that use it: opening, memory, facts, and the way to the code that a package has for it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.storage import Buffer, to_logical
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.types import JSON, Gpu


class DeviceError(GpuBurninError):
    """The device cannot be used on this host; the message says what to do."""


class DeviceFault(DeviceError):
    """The device itself reports damage, which is a fault found and not a check that could not be carried out."""

    def __init__(self, message: str, reason_code: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code


class Device(Protocol):
    """One GPU, or its stand-in on the CPU: `simulated` is True where no GPU is exercised.

    Work goes in one stream: whatever is called later sees what was called earlier. Errors of the device are raised as
    DeviceError. What computes on a device is a port of the package that needs it: see `port`.
    """

    name: str
    simulated: bool

    def open(self, gpu: Gpu | None) -> None:
        """Take the device. Raises DeviceError when it cannot be used."""

    def close(self) -> None:
        """Give back everything."""

    def facts(self) -> Mapping[str, JSON]:
        """Library and device facts for the report."""
        ...

    def multiprocessors(self) -> int:
        """Number of SMs of the device."""
        ...

    def allocate(self, storage: str, rows: int, cols: int, transposed: bool = False) -> Buffer:
        """An uninitialised matrix. Raises DeviceError when memory does not suffice."""
        ...

    def read_raw(self, buffer: Buffer, start: int, count: int) -> NDArray[Any]:
        """Bits of `count` elements from position `start` in storage order, as unsigned integers of their size."""
        ...

    def write_raw(self, buffer: Buffer, start: int, bits: NDArray[Any]) -> None:
        """The inverse of read_raw."""

    def synchronize(self) -> None:
        """Wait for the device."""

    def port(self, package: str) -> Any:
        """The port that a package (such as gpu_burnin.checks.pcie) has for this kind of device, made by `make_port` of
        its module `name`. Only that module is imported; the package's own port.py gives the result its type."""
        return importlib.import_module(f"{package}.{self.name}").make_port(self)


@contextlib.contextmanager
def given_back(close: Callable[[], None], abandon: Callable[[], None] | None = None) -> Iterator[None]:
    """Call `close` behind the block, or `abandon` (default: `close`) when it raises; then what went wrong first says
    more than that giving back failed as well."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(DeviceError):
            (abandon or close)()
        raise
    close()


def read_matrix(device: Device, buffer: Buffer) -> NDArray[Any]:
    """All bits of a buffer as its logical matrix, in unsigned integers of the element size."""
    return to_logical(buffer, device.read_raw(buffer, 0, buffer.elements))


def write_matrix(device: Device, buffer: Buffer, bits: NDArray[Any]) -> None:
    """The inverse of read_matrix."""
    stored = bits.T if buffer.transposed else bits
    device.write_raw(buffer, 0, np.ascontiguousarray(stored).reshape(-1))
