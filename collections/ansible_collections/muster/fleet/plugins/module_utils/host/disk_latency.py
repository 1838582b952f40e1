"""p99 of fdatasync on a mounted disk, measured the way `fio --rw=write --fdatasync=1` does.

Standard library only: this runs on the hosts. Thresholds: etcd's FAQ wants p99 below 10 ms; 500
sequential IOPS for a heavily loaded cluster (etcd hardware page) are 2 ms.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import files

# Where data is not on a disk, or not on this one: a flush there costs nothing and proves nothing.
UNFIT_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "overlay", "nfs", "nfs4", "cifs", "ceph", "9p", "virtiofs"})
MIN_SAMPLES = 200  # p99 of fewer rests on one or two values


@dataclass(frozen=True)
class Latency:
    """Durations of fdatasync in milliseconds, and what was measured."""

    samples: int
    block_bytes: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


def percentile(sorted_values: Sequence[float], fraction: float) -> float:
    """Nearest-rank percentile (the smallest value with at least `fraction` of all at or below it)."""
    return sorted_values[max(0, math.ceil(fraction * len(sorted_values)) - 1)]


def summarise(durations_s: Sequence[float], block_bytes: int) -> Latency:
    """Percentiles of single durations in seconds. Raises FleetError when there are none."""
    if not durations_s:
        raise FleetError("not one fdatasync was finished in the time given")
    ordered = sorted(duration * 1000 for duration in durations_s)
    return Latency(
        samples=len(ordered),
        block_bytes=block_bytes,
        p50_ms=round(percentile(ordered, 0.5), 3),
        p99_ms=round(percentile(ordered, 0.99), 3),
        p999_ms=round(percentile(ordered, 0.999), 3),
        max_ms=round(ordered[-1], 3),
    )


def refusal(latency: Latency, max_p99_ms: float) -> str | None:
    """Why this disk is too slow, or None."""
    if latency.p99_ms > max_p99_ms:
        return (
            f"p99 of fdatasync is {latency.p99_ms} ms ({latency.samples} writes of {latency.block_bytes} bytes, "
            f"median {latency.p50_ms} ms), more than the {max_p99_ms:g} ms allowed"
        )
    if latency.samples < MIN_SAMPLES:
        return f"only {latency.samples} of at least {MIN_SAMPLES} fdatasync calls were finished in the time given"
    return None


def mount_filesystem(path: str, mountinfo: str) -> str | None:
    """Filesystem type mounted exactly at `path`, from the text of /proc/self/mountinfo; None if nothing is."""
    found = None
    for line in mountinfo.splitlines():
        fields = line.split()
        if len(fields) > 4 and fields[4] == path and "-" in fields:
            found = fields[fields.index("-") + 1]
    return found


def measure(
    directory: str,
    samples: int,
    block_bytes: int,
    max_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Latency:
    """Write `samples` blocks one after the other into a preallocated file, each followed by fdatasync.

    Stops after `max_seconds`. Only fdatasync is timed. The file has no name (it is unlinked at
    once), so nothing is left behind however this ends. Raises FleetError (disk full, I/O error).
    """
    durations: list[float] = []
    block = os.urandom(block_bytes)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".disk-latency-", dir=directory)
        try:
            Path(name).unlink()
            os.posix_fallocate(descriptor, 0, samples * block_bytes)
            os.fsync(descriptor)
            deadline = clock() + max_seconds
            for number in range(samples):
                os.pwrite(descriptor, block, number * block_bytes)
                start = clock()
                os.fdatasync(descriptor)
                end = clock()
                durations.append(end - start)
                if end >= deadline:
                    break
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FleetError(f"{directory} cannot be measured: {error.strerror}") from None
    return summarise(durations, block_bytes)


def read_results(path: str) -> dict[str, Latency]:
    """Earlier results by device key. An unreadable file counts as none: it is only a cache."""
    try:
        stored = json.loads(Path(path).read_text())
        return {key: Latency(**value["latency"]) for key, value in stored.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def write_results(path: str, results: dict[str, Latency]) -> None:
    """Replace the file as a whole."""
    target = Path(path)
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with files.replacing(target) as stream:
        stream.write(json.dumps({key: {"latency": asdict(value)} for key, value in results.items()}, indent=1).encode())
