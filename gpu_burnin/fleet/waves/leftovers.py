"""What a step leaves running that was killed: Ansible's forks and their SSH, which a second run would meet."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path


def end(variable: str, value: str, proc: Path = Path("/proc")) -> int:
    """Kill this user's processes that have `value` in this variable of their environment; how many there were.

    Returns when they are gone.
    """
    word, ended = f"{variable}={value}".encode(), 0
    # Ones that were being forked meanwhile are seen the next time.
    while found := list(_having(word, proc)):
        for fd in found:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        for fd in found:
            # Readable when the process has ended, pidfd_open(2).
            select.select([fd], [], [])
            os.close(fd)
        ended += len(found)
    return ended


def _having(word: bytes, proc: Path) -> Iterator[int]:
    """Descriptors of the processes; one that has ended meanwhile is none."""
    for path in proc.glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        if pid == os.getpid():
            continue
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # Read when it can be no other process any more.
            mine = word in path.read_bytes().split(b"\0")
        except OSError:
            mine = False
        if mine:
            yield fd
        else:
            os.close(fd)
