"""One run at a time that changes a part of the fleet: who has its folder, and whether they still run.

The lock names the process of Ansible. One that has ended on this machine keeps nobody out: a run that was killed is
gone on with by the next one. Of a process on another machine nobody here can tell, so a person does.

Several runs may share it, such as the shards of `muster roll`: each keeps out those that want it for themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.roll import documents
from gpu_burnin.fleet.roll.documents import SCHEMA
from gpu_burnin.system.codec import to_json

_FILE = "lock.json"
_SHARED = "shared-*.json"
_PLAYBOOK = "ansible-playbook"


class LockHeld(GpuBurninError):
    """Another run has the lock."""


@dataclass(frozen=True)
class Owner:
    """A process that nothing else is taken for: its machine, the boot, its id, and when it began in clock ticks."""

    machine: str
    boot_id: str
    pid: int
    began_ticks: int


@dataclass(frozen=True)
class Lock:
    """Who runs what, since when, in which process. `what` goes on from who, such as "upgrades drivers"."""

    who: str
    since: str
    owner: Owner
    what: str = "upgrades drivers"
    schema: str = SCHEMA


def take(directory: Path, mine: Lock, proc: Path = Path("/proc"), *, shared: bool = False) -> str:
    """Have the lock, or a share of it; what was taken over from a run that has ended without its end, "" for nothing.

    Raises LockHeld where another run has it, or has a share of what is wanted whole.
    """
    with alone(directory):
        old = read(directory)
        shares = _sharing(directory)
        for path, held in ((path_of(directory), old), *(() if shared else shares)):
            if held is not None and held.owner != mine.owner and may_run(held.owner, proc):
                raise LockHeld(_describe(held, path, mine.owner))
        for path, held in shares:
            if not may_run(held.owner, proc):
                path.unlink(missing_ok=True)
        if shared:
            path_of(directory).unlink(missing_ok=True)
            documents.write(_share_of(directory, mine.owner), to_json(mine))
        else:
            write(directory, mine)
    return _ended(old) if old is not None and old.owner != mine.owner else ""


def release(directory: Path, mine: Owner) -> None:
    """Give the lock back, or the share of it, where it is this run's."""
    with alone(directory):
        found = read(directory)
        if found is not None and found.owner == mine:
            path_of(directory).unlink(missing_ok=True)
        _share_of(directory, mine).unlink(missing_ok=True)


def other_holder(directory: Path, mine: Owner, proc: Path = Path("/proc"), *, shared: bool = False) -> str:
    """Which other run has the lock, or left it behind; "" for none. Changes nothing."""
    if holder := running(directory, mine, proc, shared=shared):
        return holder
    found = read(directory)
    return "" if found is None or found.owner == mine else _ended(found)


def running(directory: Path, mine: Owner, proc: Path = Path("/proc"), *, shared: bool = False) -> str:
    """Which other run has the lock, or a share of it, and may still run; "" for none. Changes nothing.

    `shared`: a share is wanted, which others may have too.
    """
    for path, found in ((path_of(directory), read(directory)), *(() if shared else _sharing(directory))):
        if found is not None and found.owner != mine and may_run(found.owner, proc):
            return _describe(found, path, mine)
    return ""


def lost(directory: Path, mine: Owner) -> str:
    """Why this run may not go on: somebody lifted its lock, and another run has it now; "" where it may."""
    found = read(directory)
    if found is None and not _share_of(directory, mine).exists():
        found = next((held for _, held in _sharing(directory) if held.owner != mine), None)
    if found is None or found.owner == mine:
        return ""
    return f"its lock was lifted, and {found.who} {found.what} since {found.since}"


def path_of(directory: Path) -> Path:
    """Where the lock of a run is."""
    return directory / _FILE


def read(directory: Path) -> Lock | None:
    """The lock, None where nobody has it. Raises GpuBurninError."""
    return documents.read(Lock, path_of(directory)) if path_of(directory).exists() else None


def write(directory: Path, lock: Lock) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    documents.write(path_of(directory), to_json(lock))


def owner(proc: Path = Path("/proc"), pid: int | None = None) -> Owner:
    """The run that this process is of: the outermost of Ansible's processes above it, else its parent."""
    pid = os.getppid() if pid is None else pid
    chain = [pid]
    while (above := _stat(proc, chain[-1])[0]) > 1:
        chain.append(above)
    # Ansible's workers are processes of the same command line.
    plays = itertools.takewhile(
        lambda one: _plays(proc, one), itertools.dropwhile(lambda one: not _plays(proc, one), chain)
    )
    return process((list(plays) or [pid])[-1], proc)


def process(pid: int, proc: Path = Path("/proc")) -> Owner:
    """A process of this machine."""
    return Owner(socket.gethostname(), _boot_id(proc), pid, _stat(proc, pid)[1])


def may_run(old: Owner, proc: Path = Path("/proc")) -> bool:
    """Whether the process may still be there; False where it certainly has ended."""
    if old.machine != socket.gethostname():
        return True
    return old.boot_id == _boot_id(proc) and _stat(proc, old.pid)[1] == old.began_ticks


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Only one process at a time looks at what is in the folder and changes it. Raises GpuBurninError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise GpuBurninError(f"{directory} cannot be used ({error.strerror}); nothing is done without it") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _share_of(directory: Path, owner: Owner) -> Path:
    return directory / _SHARED.replace("*", f"{owner.machine}-{owner.pid}-{owner.began_ticks}")


def _sharing(directory: Path) -> list[tuple[Path, Lock]]:
    """Those that have a share of it, dead ones too; not those that give it back just now."""
    found = []
    for path in sorted(directory.glob(_SHARED)):
        try:
            found.append((path, documents.read(Lock, path)))
        except GpuBurninError:
            if path.exists():
                raise
    return found


def _describe(old: Lock, path: Path, mine: Owner) -> str:
    where = f"process {old.owner.pid} on {old.owner.machine}"
    lift = f"remove {path}"
    if old.owner.machine == mine.machine:
        return (
            f"{old.who} {old.what} since {old.since} ({where}); wait until that run has ended, or end it with "
            f"Ctrl-C (its lock ends with it)"
        )
    return (
        f"{old.who} {old.what} since {old.since} ({where}, which nobody can see from here); wait until that run "
        f"has ended; where there is no such process there any more, {lift}"
    )


def _ended(old: Lock) -> str:
    return (
        f"{old.who} {old.what} since {old.since} (process {old.owner.pid} on {old.owner.machine}), and that run is "
        "dead: it failed, was refused or was killed; this run takes its lock over and goes on from what it left"
    )


def _plays(proc: Path, pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")[:2]
        return any(word.rpartition(b"/")[2] == _PLAYBOOK.encode() for word in words)
    return False


def _stat(proc: Path, pid: int) -> tuple[int, int]:
    """Parent and start of a process, proc_pid_stat(5); zeros where it is gone. A zombie has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        if fields[0] not in ("Z", "X"):
            return int(fields[1]), int(fields[19])
    return 0, 0


def _boot_id(proc: Path) -> str:
    with contextlib.suppress(OSError):
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return ""
