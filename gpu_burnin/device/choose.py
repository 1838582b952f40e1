"""The device by its name; only the one that is asked for is imported."""

from __future__ import annotations

from pathlib import Path

from gpu_burnin.device.port import Device, DeviceError


def make_device(name: str, kernel_dir: Path | None = None) -> Device:
    """The device "cpu" or "cuda", not yet opened. Raises DeviceError for another name.

    Processes with the same `kernel_dir` share compiled kernels.
    """
    if name == "cpu":
        from gpu_burnin.device.cpu import CpuDevice

        return CpuDevice()
    if name == "cuda":
        from gpu_burnin.device.cuda import CudaDevice

        return CudaDevice(kernel_dir)
    raise DeviceError(f"unknown backend {name!r}: choose cpu or cuda")
