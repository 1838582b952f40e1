"""A /dev/shm of the run's own, so that no library can leave a shared memory segment on the host.

NCCL makes files in /dev/shm and unlinks them once both sides have them open; a process killed in between leaves them.
In a mount namespace of its own they vanish with the last process of the run.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
# linux/sched.h and linux/mount.h.
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x4000, 0x80000


def enter() -> bool:
    """Give this process and all it starts an empty /dev/shm; False where that is not allowed (not root, a container).

    For a process that runs nothing but a burn-in: there is no way back. Mounts of the host still arrive.
    """
    if not SHARED_MEMORY.is_dir():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _call(libc.unshare, _CLONE_NEWNS)
        # Else the new file system would appear on the host too.
        _call(libc.mount, b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
        _call(libc.mount, b"tmpfs", bytes(SHARED_MEMORY), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=1777")
    except OSError:
        return False
    return True


def _call(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
