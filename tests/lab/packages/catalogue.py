"""All packages of the stand-in repository, for Debian 12 and Ubuntu 24.04."""

from __future__ import annotations

from pathlib import Path

from . import dcgm, driver, fabric, toolkit
from .deb import Package

DISTRIBUTIONS = ("debian12", "ubuntu2404")


def nvidia(distribution: str, libraries: Path, binaries: Path | None = None) -> list[Package]:
    """What stands for NVIDIA's repository; `libraries` has libnvidia-ml.so.1 and libcuda.so.1.

    `binaries` has the container toolkit's; without them it has no toolkit.
    """
    plain = [*driver.packages(distribution, libraries), *fabric.packages(), *dcgm.packages()]
    return plain if binaries is None else [*plain, *toolkit.packages(binaries)]
