"""The file that tells the work on this node that it is asked to leave. Standard library only.

It is in a folder of its own, which pods mount: everybody may read it, and it is not one of the run's, which are root's.
The folder stays when the agent ends: a pod that has mounted it would not see another one of that name.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.job import DEFAULT_FILE, Leave
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import fsync_directory, parse_json, read_bytes, write_atomic

LEAVE_FILE = Path(DEFAULT_FILE)
_MODE, _DIRECTORY_MODE = 0o644, 0o755


def write(annotation: str | None, path: Path = LEAVE_FILE) -> bool:
    """Bring the file to what the annotation DOMAIN/leave of the own Node says, None for none; whether it changed.

    An annotation that cannot be read asks all the same, without a deadline. The folder is there afterwards, so that
    pods can mount it before anything is asked. Raises GpuBurninError.
    """
    try:
        _make(path.parent)
        if annotation is None:
            return _remove(path)
        content = _content(annotation)
        with contextlib.suppress(OSError):
            if read_bytes(path) == content:
                return False
        if path.is_dir():
            # A pod that mounts the file itself has the container runtime make a folder of its name.
            path.rmdir()
        write_atomic(path, content, _MODE)
    except OSError as error:
        raise GpuBurninError(
            f"{path}: jobs cannot be told that they are asked to leave ({error.strerror}); make room for this file in "
            "a folder that root can write"
        ) from error
    return True


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return
    # Whatever the umask of the service is.
    directory.chmod(_DIRECTORY_MODE)


def _remove(path: Path) -> bool:
    if not os.path.lexists(path) or path.is_dir():
        return False
    path.unlink()
    fsync_directory(path.parent)
    return True


def _content(annotation: str) -> bytes:
    try:
        leave = from_json(Leave, parse_json(annotation), tolerant=True)
    except (Misfit, ValueError):
        leave = Leave(why="the node is taken out of work")
    return canonical_json(to_json(leave)) + b"\n"
