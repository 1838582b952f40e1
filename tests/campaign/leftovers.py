"""What a run could leave behind: processes, memory that others can reach, temporary files. Looked for in /proc."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# In the environment of everything that the run starts.
VARIABLE = "MUSTER_CAMPAIGN_RUN"
_PROC = Path("/proc")
_SHARED = Path("/dev/shm")
# podman makes it with its first command on a machine, and keeps it: the hosts of other stages may begin meanwhile.
_PODMAN_LOCKS = _SHARED / "libpod_lock"
_LOOK_EVERY_S = 0.03
# Each check keeps its memory for longer; a look costs a few milliseconds, and is taken all through the run.
_SEEN_EVERY_S = 0.1
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ (\d+)\s+/memfd:", re.MULTILINE)


class Leftovers:
    """`with Leftovers(scratch) as leftovers`: start the run with leftovers.variables; then ask what is left of it.

    Memory that was made with memfd_create is known by its inode, as it was seen while the run lived.
    """

    def __init__(self, scratch: Path) -> None:
        mark = secrets.token_hex(16)
        self._own = f"{VARIABLE}={mark}".encode()
        self._before = set(_pids())
        self._temporary = scratch / "tmp"
        self._temporary.mkdir()
        self._shared = set(_SHARED.iterdir())
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self.seen_memory: set[int] = set()
        self.seen_pids: set[int] = set()

    @property
    def variables(self) -> dict[str, str]:
        """For the environment of the run."""
        return {VARIABLE: self._own.decode().partition("=")[2], "TMPDIR": str(self._temporary)}

    def __enter__(self) -> Leftovers:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looking.join()

    def processes(self) -> set[int]:
        """Processes of the run that are alive."""
        return {pid for pid in self._new() if self._own in _bytes(_PROC / str(pid) / "environ")}

    def left(self, wait_s: float = 15.0) -> list[str]:
        """What is left, in sentences; empty when all is gone. Waits a while for processes that are on their way out."""
        gone = until(lambda: not self.processes(), wait_s)
        found = [] if gone else [f"process {pid}: {_command(pid)}" for pid in sorted(self.processes())]
        holders = {pid for pid in self._new() if memory_of(pid) & self.seen_memory}
        found += [f"shared memory held by process {pid}: {_command(pid)}" for pid in sorted(holders)]
        found += [str(path) for path in sorted(self._files_that_stay(wait_s))]
        return found + [f"temporary file {path}" for path in sorted(self._temporary.rglob("*"))]

    def _files_that_stay(self, wait_s: float) -> set[Path]:
        """New shared files that are there for good: other programs of this machine have some for a moment, as the C
        library has while it makes a semaphore."""
        new = set(_SHARED.iterdir()) - self._shared - {_PODMAN_LOCKS}
        until(lambda: not new & set(_SHARED.iterdir()), wait_s)
        return new & set(_SHARED.iterdir())

    def _new(self) -> set[int]:
        """Processes that have come since this one began to look; only they can be of the run, or got memory of it."""
        return set(_pids()) - self._before

    def _look(self) -> None:
        while not self._over.wait(_SEEN_EVERY_S):
            for pid in self.processes():
                self.seen_pids.add(pid)
                self.seen_memory |= memory_of(pid)


def memory_of(pid: int) -> set[int]:
    """Inodes of the memory files (memfd_create) that a process has open or mapped."""
    found = {int(inode) for inode in _MAPPED.findall(_bytes(_PROC / str(pid) / "maps").decode(errors="replace"))}
    for path in memory_files(pid):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found.add(path.stat().st_ino)
    return found


def memory_files(pid: int) -> list[Path]:
    """The memory files that a process has open, as paths that others can open."""
    return [path for path in _entries(_PROC / str(pid) / "fd") if _link(path).startswith("/memfd:")]


def until(true: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition comes true within a time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        threading.Event().wait(_LOOK_EVERY_S)
    return True


def _pids() -> Iterator[int]:
    return (int(path.name) for path in _PROC.iterdir() if path.name.isdecimal())


def _bytes(path: Path) -> bytes:
    """Empty for a process that has gone meanwhile, or is a zombie."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _entries(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str:
    with contextlib.suppress(OSError):
        return str(path.readlink())
    return ""


def _command(pid: int) -> str:
    return _bytes(_PROC / str(pid) / "cmdline").replace(b"\0", b" ").decode(errors="replace")
