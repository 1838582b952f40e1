"""Limits of the host that a run can meet (ulimit, control groups, /dev/shm), and what shows that one was met.

A limit takes the blame only where something shows it: the error that the kernel gave (no memory, no process, no
file), its name in the last lines of a worker that gave up, or the kernel's own count of kills. A worker that dies
otherwise, by SIGSEGV or SIGBUS above all, died of what it did: a GPU must not hide behind a limit. RLIMIT_MEMLOCK is
not among them: it is finite nearly everywhere, and nothing that CUDA answers shows that it was met; where pinned memory
is refused its value is told (checks/pcie/slots.py).
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_burnin.errors import GpuBurninError

VMSTAT, CGROUP, CGROUPS = Path("/proc/vmstat"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
SHARED_MEMORY = Path("/dev/shm")
# The kernel's count over all its processes, beside those of control groups.
ALL = ""
# NCCL takes some 10 MB a GPU and channel set; 64 MiB is what a container gets where nobody asks for more.
_LITTLE_SHARED_BYTES = 256 << 20
# How far up in a program's last lines its reason stands: "terminate called ...", "what(): ...".
_LAST_LINES = 3


class Scarce(StrEnum):
    """What a worker could not get."""

    MEMORY = "memory"
    GPU_MEMORY = "GPU memory"
    PROCESSES = "processes or threads"
    FILES = "open files"
    SHARED = "shared memory"
    CPU_TIME = "processor time"


# RLIMIT names with the option of ulimit, the setting of a systemd unit, and whether it is a number of bytes.
_RLIMITS: Mapping[str, tuple[str, str, bool]] = {
    "RLIMIT_AS": ("-v", "LimitAS", True),
    "RLIMIT_DATA": ("-d", "LimitDATA", True),
    "RLIMIT_NPROC": ("-u", "LimitNPROC", False),
    "RLIMIT_NOFILE": ("-n", "LimitNOFILE", False),
    "RLIMIT_CPU": ("-t", "LimitCPU", False),
}
# Which of them can be behind it. A thread needs address space for its stack, and CUDA some for all memory of all GPUs.
_BEHIND: Mapping[Scarce, tuple[str, ...]] = {
    Scarce.MEMORY: ("RLIMIT_AS", "RLIMIT_DATA"),
    Scarce.GPU_MEMORY: ("RLIMIT_AS",),
    Scarce.PROCESSES: ("RLIMIT_NPROC", "RLIMIT_AS"),
    Scarce.FILES: ("RLIMIT_NOFILE",),
    Scarce.SHARED: (),
    Scarce.CPU_TIME: ("RLIMIT_CPU",),
}
_ERRNOS = {errno.ENOMEM: Scarce.MEMORY, errno.EAGAIN: Scarce.PROCESSES, errno.EMFILE: Scarce.FILES}
# glibc, the dynamic linker, libstdc++, CPython and OpenBLAS, in their own messages.
_MESSAGES: Mapping[Scarce, re.Pattern[str]] = {
    Scarce.SHARED: re.compile(r"/dev/shm|shared memory.*No space left|No space left.*shared memory"),
    Scarce.PROCESSES: re.compile(r"can't start new thread|pthread_create failed|Resource temporarily unavailable"),
    Scarce.FILES: re.compile(r"Too many open files"),
    Scarce.MEMORY: re.compile(
        r"MemoryError|Cannot allocate memory|failed to map segment|std::bad_alloc|Memory allocation still failed"
    ),
}


def scarce_of(error: BaseException) -> Scarce | None:
    """What was missing, by an exception or by one that caused it."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, MemoryError):
            # CuPy's own is one of the GPU's memory.
            return Scarce.GPU_MEMORY if type(at).__module__.startswith("cupy") else Scarce.MEMORY
        if isinstance(at, OSError) and at.errno in _ERRNOS:
            return _ERRNOS[at.errno]
        if isinstance(at, ImportError | RuntimeError | GpuBurninError) and (found := scarce_in(str(at))):
            return found
        at = at.__cause__ or at.__context__
    return None


def scarce_in(text: str) -> Scarce | None:
    """The same from the last lines of a program."""
    last = "\n".join([line for line in text.splitlines() if line.strip()][-_LAST_LINES:])
    return next((kind for kind, pattern in _MESSAGES.items() if pattern.search(last)), None)


@dataclass(frozen=True)
class Group:
    """A control group that holds this process: its limits (None: none) and how often they were met, as counted."""

    path: Path
    memory_bytes: int | None = None
    oom_kills: int | None = None
    processes: int | None = None
    processes_refused: int = 0


def groups(cgroup: Path = CGROUP, mounted: Path = CGROUPS) -> tuple[Group, ...]:
    """The groups of this process, its own before those around it, of cgroup v2 and v1; () where none can be read.

    Files: memory.max, memory.events, pids.max, pids.events (Documentation/admin-guide/cgroup-v2.rst);
    memory.limit_in_bytes, memory.oom_control, pids.max (cgroup-v1/memory.rst). A namespace may show other paths than
    the mount has: what is not there is passed over.
    """
    found: list[Group] = []
    for line in _text(cgroup).splitlines():
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        root = mounted if not controllers else mounted / controllers
        if controllers not in ("", "memory", "pids"):
            continue
        own = root / name.lstrip("/")
        for path in (own, *own.parents):
            if path.is_relative_to(root):
                found.append(_group(path))
    return tuple(group for group in found if group != Group(group.path))


