"""How many shards run at a time, and how long they will."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves.forecast import Seen, left_s
from gpu_burnin.fleet.waves.workers import available_bytes, of_this_machine, workers

GIB = 1 << 30


@pytest.mark.parametrize(
    ("hosts", "cores", "free", "files", "jump", "most", "count"),
    [
        (250, 16, 64 * GIB, 1 << 20, None, None, 64),
        (1, 16, 1 * GIB, 1 << 20, None, None, 10),
        (250, 16, 8 * GIB, 1 << 20, None, None, 15),
        (250, 16, 64 * GIB, 1024, None, None, 64),
        (100, 64, 64 * GIB, 1024, None, None, 103),
        (250, 16, 64 * GIB, 256, None, None, 7),
        (250, 16, 64 * GIB, 1 << 20, 10, None, 10),
        (250, 16, 64 * GIB, 1 << 20, 10, 3, 3),
    ],
)
def test_the_least_bound_counts_and_stands_first(
    hosts: int, cores: int, free: int, files: int, jump: int | None, most: int | None, count: int
) -> None:
    found = workers(hosts, cores, free, files, jump, most)
    assert found.count == count
    assert found.bounds[0].endswith(f": {count:,}")


def test_a_machine_that_bears_none_says_why() -> None:
    with pytest.raises(GpuBurninError, match=r"200 open files \(ulimit -n\) are too few"):
        workers(1, 2, GIB, 200)


def test_free_memory_is_what_can_be_had_without_swapping(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 40 kB\n")
    assert available_bytes(meminfo) == 40 << 10
    meminfo.write_text("MemTotal: 100 kB\n")
    with pytest.raises(GpuBurninError, match="no MemAvailable"):
        available_bytes(meminfo)
    assert of_this_machine(1, most=1).count == 1


def test_the_time_left_is_that_of_the_waves_ahead() -> None:
    seen = [Seen(1, 11.0, 4.0), Seen(10, 20.0, 40.0)]
    assert left_s([], [[10]], 4, 2) is None
    assert left_s(seen, [], 4, 2) == 0
    assert left_s(seen, [[1]], 4, 2) == pytest.approx(11.0)
    # The processors need longer than a shard: 80 hosts of 4 CPU s on 2 cores.
    assert left_s(seen, [[20] * 4], 4, 2) == pytest.approx(160.0)
    # So do others' programs: hosts that are containers of this machine, say.
    assert left_s(seen, [[20] * 4], 4, 2, others=0.5) == pytest.approx(240.0)
    # On many cores it is the shards one after the other, and what each wave takes besides.
    assert left_s(seen, [[20] * 8, [20]], 4, 100, between_s=5.0) == pytest.approx(2 * 30.0 + 5.0 + 30.0 + 5.0)
    # Shards that took less with more hosts say nothing of a slope.
    assert left_s([Seen(10, 10.0, 1.0), Seen(1, 20.0, 1.0)], [[5]], 1, 8) == pytest.approx(15.0)
