"""Where the lab keeps things; its cache is that of the mirror."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# The wrapper modules of programs that only the lab needs.
ARTIFACTS = REPOSITORY / "tests/lab/artifacts"


def state_dir(lab: str) -> Path:
    """The state of the lab of this name: host disks, overlay layers, SSH key, PKI. Removed by `make lab-down`."""
    base = os.environ.get("MUSTER_LAB_STATE", str(Path.home() / ".local" / "state" / "muster"))
    return Path(base) / lab
