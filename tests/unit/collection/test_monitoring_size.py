"""Series, disk and memory of a fleet's Prometheus; the budget that files/series.yaml keeps."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.preflight import monitoring_size as size
from ansible_collections.muster.fleet.plugins.modules.monitoring_capacity import judge, room_bytes

from tests.support.series_budget import DECLARED, FLEET_SERIES, LARGE, NODE_SERIES

GIVEN = {
    "series": {"node": [{"series": 92}], "gpu": [{"series": 192}]},
    "targets": {"node": 1000, "gpu": "1000"},
    "interval_s": 30.0,
    "retention_days": 30.0,
    "disk_gib": 0.0,
    "allow_little_memory": False,
    "folder": "/var/lib/prometheus",
}
TIB = 2**40


def test_a_node_of_8_gpus_has_600_series_at_most() -> None:
    of_a_node = {"node": DECLARED["node"], "gpu": DECLARED["gpu"]}
    assert size.fleet_series(of_a_node, {"node": 1, "gpu": 1}) <= NODE_SERIES


def test_a_fleet_of_7500_nodes_has_4500000_series_at_most() -> None:
    assert size.fleet_series(DECLARED, LARGE) <= FLEET_SERIES


def test_each_entry_says_why_and_how_many() -> None:
    for entries in DECLARED.values():
        for entry in entries:
            assert set(entry) == {"names", "series", "why"} and entry["why"] and entry["series"] > 0, entry


def test_a_job_without_an_entry_is_refused() -> None:
    with pytest.raises(FleetError, match="dns: a job needs targets and an entry"):
        size.fleet_series({"node": []}, {"node": 1, "dns": 1})


def test_the_need_grows_with_series_days_and_how_often() -> None:
    wanted = size.need(300_000, 30, 30)
    assert wanted.samples_per_s == 10_000
    # 30 days at 2 bytes, and the log of 4.5 hours at 8.
    assert wanted.kept_bytes == 10_000 * (30 * 86400 * 2 + 16200 * 8)
    assert wanted.disk_bytes == wanted.kept_bytes / 0.8
    assert size.need(600_000, 60, 30).kept_bytes == wanted.kept_bytes
    assert size.need(600_000, 60, 30).memory_bytes > wanted.memory_bytes
    assert size.days_that_fit(300_000, 30, wanted.kept_bytes) == pytest.approx(30)
    assert size.days_that_fit(300_000, 30, 1e6) == 0


def test_a_host_that_suffices_is_told_in_one_line() -> None:
    done = judge(GIVEN, TIB, 64 * size.GIB)
    assert done["line"] == (
        "300,000 series, 10,000 samples a second: 30 days take 61.9 of 1,024.0 GiB of disk "
        "and 2.8 of 64.0 GiB of memory"
    )
    assert done["retention_mib"] == size.need(300_000, 30, 30).kept_bytes >> 20
    assert done["warnings"] == []


@pytest.mark.parametrize(
    ("changed", "room", "memory", "told"),
    [
        (
            {},
            50 * size.GIB,
            64 * size.GIB,
            "/var/lib/prometheus has 50.0 GiB for Prometheus, and 300,000 series need 61.9",
        ),
        ({}, TIB, size.GIB, "has 1.0 GiB of memory, and 300,000 series need 2.8 GiB; give it more memory"),
        # Little memory may be allowed; a disk that would fill up may not.
        ({"allow_little_memory": True}, 50 * size.GIB, 64 * size.GIB, "lower fleet_monitoring_retention_days"),
        ({"disk_gib": 40.0}, 30 * size.GIB, 64 * size.GIB, "has 30.0 GiB for Prometheus"),
        (
            {"disk_gib": 2.0},
            TIB,
            64 * size.GIB,
            "fleet_monitoring_disk_gib 2 keeps 0.2 days of 300,000 series; one day",
        ),
        ({"interval_s": 0.0}, TIB, TIB, "interval_s and retention_days must be above 0"),
    ],
)
def test_a_host_that_is_too_small_is_refused(changed: dict[str, Any], room: int, memory: int, told: str) -> None:
    with pytest.raises(FleetError) as refused:
        judge({**GIVEN, **changed}, room, memory)
    assert told in str(refused.value)


def test_what_a_site_gives_is_the_limit_and_less_memory_is_a_warning() -> None:
    done = judge({**GIVEN, "disk_gib": 40.0, "allow_little_memory": True}, TIB, size.GIB)
    assert done["retention_mib"] == 32 * 1024
    assert "19 days" in done["line"]
    assert [told[:30] for told in done["warnings"]] == ["the host has 1.0 GiB of memory"]


def test_what_prometheus_has_written_counts_as_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "prometheus"
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(f_bavail=10, f_frsize=4096))
    assert room_bytes(data) == 40960
    (data / "wal").mkdir(parents=True)
    (data / "wal" / "1").write_bytes(bytes(2**20))
    assert room_bytes(data) == 40960 + (data / "wal" / "1").stat().st_blocks * 512 > 40960
