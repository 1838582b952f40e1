"""The fake NVML library of lab and tests."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import cache_dir, locked

from .fake_nvml.build import LIBRARY, SOURCES, build


def driver_version(scenario: str) -> str:
    """The driver's version that the fake NVML tells with a scenario of this text: of it, or of the healthy profile."""
    profile = (SOURCES / "scenario.c").read_text()
    return next(match[1] for text in (scenario, profile) if (match := re.search(r"driver_version = ([\d.]+)", text)))


def fake_nvml() -> Path:
    """The library, built once for each state of its source. Raises BuildError without a compiler."""
    content = b"".join(path.read_bytes() for path in sorted(SOURCES.glob("*.*")))
    folder = cache_dir() / "fake-nvml" / hashlib.sha256(content).hexdigest()[:16]
    with locked(folder.with_suffix(".lock")):
        return folder / LIBRARY if (folder / LIBRARY).exists() else build(folder)
