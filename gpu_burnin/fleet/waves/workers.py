"""How many shards run at a time. Pure, but for what is read of this machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError

# Ansible waits for its hosts most of the time.
CORE_WORKERS = 4
# One ansible-playbook with its forks, which share most of its pages, and a connection kept open for each host.
_MEMORY_BYTES = 100 << 20
_CONNECTION_BYTES = 1800 << 10
# Of the executor; of each worker: pipes of its forks are its own limit.
_OWN_FILES, _FILES = 200, 8


@dataclass(frozen=True)
class Workers:
    """How many, and by which bounds: each a sentence's part, the bound that counts first."""

    count: int
    bounds: tuple[str, ...]


def workers(
    shard_hosts: int,
    cores: int,
    free_bytes: int,
    files: int,
    jump_startups: int | None = None,
    most: int | None = None,
) -> Workers:
    """The least of all bounds for shards of so many hosts. Raises GpuBurninError where not even one is left.

    `jump_startups` is how many logins a jump host begins at a time (MaxStartups), None without one; `most` is what the
    caller or the playbook allows.
    """
    shard_bytes = _MEMORY_BYTES + shard_hosts * _CONNECTION_BYTES
    bounds: Mapping[str, int] = {
        f"{CORE_WORKERS} for each of {cores} cores": CORE_WORKERS * cores,
        f"{shard_bytes >> 20} MiB each of {free_bytes / 2**30:.1f} GiB free": free_bytes // shard_bytes,
        f"{files:,} open files (ulimit -n)": (files - _OWN_FILES) // _FILES,
        **({f"MaxStartups {jump_startups} of the jump host": jump_startups} if jump_startups is not None else {}),
        **({f"{most} that are allowed": most} if most is not None else {}),
    }
    ordered = sorted(bounds.items(), key=lambda item: item[1])
    name, count = ordered[0]
    if count < 1:
        raise GpuBurninError(f"this machine can run no shard: {name} are too few; give it more")
    return Workers(count, tuple(f"{text}: {bound:,}" for text, bound in ordered))


def of_this_machine(shard_hosts: int, jump_startups: int | None = None, most: int | None = None) -> Workers:
    """As many as this machine bears now."""
    cores = len(os.sched_getaffinity(0))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return workers(shard_hosts, cores, available_bytes(Path("/proc/meminfo")), files, jump_startups, most)


def available_bytes(meminfo: Path) -> int:
    """Memory that is free or can be had without swapping, proc_meminfo(5)."""
    for line in meminfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise GpuBurninError(f"{meminfo} has no MemAvailable; give --workers")
