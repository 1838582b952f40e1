"""A stand-in machine of the lab below a folder, and what runs on it, without a container."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.lab.nvml import fake_nvml
from tests.lab.packages.machine import scenario
from tests.lab.packages.machine.kernel import Kernel

RELEASE = "6.1.0-41-amd64"
GPU = {"vendor": "10de", "device": "2330", "subsystem_vendor": "10de", "subsystem_device": "16c1", "class": "030200"}


def machine(top: Path, **values: object) -> Kernel:
    """A machine of two GPUs that has just booted."""
    (top / "etc/muster-lab").mkdir(parents=True, exist_ok=True)
    (top / "dev").mkdir(exist_ok=True)
    gpus = [{**GPU, "address": f"0000:{bus}:00.0"} for bus in ("1b", "43")]
    (top / scenario.HARDWARE).write_text(json.dumps(gpus))
    (top / "gpus").write_text("gpus = 2\n")
    scenario.change(top, dict(values))
    kernel = Kernel(top)
    kernel.boot()
    return kernel


def again(kernel: Kernel, /, **values: object) -> Kernel:
    """The same machine, booted anew."""
    scenario.change(kernel.top, dict(values))
    fresh = Kernel(kernel.top)
    fresh.boot()
    return fresh


def environment(kernel: Kernel, version: str = "580.105.08") -> dict[str, str]:
    """What makes a program run on this machine, with the library of a driver's version.

    A library that is there stays as it is: a program that has it loaded dies of a write to it (SIGBUS), and one that
    starts in that moment finds none.
    """
    folder = kernel.top / "libraries" / version
    if not folder.is_dir():
        folder.mkdir(parents=True)
        name = f"libnvidia-ml.so.{version}"
        (folder / name).write_bytes(fake_nvml().read_bytes())
        (folder / "libnvidia-ml.so.1").symlink_to(name)
    return {
        **os.environ, "LD_LIBRARY_PATH": str(folder), "MUSTER_FAKE_NVML_SCENARIO": str(kernel.top / "gpus"),
        "MUSTER_FAKE_NVML_KERNEL": str(kernel.tree), scenario.ROOT_VARIABLE: str(kernel.top),
    }  # fmt: skip


def with_driver(kernel: Kernel, version: str = "580.105.08") -> Kernel:
    """The machine with its driver loaded."""
    kernel.add_module(RELEASE, version, "open")
    kernel.load("nvidia")
    return kernel
