"""roles/etcd_backup/files: whose turn, what is due, what goes, what is whole. With a real etcd: tests/integration."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLE = Path(__file__).resolve().parents[3] / "roles/etcd_backup"
FILES = ROLE / "files"
sys.path.insert(0, str(FILES))
try:
    etcd_backup = importlib.import_module("etcd_backup")
    second_place = importlib.import_module("second_place")
finally:
    sys.path.remove(str(FILES))

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
HOUR_S = 3600.0
CONFIG = etcd_backup.Config(
    fleet="lab", cluster="main", member="etcd-1", endpoints={"etcd-1": "https://198.18.7.11:2379"},
    ca="ca", cert="crt", key="key", period_s=HOUR_S, tick_s=300.0, recipients="recipients", directory="/nowhere",
    keep_local=1, keep_count=3, keep_days=10.0, place={}, textfile="/nowhere/muster_etcd_backup.prom",
)  # fmt: skip


def status(name: str, **changes: Any) -> Any:
    plain = etcd_backup.Status(
        name=name, leader=False, has_leader=True, learner=False, corrupt=False, index=50_000, db_size_bytes=1 << 20,
        version="3.6.16", cluster_id="1",
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def name(age_s: float, cluster: str = "main", ending: str = ".tar.age") -> str:
    stamp = etcd_backup.dt.datetime.fromtimestamp(NOW_S - age_s, etcd_backup.dt.UTC).strftime(etcd_backup.STAMP)
    return f"lab-{cluster}-{stamp}-etcd-2{ending}"


@pytest.mark.parametrize(
    ("members", "turn"),
    [
        ([status("etcd-3"), status("etcd-1", leader=True), status("etcd-2")], "etcd-2"),
        ([status("etcd-3", leader=True), status("etcd-2"), status("etcd-1")], "etcd-1"),
        ([status("etcd-1", leader=True)], "etcd-1"),
        ([status("etcd-1", learner=True), status("etcd-2"), status("etcd-3", leader=True)], "etcd-2"),
        ([status("etcd-1", corrupt=True), status("etcd-2"), status("etcd-3", leader=True)], "etcd-2"),
        ([status("etcd-1", has_leader=False), status("etcd-2"), status("etcd-3", leader=True)], "etcd-2"),
        ([status("etcd-1", index=48_999), status("etcd-2", index=49_000), status("etcd-3", leader=True)], "etcd-2"),
        ([status("etcd-1", index=1), status("etcd-3", leader=True)], "etcd-3"),
    ],
)
def test_the_turn_is_of_one_healthy_follower(members: Sequence[Any], turn: str) -> None:
    assert etcd_backup.whose_turn(members) == turn


@pytest.mark.parametrize("members", [[], [status("etcd-1", has_leader=False)]])
def test_a_cluster_without_a_healthy_member_has_no_snapshot(members: Sequence[Any]) -> None:
    with pytest.raises(second_place.BackupError, match="no member of the cluster is healthy"):
        etcd_backup.whose_turn(members)


@pytest.mark.parametrize(
    ("names", "due"),
    [
        ([], True),
        ([name(HOUR_S)], True),
        ([name(HOUR_S - 100)], True),  # Half an asking early: the asking after would be five minutes late.
        ([name(HOUR_S - 200)], False),
        ([name(9 * HOUR_S), name(60)], False),
        ([name(60, ending=".tar.age.partial")], True),
        ([name(60, cluster="events")], True),
        (["lab-main-99999999T999999Z-etcd-2.tar.age", "notes.txt"], True),
        ([name(-9 * HOUR_S), name(HOUR_S)], True),  # A member's clock was wrong.
        ([name(-9 * HOUR_S), name(60)], False),
    ],
)
def test_a_snapshot_is_due_when_the_newest_finished_one_is_a_period_old(names: list[str], due: bool) -> None:
    assert etcd_backup.is_due(names, CONFIG, NOW_S) is due


def test_what_is_too_many_too_old_or_never_finished_goes_and_nothing_else() -> None:
    days = 24 * HOUR_S
    kept = [name(0), name(HOUR_S), name(2 * HOUR_S)]
    others = ["notes.txt", name(90 * days, cluster="events"), name(60, ending=".tar.age.partial")]
    gone = [name(3 * HOUR_S), name(90 * days), name(2 * days, ending=".tar.age.partial")]
    assert etcd_backup.expired([*kept, *others, *gone], CONFIG, NOW_S, CONFIG.keep_count, kept[0]) == gone
    unlimited = dataclasses.replace(CONFIG, keep_days=0.0)
    assert etcd_backup.expired([*kept, *gone], unlimited, NOW_S, 0, kept[0]) == [gone[2]]


def test_the_verified_one_stays_however_old() -> None:
    old = name(365 * 24 * HOUR_S)
    assert etcd_backup.expired([old], CONFIG, NOW_S, 1, old) == []


def test_a_snapshot_must_end_with_its_own_hash(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.db"
    pages = bytes(range(256)) * 8
    whole = pages + hashlib.sha256(pages).digest()
    path.write_bytes(whole)
    etcd_backup.check_whole(path)
    for damaged in (whole[:-1], pages, b"", whole[:512] + whole[-32:], b"\1" + whole[1:]):
        path.write_bytes(damaged)
        with pytest.raises(second_place.BackupError, match="truncated or damaged"):
            etcd_backup.check_whole(path)


def test_the_metrics_tell_the_last_success_and_the_failure() -> None:
    text = etcd_backup.metrics(CONFIG, {"taken_at_s": 1_800_000_000, "size_bytes": 20512}, False)
    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert values == [
        'muster_etcd_backup_last_success_timestamp_seconds{cluster="main"} 1800000000',
        'muster_etcd_backup_size_bytes{cluster="main"} 20512',
        'muster_etcd_backup_period_seconds{cluster="main"} 3600',
        'muster_etcd_backup_failed{cluster="main"} 0',
    ]
    never = etcd_backup.metrics(CONFIG, {}, True)
    assert "last_success" not in never
    assert 'failed{cluster="main"} 1' in never


def test_prometheus_keeps_each_of_the_metrics() -> None:
    kept = yaml.safe_load((FILES.parents[1] / "fleet_monitoring/files/series.yaml").read_text())["node"]
    text = etcd_backup.metrics(CONFIG, {"taken_at_s": 1_800_000_000, "size_bytes": 20512}, False)
    shown = {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert len(shown) == 4
    assert {name for name in shown if not any(re.fullmatch(entry["names"], name) for entry in kept)} == set()
    # No room is planned for what no try writes.
    entry = next(entry for entry in kept if re.fullmatch(entry["names"], "muster_etcd_backup_failed"))
    assert entry["series"] == len(shown)


def test_why_sftp_ended_is_told_and_not_that_it_did() -> None:
    """As OpenSSH 9.2 says it."""
    refused = "etcd-backup@198.18.41.21: Permission denied (publickey).\r\nConnection closed.  \nConnection closed\n"
    assert second_place.last_line(refused) == "etcd-backup@198.18.41.21: Permission denied (publickey)."
    assert second_place.last_line("Connection closed\n") == "Connection closed"


def test_why_a_bucket_refuses_is_told_and_not_the_number_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rclone 1.60 says it. The bucket is never made: a key for one folder may not."""
    rclone = tmp_path / "rclone"
    said = (
        "ERROR : Attempt 1/1 failed\nFailed to copyto: AccessDenied: Access Denied\n\tstatus code: 403, request id: 1\n"
    )
    rclone.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\nprintf %s "{said}" >&2\nexit 1\n')
    rclone.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    place = second_place.connect({"kind": "bucket", "path": "snapshots/etcd", "config": "/etc/r.conf"}, tmp_path)
    with pytest.raises(second_place.BackupError, match=r"etcd failed: Failed to copyto: AccessDenied: Access Denied$"):
        place.put(tmp_path / "a", "a")
    with pytest.raises(second_place.BackupError, match="does not give a back"):
        place.sha256("a")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 2
    assert all("--config /etc/r.conf --s3-no-check-bucket" in line for line in asked)