def _group(path: Path) -> Group:
    kills = _count(path / "memory.events", "oom_kill")
    return Group(
        path,
        memory_bytes=_number(path / "memory.max") or _number(path / "memory.limit_in_bytes"),
        oom_kills=_count(path / "memory.oom_control", "oom_kill") if kills is None else kills,
        processes=_number(path / "pids.max"),
        processes_refused=_count(path / "pids.events", "max") or 0,
    )


def oom_kills(vmstat: Path = VMSTAT, cgroup: Path = CGROUP, mounted: Path = CGROUPS) -> dict[str, int]:
    """Processes killed for lack of memory so far, by control group of this process, and of the whole kernel (ALL).

    The kernel's line "oom_kill N" counts those of control groups too (__oom_kill_process in mm/oom_kill.c, 4.13).
    """
    counts = {str(group.path): group.oom_kills for group in groups(cgroup, mounted) if group.oom_kills is not None}
    return {**counts, ALL: _count(vmstat, "oom_kill") or 0}


@dataclass(frozen=True)
class Shortage:
    """What shows why a worker could not go on: a sentence, and whether a limit is behind it that can be raised."""

    kind: Scarce
    text: str
    by_limit: bool


def shortage(kind: Scarce) -> Shortage:
    """What was scarce, with the limits that can be behind it."""
    limits = "; ".join(_limits(kind))
    return Shortage(kind, limits or f"the host has no more {kind}: free some", bool(limits))


def shown_by_end(
    end: Mapping[str, Any], killed_by_us: bool, before: Mapping[str, int], after: Mapping[str, int]
) -> Shortage | None:
    """Whether the way in which a worker ended (its obituary) shows that the host ran out of something.

    `before` and `after` are oom_kills() when it started and now.
    """
    status = end["exit_status"]
    if status == -signal.SIGKILL and not killed_by_us:
        rose = [name for name, count in after.items() if count > before.get(name, 0)]
        # Its own group counts a kill of its processes, whoever caused it: without that, the kernel killed another one.
        own = next((name for name in after if name != ALL), ALL)
        return _killed([name for name in rose if name != ALL]) if own in rose else None
    if status == -signal.SIGXCPU:
        return shortage(Scarce.CPU_TIME)
    if isinstance(status, int) and (status > 0 or status == -signal.SIGABRT):
        return shown_by_message(str(end["stderr_tail"]))
    return None


def shown_by_message(text: str) -> Shortage | None:
    """Whether a worker's last lines name what a limit that is in force has kept from it."""
    found = scarce_in(text)
    told = shortage(found) if found else None
    return told if told is not None and told.by_limit else None


def _killed(rose: list[str]) -> Shortage:
    limited = [group for group in groups() if str(group.path) in rose and group.memory_bytes is not None]
    if not limited:
        return Shortage(Scarce.MEMORY, "the kernel killed the worker for lack of memory: free host memory", False)
    text = (
        f"the kernel killed the worker because its control group {limited[0].path} may use "
        f"{_size(limited[0].memory_bytes or 0)}: raise memory.max (MemoryMax= of the unit, the memory of the container)"
    )
    return Shortage(Scarce.MEMORY, text, True)


def _limits(kind: Scarce) -> Iterator[str]:
    """The limits in force that can be behind it, each with its value and the way to raise it."""
    for name in _BEHIND[kind]:
        value = resource.getrlimit(getattr(resource, name))[0]
        # The kernel lets root have more processes than that.
        if value != resource.RLIM_INFINITY and not (name == "RLIMIT_NPROC" and os.geteuid() == 0):
            option, unit, is_bytes = _RLIMITS[name]
            shown = _size(value) if is_bytes else str(value)
            yield f"{name} is {shown}: raise it (ulimit {option}, {unit}= of the unit)"
    if kind is Scarce.PROCESSES:
        for group in groups():
            if group.processes is not None and group.processes_refused:
                yield f"pids.max of {group.path} is {group.processes}: raise it (TasksMax= of the unit)"
    if kind is Scarce.SHARED and (size_bytes := _shared_bytes()) < _LITTLE_SHARED_BYTES:
        yield f"{SHARED_MEMORY} has {_size(size_bytes)}: make it larger (--shm-size or --ipc=host of the container)"


def _shared_bytes() -> int:
    try:
        stat = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return stat.f_blocks * stat.f_frsize


def _size(value: int) -> str:
    return f"{value / (1 << 30):.4g} GiB" if value >= 1 << 30 else f"{value / (1 << 20):.4g} MiB"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    """A limit; None for "max", for v1's largest number of pages, and where there is no such file."""
    text = _text(path).strip()
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _count(path: Path, name: str) -> int | None:
    """N of a line "NAME N"."""
    fields = (line.split() for line in _text(path).splitlines())
    return next(
        (int(field[1]) for field in fields if len(field) == 2 and field[0] == name and field[1].isdigit()), None
    )
