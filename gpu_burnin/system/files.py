"""Files: written so that a reader, or the next boot, sees the old content or the new, never half of it; read so that
no file can make a reader wait, fill its memory or overflow its stack. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# For texts that people and small programs write: ids, counters, configuration, evidence.
MOST_BYTES = 1 << 20
# What this project writes is nested some ten levels deep; Python's own functions give up at a thousand frames.
_MOST_LEVELS = 100
_CHUNK_BYTES = 1 << 20
# Device numbers of Linux, Documentation/admin-guide/devices.txt.
_NULL = os.makedev(1, 3)


def read_bytes(path: Path, most_bytes: int = MOST_BYTES, *, follow: bool = True) -> bytes:
    """The content of a regular file of at most `most_bytes`; the last link of a path is taken only with `follow`.

    Raises OSError, whose `strerror` says it: as open() does, and for anything but a regular file (a FIFO is not waited
    for, a device not read) or one that is too large. /dev/null is an empty file, as people use it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW))
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode) and not (stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        # Files of /proc have no size, and others may grow: what counts is what comes.
        parts, size_bytes = [], 0
        while size_bytes <= most_bytes and (part := os.read(fd, min(_CHUNK_BYTES, most_bytes + 1))):
            parts.append(part)
            size_bytes += len(part)
    finally:
        os.close(fd)
    if size_bytes > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return b"".join(parts)


def read_text(path: Path, most_bytes: int = MOST_BYTES, *, follow: bool = True, errors: str = "strict") -> str:
    """The text (UTF-8) of a regular file; as read_bytes, and UnicodeDecodeError as `errors` says."""
    return read_bytes(path, most_bytes, follow=follow).decode("utf-8", errors)


def parse_json(
    text: str | bytes, object_pairs_hook: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None
) -> Any:
    """json.loads, for which every text that is none raises ValueError: also one that is nested too deep."""
    try:
        document = json.loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level, deepest = [document], 0
    while level := [inner for value in level if isinstance(value, (dict, list)) for inner in _within(value)]:
        deepest += 1
        if deepest > _MOST_LEVELS:
            raise ValueError("it is nested too deep")
    return document


def _within(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def fsync_directory(path: Path) -> None:
    """Make renames and creations inside `path` survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write `content` to a temporary name beside `path`, fsync it and rename it over `path`.

    The OSError names `path`: nobody knows the temporary name.
    """
    try:
        _write_atomic(path, content, mode)
    except OSError as error:
        if error.errno is not None:  # one that was made of a text alone would lose it
            error.filename = str(path)
        raise


def _write_atomic(path: Path, content: bytes, mode: int) -> None:
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
