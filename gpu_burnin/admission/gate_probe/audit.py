"""Count in an API server's audit log who acted in the name of those whom the gate trusts, and who broke the glass.

The log is read on from where the last look ended, through rotations: kube-apiserver renames audit.log to
audit-TIME.log and begins a new one (gopkg.in/natefinch/lumberjack.v2).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpu_burnin.api.names import ADMITTER_USER, PROVISIONER_USER

# Those whom the gate's policies let do what nobody else may.
TRUSTED = (ADMITTER_USER, PROVISIONER_USER)
_MASTERS = "system:masters"
# The head of a file tells it from another one that was given its inode.
_HEAD_BYTES = 1024
_MARKS = (b'"impersonatedUser"', b'"system:masters"')


@dataclass(frozen=True)
class Position:
    """How far the log was read: `offset` bytes of the file with this inode and head, which was last written then."""

    inode: int
    offset: int
    head_sha256: str
    written_ns: int


@dataclass(frozen=True)
class Use:
    """An entry that counts: `trusted` is who was impersonated, "" where it is the break-glass identity that asked."""

    trusted: str
    sentence: str


@dataclass(frozen=True)
class Found:
    """What is new. `gaps`: parts of the log that are gone unread, and entries that cannot be read."""

    position: Position
    uses: tuple[Use, ...]
    gaps: int


def read_on(log: Path, before: Position | None) -> Found:
    """Read what was written since `before`; without it the present file from its beginning. Raises OSError."""
    uses: list[Use] = []
    with log.open("rb") as current:
        start, gaps = 0, 0
        older: list[tuple[Path, int]] = []
        if before is not None and _is(current, before):
            start = before.offset
        elif before is not None:
            older, gaps = _rotated(log, os.fstat(current.fileno()).st_ino, before)
        for path, offset in older:
            with path.open("rb") as file:
                gaps += _take(file, offset, uses)[1]
        end, unread = _take(current, start, uses)
        return Found(_position(current, end), tuple(uses), gaps + unread)


def use_of(event: Mapping[str, Any]) -> Use | None:
    """What an audit event is counted as, or None."""
    user, other = event.get("user") or {}, event.get("impersonatedUser") or {}
    name, groups = str(user.get("username") or ""), user.get("groups") or []
    of_other = {str(other.get("username") or ""), *map(str, other.get("groups") or [])}
    for trusted in TRUSTED:
        if trusted in of_other:
            return Use(trusted, f"{trusted} was impersonated by {_who(event, name)}")
    # The API server's own parts are of this group too.
    if _MASTERS in groups and not name.startswith("system:"):
        return Use("", f"the break-glass identity was used: {_who(event, name)}")
    return None


def _who(event: Mapping[str, Any], name: str) -> str:
    addresses = ", ".join(map(str, event.get("sourceIPs") or ["an unknown address"]))
    code = (event.get("responseStatus") or {}).get("code", "no answer")
    asked, at = event.get("requestURI", ""), event.get("requestReceivedTimestamp", "")
    return f"{name} from {addresses} at {at}: {event.get('verb', '')} {asked} ({code})"


def _is(file: IO[bytes], position: Position) -> bool:
    """Whether it is the file that was read to there."""
    found = os.fstat(file.fileno())
    if found.st_ino != position.inode or found.st_size < position.offset:
        return False
    return _head(file, position.offset) == position.head_sha256


def _head(file: IO[bytes], offset: int) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(min(offset, _HEAD_BYTES))).hexdigest()


def _rotated(log: Path, current_inode: int, before: Position) -> tuple[list[tuple[Path, int]], int]:
    """Files to read before the present one, each from where on, and whether some are missing (1) or not (0)."""
    # Their names hold the time of rotation.
    files = [path for path in sorted(log.parent.glob(f"{log.stem}-*{log.suffix}")) if _inode(path) != current_inode]
    for number, path in enumerate(files):
        with path.open("rb") as file:
            if _is(file, before):
                return [(path, before.offset), *((newer, 0) for newer in files[number + 1 :])], 0
    return [(path, 0) for path in files if path.stat().st_mtime_ns > before.written_ns], 1


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _take(file: IO[bytes], start: int, uses: list[Use]) -> tuple[int, int]:
    """Read whole lines on from `start` into `uses`; where the last one ends, and how many that count are no entries."""
    file.seek(start)
    end, unread = start, 0
    for line in _whole(file):
        end += len(line)
        # An entry of whom it is not about costs no parsing: there are hundreds a second.
        if not any(mark in line for mark in _MARKS):
            continue
        try:
            use = use_of(json.loads(line))
        except (ValueError, RecursionError, AttributeError, TypeError):
            unread += 1
            continue
        if use is not None:
            uses.append(use)
    return end, unread


def _whole(file: IO[bytes]) -> Iterator[bytes]:
    """Lines that were written to their end."""
    for line in file:
        if line.endswith(b"\n"):
            yield line


def _position(file: IO[bytes], offset: int) -> Position:
    found = os.fstat(file.fileno())
    return Position(found.st_ino, offset, _head(file, offset), found.st_mtime_ns)
