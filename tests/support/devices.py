"""CPU devices of which a test changes a part, below the checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_burnin.device.cpu import CpuDevice
from gpu_burnin.exact.cpu import CpuProducts


class ComputingDevice(CpuProducts, CpuDevice):
    """A device that is its own port of products: a subclass changes its memory, its products, or both."""

    def __init__(self) -> None:
        super().__init__(self)

    def port(self, package: str) -> Any:
        """Itself, for products."""
        return self if package == "gpu_burnin.exact" else super().port(package)


class DeviceWith(CpuDevice):
    """A device with other ports: what makes them, by the last part of their package's name ("pcie")."""

    def __init__(self, **makers: Callable[[], Any]) -> None:
        self._makers = makers

    def port(self, package: str) -> Any:
        """The port of the test, where it has one."""
        make = self._makers.get(package.rpartition(".")[2])
        return make() if make else super().port(package)
