"""The cache of this user, which all checkouts share and anybody may delete at any time, and locks on parts of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """The cache: programs, Go, durations; for the lab its image and wheelhouses too."""
    return Path(os.environ.get("MUSTER_CACHE", str(Path.home() / ".cache" / "muster")))


@contextmanager
def locked(path: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Only one process at a time is in a block with this lock file; `waits` is called when another one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
