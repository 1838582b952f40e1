"""Locks between processes, which end with the process that holds them. Standard library only."""

from __future__ import annotations

import fcntl
import time

_POLL_S = 0.05


def lock(fd: int, wait_s: float) -> None:
    """Take the lock of an open file. Raises BlockingIOError when another still has it after `wait_s`."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_POLL_S)
