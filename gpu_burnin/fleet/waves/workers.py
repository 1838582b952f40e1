"""How many shards run at a time. Pure, but for what is read of this machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError

# Ansible waits for its hosts most of the time.
_A_CORE = 4
# One ansible-playbook with its forks: its pages are shared with them, for the most part.
_MEMORY_BYTES = 100 << 20
# Of the executor; of each worker: pipes of its forks are its own limit.
_OWN_FILES, _FILES = 200, 8


@dataclass(frozen=True)
class Workers:
    """How many, and by which bounds: each a sentence's part, the bound that counts first."""

    count: int
    bounds: tuple[str, ...]


def workers(
    cores: int, free_bytes: int, files: int, jump_startups: int | None = None, most: int | None = None
) -> Workers:
    """The least of all bounds. Raises GpuBurninError where not even one is left.

    `jump_startups` is how many logins a jump host begins at a time (MaxStartups), None without one; `most` is what the
    caller or the playbook allows.
    """
    bounds: Mapping[str, int] = {
        f"{_A_CORE} for each of {cores} cores": _A_CORE * cores,
        f"free memory of {free_bytes / 2**30:.1f} GiB": free_bytes // _MEMORY_BYTES,
        f"{files:,} open files (ulimit -n)": (files - _OWN_FILES) // _FILES,
        **({f"MaxStartups {jump_startups} of the jump host": jump_startups} if jump_startups is not None else {}),
        **({f"{most} that are allowed": most} if most is not None else {}),
    }
    ordered = sorted(bounds.items(), key=lambda item: item[1])
    name, count = ordered[0]
    if count < 1:
        raise GpuBurninError(f"this machine can run no shard: {name} are too few; give it more")
    return Workers(count, tuple(f"{text}: {bound:,}" for text, bound in ordered))


def of_this_machine(jump_startups: int | None = None, most: int | None = None) -> Workers:
    """As many as this machine bears now."""
    cores = len(os.sched_getaffinity(0))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return workers(cores, available_bytes(Path("/proc/meminfo")), files, jump_startups, most)


def available_bytes(meminfo: Path) -> int:
    """Memory that is free or can be had without swapping, proc_meminfo(5)."""
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise GpuBurninError(f"{meminfo} has no MemAvailable; give --workers")
