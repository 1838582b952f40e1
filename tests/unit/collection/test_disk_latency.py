"""The percentile, the limit, and a real measurement."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import disk_latency as dl


def latency(p99_ms: float, samples: int = 2000) -> dl.Latency:
    return dl.Latency(samples, 8192, 0.1, p99_ms, p99_ms, p99_ms)


def test_percentile_is_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert dl.percentile(values, 0.99) == 99
    assert dl.percentile(values, 0.5) == 50
    assert dl.percentile([7.0], 0.99) == 7


def test_summarise_in_milliseconds() -> None:
    found = dl.summarise([0.001] * 99 + [0.5], 8192)
    assert (found.p50_ms, found.p99_ms, found.max_ms) == (1.0, 1.0, 500.0)
    with pytest.raises(FleetError, match="not one fdatasync"):
        dl.summarise([], 8192)


@pytest.mark.parametrize(
    ("found", "limit_ms", "reason"),
    [
        (latency(9.9), 10, None),
        (latency(10.0), 10, None),
        (latency(10.1), 10, "more than the 10 ms allowed"),
        (latency(2.1), 2, "more than the 2 ms allowed"),
        (latency(1.0, samples=150), 10, "only 150 of at least 200"),
    ],
)
def test_refusal(found: dl.Latency, limit_ms: float, reason: str | None) -> None:
    said = dl.refusal(found, limit_ms)
    assert (said is None) if reason is None else (said is not None and reason in said)


def test_measures_and_leaves_nothing(tmp_path: Path) -> None:
    found = dl.measure(str(tmp_path), samples=20, block_bytes=8192, max_seconds=15)
    assert found.samples == 20
    assert 0 < found.p50_ms <= found.p99_ms <= found.max_ms
    assert list(tmp_path.iterdir()) == []


def test_stops_at_the_deadline(tmp_path: Path) -> None:
    ticks = iter(range(10_000))
    found = dl.measure(str(tmp_path), 1000, 512, max_seconds=10, clock=lambda: float(next(ticks)))
    assert found.samples < 10


def test_says_why_it_cannot_measure(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="cannot be measured: No such file"):
        dl.measure(str(tmp_path / "none"), 1, 512, 1)


@pytest.mark.parametrize(
    ("path", "filesystem"), [("/var/lib/etcd", "ext4"), ("/tmp", "tmpfs"), ("/home", None), ("/var", None)]
)
def test_mount_filesystem(path: str, filesystem: str | None) -> None:
    mountinfo = (
        "30 1 7:0 / /var/lib/etcd rw,noatime shared:1 - ext4 /dev/loop0 rw\n31 1 0:5 / /tmp rw - tmpfs tmpfs rw\n"
    )
    assert dl.mount_filesystem(path, mountinfo) == filesystem


def test_results_survive_and_damage_counts_as_none(tmp_path: Path) -> None:
    path = str(tmp_path / "deep/results.json")
    assert dl.read_results(path) == {}
    dl.write_results(path, {"/dev/disk/by-id/a": latency(1.5)})
    assert dl.read_results(path) == {"/dev/disk/by-id/a": latency(1.5)}
    Path(path).write_text('{"a": {"latency": {"samples": 1}}}')
    assert dl.read_results(path) == {}
    Path(path).write_text("{")
    assert dl.read_results(path) == {}
