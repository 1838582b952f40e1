"""Reports as points of the history of rates: which count, what of them is kept, for how long."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.fleet import REPORTS
from gpu_burnin.fleet.baseline import comparison, rates
from gpu_burnin.fleet.baseline.points import read_point
from gpu_burnin.report import model
from gpu_burnin.system.clock import rfc3339
from tests.support.rate_fleets import NOW, Fleet, judged, kept_weekly
from tests.support.sample_reports import doubtful_8, healthy_1

RUN = "20260102T030405Z-000007"


@pytest.fixture(scope="module")
def healthy() -> dict[str, Any]:
    """A report with a PASS on real hardware."""
    return model.document(healthy_1()[0])


def put(state: Path, report: dict[str, Any], host: str = "gpu-1", name: str = "report.json", **changes: Any) -> Path:
    """Keep a report as a play does."""
    path = state / "reports" / host / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**report, "finished_at": rfc3339(NOW), **changes}, indent=1) + "\n")
    return path


def take(state: Path, now: datetime = NOW) -> rates.Taken:
    """Take in what is there."""
    return rates.take_in(state / rates.FILE, rates.reports_of(state / REPORTS), now, all_there=True)


def rows(state: Path, query: str) -> list[Any]:
    """What the database has."""
    with rates.DATABASE.reading(state / rates.FILE) as connection:
        return connection.execute(query).fetchall()


def test_a_point_has_each_rate_of_each_gpu(tmp_path: Path) -> None:
    report = model.document(doubtful_8()[0]) | {"verdict": "PASS", "interrupted": False, "simulated": False}
    point = read_point(put(tmp_path, report))
    assert point.node == "gpu-node-042" and point.why_not == "" and point.at == NOW
    measured = {
        (check["gpu"], item["name"]): item["value"]
        for check in report["checks"]
        for item in check["measurements"]
        if item["unit"] in ("B/s", "TFLOP/s", "TOP/s") and not check["coverage"].get("simulated")
    }
    found = {(card.uuid, rate.name): value for card, of in point.rates.items() for rate, value in of.items()}
    assert found == measured and len(found) > 8 * 10
    assert {card.model for card in point.rates} == {"h200-sxm-141gb"} and len(point.rates) == 8
    assert not any("temperature" in rate.name or rate.unit == "W" for of in point.rates.values() for rate in of)
    assert point.setting.driver == "580.95.05" and len(point.setting.shapes) == 12
    with_limit = json.loads(json.dumps(report))
    with_limit["checks"][-1]["coverage"]["no_floor_why"] = "the power limit is 500 W"
    assert read_point(put(tmp_path, with_limit)).setting != point.setting


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"simulated": True}, "simulated"),
        ({"verdict": "FAIL"}, "no PASS"),
        ({"verdict": "INCONCLUSIVE"}, "no PASS"),
        ({"interrupted": True}, "no PASS"),
    ],
)
def test_what_does_not_count_is_told_and_not_kept(
    changes: dict[str, Any], why: str, healthy: dict[str, Any], tmp_path: Path
) -> None:
    put(tmp_path, healthy, **changes)
    assert dict(take(tmp_path).left_out) == {why: 1} and not rows(tmp_path, "SELECT * FROM points")
    found = comparison.compare(tmp_path, NOW)
    assert (found.hosts, found.gpus, found.left_out, found.exit_code) == (0, 0, {why: 1}, 3)


def test_a_run_with_injected_faults_does_not_count(healthy: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path, {**healthy, "coverage": {**healthy["coverage"], "injected": ["gemm:nan"]}})
    assert dict(take(tmp_path).left_out) == {"faults were injected": 1}


def test_a_report_is_read_once_and_again_when_it_changes(healthy: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path, healthy)
    assert (take(tmp_path).new, take(tmp_path).new) == (1, 0)
    put(tmp_path, healthy, run_id="20261122T120000Z-000009", finished_at=rfc3339(NOW + timedelta(seconds=5)))
    assert take(tmp_path).new == 1
    assert rows(tmp_path, "SELECT run FROM points") == [("20261122T120000Z-000009",)], "one point a week"
    # An older run that comes later, as `gpu-burnin host` keeps them, changes nothing of the week.
    put(tmp_path, healthy, name=f"{RUN}.json", run_id=RUN, finished_at=rfc3339(NOW - timedelta(hours=1)))
    assert take(tmp_path).new == 1
    assert rows(tmp_path, "SELECT run FROM points") == [("20261122T120000Z-000009",)]


def test_a_host_whose_newest_report_is_no_pass_is_not_compared(healthy: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path, healthy)
    take(tmp_path)
    assert comparison.compare(tmp_path, NOW).hosts == 1
    put(tmp_path, healthy, verdict="FAIL", finished_at=rfc3339(NOW + timedelta(hours=1)))
    found = comparison.compare(tmp_path, NOW)
    assert (found.hosts, found.left_out) == (0, {"no PASS": 1})


def test_what_is_old_or_gone_is_forgotten(healthy: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path, healthy)
    put(tmp_path, healthy, "gpu-2")
    take(tmp_path)
    (tmp_path / "reports/gpu-2/report.json").unlink()
    take(tmp_path)
    assert rows(tmp_path, "SELECT name FROM hosts") == [("gpu-1",)]
    assert len(rows(tmp_path, "SELECT * FROM points")) == len(rows(tmp_path, "SELECT * FROM files")) == 1
    weeks = rates.KEPT_WEEKS + 8
    path = kept_weekly(tmp_path / "weekly", Fleet(2, gpus=1), weeks)
    with rates.DATABASE.reading(path) as connection:
        assert connection.execute("SELECT count(DISTINCT week) FROM points").fetchone() == (rates.KEPT_WEEKS,)
    assert not judged(path).slow


def test_what_cannot_be_read_is_told_and_hides_nothing(healthy: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path, healthy)
    (tmp_path / "reports/gpu-2").mkdir()
    (tmp_path / "reports/gpu-2/report.json").write_text("{")
    put(tmp_path, healthy, "gpu-3", finished_at=rfc3339(NOW + timedelta(days=30)))
    put(tmp_path, healthy, "gpu-4", checks=[{"name": "gemm"}])
    taken = take(tmp_path)
    assert taken.new == 1 and len(taken.problems) == 3
    assert ["gpu-2/report.json" in taken.problems[0], "set the host's clock" in taken.problems[1]] == [True, True]
    assert "gpu-4/report.json: this is not a valid report" in taken.problems[2]
    assert len(take(tmp_path).problems) == 3, "it is told each time"
    with pytest.raises(rates.RatesError, match="give the folder of the fleet's state with --state"):
        list(rates.reports_of(tmp_path / "none"))


def test_a_damaged_history_is_set_aside_and_one_of_another_version_is_left_alone(
    healthy: dict[str, Any], tmp_path: Path
) -> None:
    put(tmp_path, healthy)
    (tmp_path / rates.FILE).write_bytes(b"no database at all" * 100)
    (problem,) = take(tmp_path).problems
    assert "the history of rates was damaged" in problem and "rates.sqlite3.damaged-1" in problem
    assert len(rows(tmp_path, "SELECT * FROM points")) == 1
    (tmp_path / rates.FILE).unlink()
    connection = sqlite3.connect(tmp_path / rates.FILE)
    connection.executescript("CREATE TABLE t (x); PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(rates.RatesError, match="of version 99"):
        take(tmp_path)


def test_times_of_the_database_are_utc() -> None:
    assert rates.time_of(int(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp())) == "2026-11-22T12:00:00Z"
