"""What the burn-in's child processes share: they find the package, and end with their parent. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

# For PYTHONPATH: with it a child finds the very package that its parent runs, however that was installed.
PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_PR_SET_PDEATHSIG = 1


def child_environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment `base` with this package found before any other of its name."""
    paths = (PACKAGE_ROOT, base.get("PYTHONPATH", ""))
    return {**base, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def die_with_parent(parent_pid: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).

    With `parent_pid` the process exits with status 1 when its parent was gone before the kernel was asked.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent_pid is not None and os.getppid() != parent_pid:
        sys.exit(1)
