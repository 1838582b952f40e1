"""A folder for temporary files that goes with its process; where that was killed, with the next one that makes one.

A process holds a lock on its folder, which ends with it: the folder of one that lives is never taken for a rest. So a
purpose has its name from the first version on that locks. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A folder of its owner alone, named after the purpose. Raises OSError."""
    _remove_left(purpose)
    path, fd = _made(purpose)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _made(purpose: str) -> tuple[Path, int]:
    """The folder, and a descriptor that has it locked."""
    while True:
        path = Path(tempfile.gettempdir()) / f"{purpose}-{secrets.token_hex(6)}"
        path.mkdir(mode=0o700)
        # Another process may take it for a rest, and remove it, until it is locked.
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if path.is_dir():
                return path, fd
            os.close(fd)


def _remove_left(purpose: str) -> None:
    """Remove this user's folders of this purpose that no process has locked."""
    name = re.compile(rf"{re.escape(purpose)}-[0-9a-f]{{12}}")
    for path in Path(tempfile.gettempdir()).glob(f"{purpose}-*"):
        if not name.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.geteuid():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)
