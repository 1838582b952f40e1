"""The library behind nvidia-ml-py: opened here and nowhere else, and whether it can be that of a driver."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

import pynvml

from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT, FAKE_SYMBOL, SimulatedNode

LIBRARY = "libnvidia-ml.so.1"
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
CONTROL_DEVICE = Path("/dev/nvidiactl")
# Documentation/admin-guide/devices.txt of Linux: 195 char, NVIDIA graphics devices.
_NVIDIA_MAJOR = 195


def initialise() -> None:
    """nvmlInit: of the driver's library, or of the simulated GPUs that the environment asks for.

    Raises pynvml.NVMLError, and GpuBurninError for a variable that names no simulated GPUs.
    """
    if (wanted := os.environ.get(ENVIRONMENT)) is not None:
        from gpu_burnin.telemetry.simulated_nvml.library import install

        install(SimulatedNode.from_text(wanted).profiles())
    pynvml.nvmlInit()


def is_simulated(driver_file: Path = DRIVER_VERSION_FILE, control: Path = CONTROL_DEVICE) -> bool:
    """Whether no real GPU can be behind NVML: its library is one of the project's, or no kernel driver answers.

    Sandboxes such as gVisor have the driver's device and not its files in /proc.
    """
    if ENVIRONMENT in os.environ or hasattr(pynvml.nvmlLib, FAKE_SYMBOL):
        return True
    try:
        fake = hasattr(ctypes.CDLL(LIBRARY), FAKE_SYMBOL)
    except OSError:
        return True
    return fake or not (driver_file.exists() or _answers(control))


def _answers(control: Path, major: int = _NVIDIA_MAJOR) -> bool:
    """Whether the driver's control device can be opened, which needs the driver and wakes no GPU. A node alone, which
    anybody's root can make, does not answer."""
    try:
        fd = os.open(control, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        return stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == major
    finally:
        os.close(fd)
