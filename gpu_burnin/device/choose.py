"""The device by its name; only the one that is asked for is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_burnin.device.port import Device, DeviceError


def make_device(name: str, kernel_dir: Path | None = None, sources: Callable[[], Sequence[str]] = tuple) -> Device:
    """The device "cpu" or "cuda", not yet opened. Raises DeviceError for another name.

    Processes with the same `kernel_dir` share compiled kernels; `sources` gives those that are compiled at once when a
    GPU is opened.
    """
    if name == "cpu":
        from gpu_burnin.device.cpu import CpuDevice

        return CpuDevice()
    if name == "cuda":
        from gpu_burnin.device.cuda import CudaDevice

        return CudaDevice(kernel_dir, sources)
    raise DeviceError(f"unknown backend {name!r}: choose cpu or cuda")
