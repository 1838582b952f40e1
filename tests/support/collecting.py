"""Workers that collect the tests of a fresh clone: one after the other, as what one has compiled serves the next."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def one_at_a_time(tests: Path) -> Iterator[None]:
    """Be the only process that collects below this folder; where all is compiled, or nothing is kept, all may."""
    if sys.dont_write_bytecode or all(any(folder.glob("__pycache__/*-pytest-*")) for folder in _folders(tests)):
        yield
        return
    folder = os.open(tests, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _folders(tests: Path) -> set[Path]:
    return {path.parent for path in tests.rglob("test_*.py")}
