"""The probe of etcd's disk beside fio, in turns on one file system: `make bench-disk`.

Both write the same number of blocks, each followed by fdatasync, on an ext4 of a loop device: as it is, and made slow.
Compared are the 99th percentile, which other load moves, and what reached the device for each write, which it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host import disk_latency

from tests.integration.disk import NO_DISK, Disk, Reached, can_be_slow, loop_disk

# etcd's own recipe writes 2300 bytes (etcd.io, "How to benchmark an etcd disk with fio"); the module writes 8192.
BLOCKS_BYTES = (8192, 2300)
NO_FIO = "no fio: apt-get install fio"
GOAL = 0.15
NO_LIMIT, SLOW_PER_S = 0, 500


@dataclass(frozen=True)
class Turn:
    """One run of one of them: 99th percentile in milliseconds, and what reached the device for each write."""

    p99_ms: float
    writes: float
    flushes: float
    kib: float


@dataclass(frozen=True)
class Row:
    """All turns of one kind: limit of writes a second (0: none), size of a write, turns of the probe and of fio."""

    limit_per_s: int
    block_bytes: int
    probe: Sequence[Turn]
    fio: Sequence[Turn]

    @property
    def ratio(self) -> float:
        """The probe's p99 by that of fio: of the medians of all turns."""
        return _median(self.probe) / _median(self.fio)

    @property
    def met(self) -> bool:
        """Whether the probe is as near to fio as it should be."""
        return abs(self.ratio - 1) <= GOAL


def _median(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.p99_ms for turn in turns)


def by_probe(disk: Disk, samples: int, block_bytes: int) -> float:
    """p99 in milliseconds as the module measures it."""
    return float(disk_latency.measure(str(disk.mount_point), samples, block_bytes, max_seconds=600).p99_ms)


def by_fio(disk: Disk, samples: int, block_bytes: int) -> float:
    """p99 in milliseconds as fio measures it. Raises CalledProcessError."""
    argv = ["fio", "--name=probe", f"--directory={disk.mount_point}", "--rw=write", "--ioengine=sync", "--fdatasync=1",
            f"--size={samples * block_bytes}", f"--bs={block_bytes}", "--unlink=1", "--output-format=json"]  # fmt: skip
    job = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)["jobs"][0]
    return float(job["sync"]["lat_ns"]["percentile"]["99.000000"]) / 1e6


def turn(disk: Disk, samples: int, block_bytes: int, measure: Callable[[Disk, int, int], float]) -> Turn:
    """One run, with what reached the device in it."""
    before = disk.reached()
    p99_ms = measure(disk, samples, block_bytes)
    reached: Reached = disk.reached().since(before)
    kib = reached.written_bytes / samples / 1024
    return Turn(p99_ms, reached.writes / samples, reached.flushes / samples, kib)


def compare(disk: Disk, limit_per_s: int, samples: int, rounds: int) -> list[Row]:
    """In turns, a row for each size of a write."""
    found: dict[int, tuple[list[Turn], list[Turn]]] = {size: ([], []) for size in BLOCKS_BYTES}
    with disk.slow(limit_per_s) if limit_per_s else nullcontext():
        for number in range(rounds):
            for size, (probe, fio) in found.items():
                # Who is first changes, so that neither always writes after the other.
                for measure in (by_probe, by_fio) if number % 2 else (by_fio, by_probe):
                    (probe if measure is by_probe else fio).append(turn(disk, samples, size, measure))
    return [Row(limit_per_s, size, probe, fio) for size, (probe, fio) in found.items()]


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| Disk | A write | p99 of the probe, all turns | p99 of fio, all turns | Ratio of the medians | "
        "For each write reach the device, probe / fio: writes, flushes, KiB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        disk = f"{row.limit_per_s} writes a second" if row.limit_per_s else "as it is"
        spread = [
            f"{_median(turns):.2f} ms ({min(t.p99_ms for t in turns):.2f} to {max(t.p99_ms for t in turns):.2f})"
            for turns in (row.probe, row.fio)
        ]
        reached = ", ".join(
            f"{statistics.median(getattr(t, name) for t in row.probe):.2f} / "
            f"{statistics.median(getattr(t, name) for t in row.fio):.2f}"
            for name in ("writes", "flushes", "kib")
        )
        ratio = f"{row.ratio:.2f}{'' if row.met else ' **missed**'}"
        lines.append(f"| {disk} | {row.block_bytes} bytes | {spread[0]} | {spread[1]} | {ratio} | {reached} |")
    return "\n".join(lines)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.disk")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--directory", type=Path, help="where the disk's file lies; else a folder for temporary files")
    arguments = parser.parse_args()
    if not can_be_slow() or not shutil.which("fio"):
        print(NO_FIO if can_be_slow() else NO_DISK, file=sys.stderr)
        return 2
    began = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=arguments.directory) as place, loop_disk(Path(place)) as disk:
        rows = compare(disk, NO_LIMIT, arguments.samples, arguments.rounds)
        # The throttle says how long a write takes, whoever writes: few turns are enough.
        rows += compare(disk, SLOW_PER_S, arguments.samples, max(3, arguments.rounds // 5))
    print(f"load {began:.0f} to {os.getloadavg()[0]:.0f}; {arguments.rounds} rounds; goal: within {GOAL:.0%} of fio\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
