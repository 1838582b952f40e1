"""Where the lab keeps things. Caches may be deleted at any time; the state belongs to one running lab."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """The cache shared by all checkouts of this user: binaries, host image, wheelhouses."""
    return Path(os.environ.get("MUSTER_CACHE", str(Path.home() / ".cache" / "muster")))


def state_dir(lab: str) -> Path:
    """The state of the lab of this name: host disks, overlay layers, SSH key, PKI. Removed by `make lab-down`."""
    base = os.environ.get("MUSTER_LAB_STATE", str(Path.home() / ".local" / "state" / "muster"))
    return Path(base) / lab
