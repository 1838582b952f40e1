"""The default of the state directory. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOTS_STATE_DIR = Path("/var/lib/gpu-burnin")


def default_state_dir(environment: Mapping[str, str] = os.environ, *, is_root: bool | None = None) -> Path:
    """The default state directory: root's own, or the user's by the XDG Base Directory Specification."""
    if os.geteuid() == 0 if is_root is None else is_root:
        return ROOTS_STATE_DIR
    own = Path(environment.get("XDG_STATE_HOME") or "")
    if own.is_absolute():
        return own / "gpu-burnin"
    home = Path(environment.get("HOME") or "")
    # Containers run unknown users at home in "/" or nowhere: then the refusal names --state-dir.
    return home / ".local/state/gpu-burnin" if home.is_absolute() else ROOTS_STATE_DIR
