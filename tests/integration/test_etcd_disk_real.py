"""The gate of etcd's disk on a real file system, made slow from outside as a sick or shared disk is.

Nothing here is compared with a clock of this machine but what the throttle itself forces.
Only here: what reaches a device is counted by the kernel, and the device is slow.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .disk import NO_DISK, Disk, can_be_slow, loop_disk
from .kube_files import REPOSITORY

MODULE = "ansible_collections.muster.fleet.plugins.modules.disk_latency"
ANY_MS, SAMPLES, MAX_S = 100_000.0, 250, 1.5
# An fdatasync of new blocks of a preallocated file is at least the block and the journal's record of it: 2 writes.
SLOW_WRITES_PER_S, LEAST_WRITES = 40, 2
# The throttle lets bursts through, but not for the whole run: so much is certain of the slowest.
FORCED_MS = 1000 / SLOW_WRITES_PER_S


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    if not can_be_slow():
        pytest.skip(NO_DISK)
    with loop_disk(tmp_path_factory.mktemp("disk")) as made:
        yield made


def measure(disk: Disk, results: Path, **changes: Any) -> dict[str, Any]:
    """The module's own answer, as Ansible starts it."""
    arguments = {"path": str(disk.mount_point), "device": disk.device, "max_p99_ms": ANY_MS, "results": str(results),
                 "samples": SAMPLES}  # fmt: skip
    given = json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, **changes}})
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'collections'}:{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, "-m", MODULE], input=given, capture_output=True, text=True, check=False, env=environment
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if answer.get("failed") else 0), done.stderr
    return answer


def test_each_sample_is_one_write_that_has_reached_the_disk(disk: Disk, tmp_path: Path) -> None:
    before = disk.reached()
    latency = measure(disk, tmp_path / "results.json")["latency"]
    reached = disk.reached().since(before)
    assert latency["samples"] == SAMPLES
    assert reached.flushes >= SAMPLES
    assert reached.writes >= LEAST_WRITES * SAMPLES
    assert reached.written_bytes >= SAMPLES * latency["block_bytes"]
    assert [path.name for path in disk.mount_point.iterdir()] == ["lost+found"]


def test_a_slow_disk_is_refused_with_the_figure_beside_the_limit_until_it_is_mended(disk: Disk, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    with disk.slow(SLOW_WRITES_PER_S):
        refused = measure(disk, results, max_p99_ms=10, max_seconds=MAX_S)
    latency = refused["latency"]
    assert refused["failed"] and refused["measured"]
    assert latency["p99_ms"] >= FORCED_MS
    where = f"{platform.node()}: {disk.device} on {disk.mount_point}"
    assert refused["msg"] == (
        f"{where} is too slow: p99 of fdatasync is {latency['p99_ms']} ms "
        f"({latency['samples']} writes of 8192 bytes, median {latency['p50_ms']} ms), more than the 10 ms allowed; "
        "give a local SSD or keep other load off this one"
    )
    assert not results.exists()
    mended = measure(disk, results)
    assert mended["changed"] and mended["measured"]


def test_a_disk_that_became_slow_is_found_when_it_is_measured_again(disk: Disk, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    good = measure(disk, results)
    limit_ms = good["latency"]["p99_ms"]
    with disk.slow(SLOW_WRITES_PER_S):
        kept = measure(disk, results, max_p99_ms=limit_ms)
        again = measure(disk, results, max_p99_ms=limit_ms, max_seconds=MAX_S, force=True)
    assert not kept["changed"] and not kept["measured"] and kept["latency"] == good["latency"]
    assert again["failed"] and again["measured"], again
    assert again["latency"]["p99_ms"] > limit_ms or again["latency"]["samples"] < 200
