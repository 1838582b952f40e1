"""Writing files so that a reader, or the next boot, sees the old content or the new, never half of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def fsync_directory(path: Path) -> None:
    """Make renames and creations inside `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write `content` to a temporary name beside `path`, fsync it and rename it over `path`."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    fsync_directory(path.parent)


def replace_symlink(link: Path, target: str) -> None:
    """Point `link` at `target` in one step: a reader sees the old target or the new one."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(target)
    temporary.replace(link)
    fsync_directory(link.parent)
