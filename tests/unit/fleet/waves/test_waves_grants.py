"""Turns of shards on workers: shares of what a feed bears, and when those of a lost worker end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.limits import Limits
from gpu_burnin.fleet.feeds.turns import SLACK_S, Turns, end_of
from gpu_burnin.fleet.plan.work import USUAL_GPUS, times_of
from gpu_burnin.fleet.roll.lock import alone
from gpu_burnin.fleet.waves import grants, near, places, worker
from gpu_burnin.fleet.waves.grants import Power, Swings
from gpu_burnin.fleet.waves.model import HostResult, Outcome, Part

NODES = [f"gpu-{number}" for number in range(1, 9)]
WAVES_S = 24.0


def silent(_: str) -> None:
    """Nobody is told who waits."""


def power(**changed: Any) -> Power:
    feeds = {name: "a" if number < 4 else "" for number, name in enumerate(NODES)}
    return Power(**{"by_feed": {"a": 4}, "others": 3, "extended_s": 7200.0, "feeds": feeds, **changed})


def note_of(folder: Path, name: str) -> Path:
    path = folder / "roll/remote" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def swings(shards: int = 1) -> Swings:
    made = grants.swings(power(), (), shards)
    assert made is not None
    return made


def test_over_all_shards_and_plays_no_more_nodes_swing_than_a_feed_bears(tmp_path: Path) -> None:
    """Whatever is taken in whatever order, the sum at each feed stays within its limit, and one is left here."""
    asked, feeds = swings(2), tmp_path / "feeds"
    first = grants.take(feeds, note_of(tmp_path, "shard-0001"), asked, silent, 0.0)
    second = grants.take(feeds, note_of(tmp_path, "shard-0002"), asked, silent, 0.0)
    assert [one.of("a") for one in (first, second)] == [1, 1] and [one.of("") for one in (first, second)] == [1, 1]
    third = grants.take(feeds, note_of(tmp_path, "shard-0003"), asked.of(NODES[:4]), silent, 0.0)
    assert third.of("a") == 1
    with pytest.raises(GpuBurninError, match=r"shard-0004 had no turn .*at the feed a 3 may swing at a time"):
        grants.take(feeds, note_of(tmp_path, "shard-0004"), asked.of(NODES[:4]), silent, 0.0)
    here = Turns(feeds, asked.limits, pause=lambda: None)
    assert [here.take(name, "a", WAVES_S, 0.0, silent) == "" for name in ("x", "y")] == [True, False]
    assert [here.take(name, "", WAVES_S, 0.0, silent) == "" for name in ("v", "w")] == [True, False]


def test_one_shard_alone_gets_all_but_one_and_no_more_than_it_has_nodes(tmp_path: Path) -> None:
    limits = grants.take(tmp_path / "feeds", note_of(tmp_path, "s"), swings().of([*NODES[:2], NODES[4]]), silent, 0.0)
    assert limits == Limits(1, {"a": 2})
    assert grants.take(tmp_path / "other", note_of(tmp_path, "t"), swings(), silent, 0.0) == Limits(2, {"a": 3})


def test_a_lost_worker_has_its_turns_until_nothing_runs_there_and_its_nodes_swing_no_more(tmp_path: Path) -> None:
    feeds, note, asked = tmp_path / "feeds", note_of(tmp_path, "shard-0001"), swings()
    grants.take(feeds, note, asked, silent, 0.0)
    now = datetime.now(UTC)
    later = Turns(feeds, asked.limits, now=lambda: now + timedelta(days=2), pause=lambda: None)
    assert len(later.counted()) == 5, "a time alone ends none: the worker may be at it"
    ended = now + timedelta(days=1)
    end_of(feeds, note, ended, swings=True)
    note.unlink()
    swing = timedelta(seconds=asked.waves_s + SLACK_S)
    at = [ended + swing - timedelta(seconds=5), ended + swing + timedelta(seconds=5)]
    counted = [len(Turns(feeds, asked.limits, now=lambda now=now: now).counted()) for now in at]  # type: ignore[misc]
    assert counted == [5, 0]


def test_a_shard_that_came_to_its_end_gives_its_turns_back_at_once(tmp_path: Path) -> None:
    feeds, note = tmp_path / "feeds", note_of(tmp_path, "shard-0001")
    grants.take(feeds, note, swings(), silent, 0.0)
    other = note_of(tmp_path, "shard-0002")
    Turns(feeds, Limits(9)).take("gpu-9", "", WAVES_S, 0.0, silent, other)
    end_of(feeds, note, datetime.now(UTC), swings=False)
    assert [turn.node for turn in Turns(feeds, Limits(1)).counted()] == ["gpu-9"]


def test_a_shard_without_a_turn_in_time_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants.take, "__defaults__", (0.0,))
    state, folder = tmp_path, tmp_path / "roll/steps/shard-0002"
    folder.mkdir(parents=True)
    # All at the second feed: what was taken at the first is given back.
    for number in range(3):
        Turns(state / "feeds", Limits(9, {"a": 9})).take(f"x-{number}", "a", WAVES_S, 0.0, silent)
    note = note_of(state, "shard-0002")
    with pytest.raises(near.NoTurn, match="shard-0002 had no turn"):
        near._granted(folder, note, swings())
    assert not note.exists()
    with alone(state / "feeds"):
        assert sorted(path.name for path in (state / "feeds").glob("*.json")) == [f"x-{n}.json" for n in range(3)]


@pytest.mark.parametrize(
    ("changed", "arguments", "says"),
    [
        ({"others": 1}, (), "at feeds without a limit of their own 1 node may swing"),
        ({"by_feed": {"a": 1}}, (), "at the feed a 1 node may swing"),
        ({"by_feed": {"a": "many"}}, (), "fleet_feed_limits has 'many'"),
        ({"scaled": True}, (), "fleet_scale is on"),
        ({}, ("-e", "gpu_burnin_extended_s=abc"), "gpu_burnin_extended_s=abc is no number of seconds; give one"),
        ({}, ("-e", "gpu_burnin_extended_s=-1"), "gpu_burnin_extended_s=-1 is no number of seconds"),
        ({}, ("-e", "gpu_burnin_extended_s=nan"), "gpu_burnin_extended_s=nan is no number of seconds"),
        ({}, ("-e", "gpu_burnin_wave_max_nodes=9"), "write it in the inventory"),
        ({"modes": dict.fromkeys(NODES, "never")}, ("-e", "gpu_burnin_power_waves=granted", "-e",
                                                    "gpu_burnin_wave_max_nodes=9"), "write it in the inventory"),
    ],
)  # fmt: skip
def test_where_workers_can_have_no_turns_the_reason_is_given(
    changed: dict[str, Any], arguments: tuple[str, ...], says: str
) -> None:
    with pytest.raises(GpuBurninError, match=says):
        grants.swings(power(**changed), arguments, 1)


def test_nodes_that_never_swing_or_always_may_need_no_turn() -> None:
    one = {"others": 1, "scaled": True}
    assert grants.swings(power(**one, modes=dict.fromkeys(NODES, "never")), (), 1) is None
    assert grants.swings(power(**one), ("-e", "gpu_burnin_power_waves=always"), 1) is None
    some = grants.swings(power(modes={"gpu-1": "never"}), (), 1)
    assert some is not None and "gpu-1" not in some.feeds and "gpu-2" in some.feeds
    template = grants.swings(power(), ("-e", "gpu_burnin_power_waves={{gpu_burnin_mine}}"), 1)
    assert template is not None and len(template.feeds) == len(NODES), "it may come to granted"


def test_longest_waves_bound_those_of_every_level() -> None:
    assert swings().waves_s >= 24.0
    longer = grants.swings(power(), ("-e", "gpu_burnin_extended_s=14400"), 1)
    assert longer is not None and longer.waves_s > swings().waves_s


@pytest.mark.parametrize(
    ("changed", "arguments", "longest"),
    [
        ({}, (), "extended"),
        ({"levels": ("quick",)}, (), "quick"),
        ({"levels": ("quick", "standard")}, (), "standard"),
        ({"levels": ("standard",), "for_new": True}, (), "extended"),
        ({"levels": ("standard",)}, ("-e", "gpu_burnin_extended_for_new=1h"), "extended"),
        ({"levels": ("extended",)}, ("-e", "gpu_burnin_retest_level=standard"), "standard"),
        ({"levels": ("quick",)}, ("-e", "gpu_burnin_level=standard"), "standard"),
        # The inventory may have a level of retests, which this does not change.
        ({"levels": ("extended",)}, ("-e", "gpu_burnin_level=standard"), "extended"),
        ({"levels": ("quick",)}, ("-e", "gpu_burnin_retest_level={{gpu_burnin_mine}}"), "extended"),
    ],
)
def test_turns_last_as_long_as_waves_of_the_levels_that_are_known(
    changed: dict[str, Any], arguments: tuple[str, ...], longest: str
) -> None:
    found = grants.swings(power(**changed), arguments, 1)
    assert found is not None and found.waves_s == times_of(longest, USUAL_GPUS, 7200.0)[1]


def test_a_shard_without_a_turn_is_left_behind_and_its_worker_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise near.NoTurn("shard-0001 had no turn to swing power within 7200 s")

    monkeypatch.setattr(near, "play", none)
    place = places.Place("10.0.0.9", 22, "", "known_hosts")
    at = near.Far(place, "/root", str(tmp_path), "known_hosts")
    job = worker.Job("shard-0001", Part.NODES, "burnin.yml", ("inv",), (), "/", far=at)
    result = worker.perform(tmp_path, job, ["gpu-1", "gpu-2"])
    why = "shard-0001 had no turn to swing power within 7200 s"
    assert result.hosts == dict.fromkeys(["gpu-1", "gpu-2"], HostResult(Outcome.LEFT, why)) and not result.error


def test_a_note_that_a_person_removes_ends_no_turn_before_waves_that_just_began(tmp_path: Path) -> None:
    feeds, note, asked = tmp_path / "feeds", note_of(tmp_path, "shard-0001"), swings()
    grants.take(feeds, note, asked, silent, 0.0)
    note.unlink()
    first = datetime.now(UTC) + timedelta(days=1)
    at = [first, first + timedelta(seconds=asked.waves_s), first + timedelta(seconds=asked.waves_s + SLACK_S + 5)]
    busy = []
    for now in at:
        turns = Turns(feeds, Limits(3, {"a": 3}), now=lambda now=now: now, pause=lambda: None)  # type: ignore[misc]
        busy.append(turns.take("x", "a", WAVES_S, 0.0, silent))
    assert "at the feed a 3 may swing" in busy[0] and "worker that has ended" in busy[1] and not busy[2]
