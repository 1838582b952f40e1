"""Memory that the simulated GPUs' workers share: it has no name, so nothing is left however a process ends (memfd).

Another process of the same user opens it as /proc/PID/fd/N, as long as its owner lives and has it open.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

from gpu_burnin.types import JSON


def create(name: str, size_bytes: int) -> int:
    """A descriptor of new memory, all zero; `name` is for people who look into /proc. Raises OSError."""
    fd = os.memfd_create(f"gpu-burnin-{name}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size_bytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def handle(fd: int) -> dict[str, JSON]:
    """What another process needs to map memory of this one."""
    return {"pid": os.getpid(), "fd": fd}


def attach(given: Mapping[str, JSON], size_bytes: int) -> mmap.mmap:
    """Map the memory of a handle. Raises OSError where it is gone, ValueError where it is smaller than that."""
    fd = os.open(f"/proc/{given['pid']}/fd/{given['fd']}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, size_bytes)
    finally:
        os.close(fd)