def test_a_client_that_is_not_there_is_named() -> None:
    with pytest.raises(second_place.BackupError, match="the second place failed: no-such-program cannot be run"):
        second_place.run(["no-such-program"], "the second place failed")


def test_all_that_the_role_writes_goes_when_the_inventory_asks_for_no_snapshots() -> None:
    """And the credentials of one kind of place when another takes its turn."""
    variables = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    tasks = {name: yaml.safe_load((ROLE / f"tasks/{name}.yml").read_text()) for name in ("main", "absent", "backup")}
    kinds = ("files", "sftp_files", "bucket_files")
    written = {entry["dest"] for kind in kinds for entry in variables[f"__etcd_backup_{kind}"]}
    units = {path for path in written if path.startswith("/etc/systemd/system/")}
    assert set(variables["__etcd_backup_paths"]) == written - units
    down = [task["muster.fleet.unit"] for task in tasks["absent"] if "muster.fleet.unit" in task]
    assert {f"/etc/systemd/system/{one['name']}" for one in down} == units and len(down) == len(units)
    assert {one["state"] for one in down} == {"absent"}
    assert [task["when"] for task in tasks["main"]] == ["__etcd_backup_wanted", "not __etcd_backup_wanted"]
    (place,) = [task["muster.fleet.file_set"] for task in tasks["backup"] if "muster.fleet.file_set" in task]
    for kind in kinds[1:]:
        assert all(entry["dest"] in place["absent"] for entry in variables[f"__etcd_backup_{kind}"])
