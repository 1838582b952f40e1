"""What the sm check needs of a device: one kernel on every SM, each result with the SM that it came from."""

from __future__ import annotations

from typing import Protocol

from gpu_burnin.checks.sm.kernels import SmFault, SmRun
from gpu_burnin.device.port import Device


class SmPort(Protocol):
    """The SMs of a device, `multiprocessors` in number; `simulated` where there is no GPU."""

    simulated: bool
    multiprocessors: int

    def run(self, kernel: str, seed: int, rounds: int, fault: SmFault | None = None) -> SmRun:
        """Run one kernel on every SM; `fault` is for the self-test and --inject."""
        ...


def sm_port(device: Device) -> SmPort:
    """The SMs of this device."""
    port: SmPort = device.port(__package__)
    return port
