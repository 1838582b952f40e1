"""What the benchmark of outages and operations computes, chooses and prints, and when it fails."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.control_plane import __main__ as bench
from tests.bench.control_plane import kills
from tests.bench.control_plane.table import Cost, Goal, Row, Table, chosen
from tests.integration.fleet import Fleet

GOOD = Cost(
    acknowledged=900, lost=0, failed=2, most_failed=1, longest_gap_s=2.96, longest_probe_gap_s=3.06, took_s=41.0
)
LATE = Cost(acknowledged=900, lost=0, failed=2, most_failed=2, longest_gap_s=3.06, longest_probe_gap_s=1.2, took_s=41.0)
LOST = Cost(acknowledged=900, lost=1, failed=0, most_failed=0, longest_gap_s=0.2, longest_probe_gap_s=0.2, took_s=41.0)


def test_goals_are_compared_as_printed() -> None:
    goal = Goal(gap_s=3.0, most_failed=1)
    assert goal.missed(GOOD) == []
    assert goal.missed(LATE) == ["gap", "failed requests"]
    assert goal.missed(replace(GOOD, longest_gap_s=3.04)) == []
    assert (Goal(probe_gap_s=3.0).missed(GOOD), Goal(probe_gap_s=3.0).missed(LATE)) == (["gap of the probe"], [])
    assert Goal().missed(LATE) == [] and str(Goal()) == ""


def test_a_row_says_what_was_missed_lost_or_not_shown() -> None:
    goal = Goal(gap_s=3.0)
    assert Row("x", goal, GOOD, "etcd-2").line() == "| x: etcd-2 | 900 | 0 | 2, 1 | 3.0 s | 3.1 s | 41 s | gap 3 s |"
    assert Row("x", goal, LATE).line().endswith("| 3.1 s | 1.2 s | 41 s | gap 3 s: **missed** (gap) |")
    assert "| 900 | **1** |" in Row("x", goal, LOST).line()
    assert Row("x", goal, broke="etcd-2: no quorum").line() == "| x | | | | | | | **failed**: etcd-2: no quorum |"


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], 1),
        ([Row("x", Goal(gap_s=3.0), GOOD)], 0),
        ([Row("x", Goal(gap_s=3.0), LATE)], 0),
        ([Row("x", Goal(), GOOD), Row("y", Goal(), LOST)], 1),
        ([Row("x", Goal(), GOOD), Row("y", Goal(), broke="no")], 1),
    ],
)
def test_what_was_lost_or_not_shown_fails_and_a_missed_goal_does_not(rows: list[Row], code: int) -> None:
    assert Table({}, rows).exit_code() == code


def test_the_data_says_what_the_table_says() -> None:
    data = json.loads(
        json.dumps(Table({"etcd": "3"}, [Row("x", Goal(gap_s=3.0), LATE), Row("y", Goal(), LOST)]).json())
    )
    assert [(row["missed"], row["failed"]) for row in data["rows"]] == [(["gap"], False), ([], True)]
    assert data["rows"][0]["cost"]["longest_gap_s"] == 3.06 and data["about"] == {"etcd": "3"}


def test_scenarios_are_chosen_by_name_the_quick_ones_by_none() -> None:
    slow = {"a": False, "b": True, "c": False}
    assert chosen([], slow) == ["a", "c"]
    assert chosen(["c", "b"], slow) == ["b", "c"]
    assert chosen(["all"], slow) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="no scenario d; there are a, b, c, and all"):
        chosen(["a", "d"], slow)


def test_an_unknown_scenario_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["no-such"])
    assert ended.value.code == 2 and "no scenario no-such" in capsys.readouterr().err


def test_the_kills_are_shared_out_and_none_is_forgotten() -> None:
    for times in (3, 4, 20):
        every = bench.scenarios(times, 1)
        shared = [
            every[name].show.keywords["act"].keywords["times"]
            for name in every
            if name.endswith("-killed") and every[name].slow
        ]  # type: ignore[attr-defined]
        assert sum(shared) == times and max(shared) - min(shared) <= 1


@pytest.mark.parametrize(
    ("raised", "told"),
    [(AssertionError("not within 3 s:\n health"), "not within 3 s: health"), (OSError("gone"), "gone")],
)
def test_a_scenario_that_ends_early_is_a_row_that_says_why(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, told: str
) -> None:
    def show(_: Fleet) -> tuple[Cost, str]:
        raise raised

    def not_healthy(_: Fleet) -> None:
        raise AssertionError("not within 300 s: the fleet to be healthy: etcd-1: etcd is not healthy")

    monkeypatch.setattr(bench, "wait_for_health", lambda _: None)
    fleet = Fleet.__new__(Fleet)
    assert bench._row(fleet, bench.Scenario("x", Goal(), show)) == Row("x", Goal(), broke=told)
    monkeypatch.setattr(bench, "wait_for_health", not_healthy)
    row = bench._row(fleet, bench.Scenario("x", Goal(), lambda _: (GOOD, "")))
    assert row.failed and row.broke.endswith("etcd-1: etcd is not healthy")


PLAY = """
import sys, time
for number in range(1, 4):
    print(f"TASK [task {number}] ***", flush=True)
open(sys.argv[1], "w").write("done")
time.sleep(float(sys.argv[2]))
"""


def test_a_run_is_killed_in_the_task_that_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "ansible_playbook", lambda: [sys.executable, "-c", PLAY])
    assert kills.kill_when([str(tmp_path / "a"), "600"], kills._task(2), 0.0, tmp_path / "log") == "task 2"
    # One that has ended before the point was not killed.
    assert kills.kill_when([str(tmp_path / "b"), "0"], kills._task(4), 0.0, tmp_path / "log") == ""
    assert (tmp_path / "b").exists()
