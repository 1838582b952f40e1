"""Turns of shards on workers: shares of what a feed bears, and when those of a lost worker end."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.limits import Limits
from gpu_burnin.fleet.feeds.turns import SLACK_S, Turns, end_of
from gpu_burnin.fleet.plan.work import USUAL_GPUS, times_of
from gpu_burnin.fleet.roll.lock import alone
from gpu_burnin.fleet.waves import grants, near, places, run, worker
from gpu_burnin.fleet.waves.book import Book, hosts_file, keep_result, result_in
from gpu_burnin.fleet.waves.grants import Power, Swings
from gpu_burnin.fleet.waves.kinds import kind_of
from gpu_burnin.fleet.waves.model import HostResult, Order, Outcome, Part, Roll, StepResult
from gpu_burnin.fleet.waves.names import NO_TURN, PLAY
from gpu_burnin.fleet.waves.run import Executor
from gpu_burnin.fleet.waves.workers import Workers
from gpu_burnin.system.codec import from_json, to_json

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
    with pytest.raises(GpuBurninError, match=r"shard-0004 had no turn .*at the feed a 3 may swing for shards"):
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
    for number in range(4):
        Turns(state / "feeds", Limits(9, {"a": 9})).take(f"x-{number}", "a", WAVES_S, 0.0, silent)
    note = note_of(state, "shard-0002")
    with pytest.raises(near.NoTurn, match=r"shard-0002 had no turn .*at the feed a 4 may swing at a time"):
        near._granted(folder, note, swings())
    assert not note.exists()
    with alone(state / "feeds"):
        assert sorted(path.name for path in (state / "feeds").glob("*.json")) == [f"x-{n}.json" for n in range(4)]


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


def test_turns_last_as_long_as_waves_of_any_level() -> None:
    """A burn-in that was under way is joined, and it may be an extended one."""
    found = grants.swings(power(), ("-e", "gpu_burnin_retest_level=quick"), 1)
    assert found is not None and found.waves_s == times_of("extended", USUAL_GPUS, 7200.0)[1]
    assert found.waves_s > times_of("standard", USUAL_GPUS, 7200.0)[1]


def test_workers_have_no_more_shards_at_a_time_than_have_a_turn_at_each_feed() -> None:
    offered = [
        (
            near.Far(places.Place(name, 22, "", "known_hosts"), "/root", "/state", "known_hosts"),
            Workers(3, ("of 3: 3",)),
        )
        for name in ("w-1", "w-2")
    ]
    far, lines = near.slots(offered, swings(6))
    assert [one.place.name for one in far] == ["w-1", "w-2"] and {one.swings and one.swings.shards for one in far} == {
        2
    }
    why = "turns to swing power for shards on workers at feeds without a limit of their own: 2; of 3: 3"
    assert lines == [f"on {name} 1 more at a time ({why})" for name in ("w-1", "w-2")]
    far, lines = near.slots(offered, None)
    assert len(far) == 6 and lines[0] == "on w-1 3 more at a time (of 3: 3)"


def test_shards_that_wait_for_each_other_keep_no_node_of_this_machine_waiting(tmp_path: Path) -> None:
    """Two of three turns are shards': a third shard waits for one of them, and this machine's node has the third."""
    feeds, limits, here = tmp_path / "feeds", Limits(1, {"a": 3}), list[str]()
    asked = Swings(limits, dict.fromkeys(NODES, "a"), 2, WAVES_S)
    for name in ("shard-1", "shard-2"):
        grants.take(feeds, note_of(tmp_path, name), asked, silent, 0.0)

    def meanwhile() -> None:
        here.append(Turns(feeds, limits).take("here", "a", WAVES_S, 0.0, silent))

    clock = iter(range(9))
    third = Turns(feeds, limits, monotonic_s=lambda: next(clock), pause=meanwhile)
    busy = third.take("shard-3 a 1", "a", WAVES_S, 2.0, silent, note_of(tmp_path, "shard-3"))
    assert here[0] == "" and "at the feed a 2 may swing for shards on workers at a time: shard-1 a 1" in busy


def test_a_node_of_this_machine_that_comes_later_has_the_turn_before_a_shard_that_waits(tmp_path: Path) -> None:
    """Two of this machine swing, a shard waits; then a node comes, and one of the two is given back."""
    feeds, limits, got = tmp_path / "feeds", Limits(1, {"a": 2}), list[str]()
    here = Turns(feeds, limits, pause=lambda: None)
    assert [here.take(name, "a", WAVES_S, 0.0, silent) for name in ("a", "b")] == ["", ""]

    def free() -> None:
        if not got:
            here.give_back("a")

    def meanwhile() -> None:
        if not got:
            times = iter((0.0, 0.0, 1.0))
            node = Turns(feeds, limits, monotonic_s=lambda: next(times), pause=free)
            got.append(node.take("c", "a", WAVES_S, 1.0, silent))

    clock = iter(range(9))
    shard = Turns(feeds, limits, monotonic_s=lambda: next(clock), pause=meanwhile)
    busy = shard.take("shard a 1", "a", WAVES_S, 2.0, silent, note_of(tmp_path, "shard"))
    assert got == [""] and "at the feed a 2 may swing at a time: b since" in busy
    # As soon as none of this machine waits, it is the shard's turn.
    here.give_back("c")
    assert shard.take("shard a 1", "a", WAVES_S, 2.0, silent, note_of(tmp_path, "shard")) == ""


def test_a_shard_waits_for_all_its_feeds_together_no_longer_than_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def take(_: Turns, name: str, feed: str, waves_s: float, wait_s: float, *__: object) -> str:
        waited.append(wait_s)
        passed[0] += 30.0
        return ""

    passed = [0.0]
    monkeypatch.setattr(grants, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    monkeypatch.setattr(Turns, "take", take)
    grants.take(tmp_path, note_of(tmp_path, "s"), swings(9), silent, 40.0)
    assert waited == [40.0, 10.0]


def test_a_shard_without_a_turn_has_no_result_and_its_process_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise near.NoTurn("shard-0001 had no turn to swing power within 1800 s")

    monkeypatch.setattr(near, "play", none)
    folder = tmp_path / "roll/steps/shard-0001"
    folder.mkdir(parents=True)
    job = worker.Job("shard-0001", Part.NODES, "burnin.yml", ("inv",), (), "/", far=far_at(tmp_path))
    worker.write_job(folder, to_json(job))
    hosts_file(folder).write_text("gpu-1\n")
    monkeypatch.setattr("sys.argv", ["worker", str(folder)])
    with pytest.raises(SystemExit) as ended:
        worker.main()
    assert ended.value.code == 3 and result_in(folder) is None
    assert (folder / NO_TURN).read_text() == "shard-0001 had no turn to swing power within 1800 s\n"


def far_at(state: Path) -> near.Far:
    place = places.Place("10.0.0.9", 22, "", "known_hosts")
    return near.Far(place, "/root", str(state), "known_hosts", swings())


def test_a_shard_without_a_turn_runs_here_and_its_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two shards, one slot of this machine and one of a worker: all is done, and nothing is left behind or lost."""
    said: list[str] = []

    class Process:
        """A shard's: on the worker it had no turn the first time, here its nodes are done."""

        tried = False

        def __init__(self, command: list[str], **_: object) -> None:
            self.folder = Path(command[-1])

        def wait(self) -> int:
            job = from_json(worker.Job, json.loads((self.folder / worker.STEP).read_text()))
            if job.far is not None and not Process.tried:
                Process.tried = True
                (self.folder / NO_TURN).write_text(f"{job.name} had no turn")
                return 3
            hosts = {name: HostResult(Outcome.DONE) for name in hosts_file(self.folder).read_text().split()}
            keep_result(self.folder, StepResult(job.name, 0, 1.0, 1.0, 1, hosts, worker="w" if job.far else ""))
            return 0

    monkeypatch.setattr(run, "subprocess", SimpleNamespace(Popen=Process, DEVNULL=None))
    order = Order("playbooks/burnin.yml", ("hosts.yml",))
    waves = ((("gpu-1",), ("gpu-2",), ("gpu-3",)),)
    roll = Roll("now", "now", order, "sum", waves, {})
    executor = Executor(
        Book(tmp_path / "roll"), roll, kind_of(order.playbook), 1, tmp_path, "inv", said.append, far=(far_at(tmp_path),)
    )
    executor.run()
    assert {one.outcome for one in executor.results.values()} == {Outcome.DONE} and len(executor.results) == 3
    assert not executor._lost and not list(tmp_path.glob("roll/steps/*/lost"))
    assert any(line.endswith("is run here, where its nodes take a turn each; 10.0.0.9 goes on") for line in said)


def test_a_shard_that_ended_well_gives_its_turns_an_end_where_its_worker_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reset of the connection is retried; after many the turns expire, and the screen says what is left there."""
    resets = [1]

    def ask(*_: object) -> str:
        if resets[0]:
            resets[0] -= 1
            raise GpuBurninError("ssh: Connection reset")
        return ""

    monkeypatch.setattr(places, "ask", ask)
    monkeypatch.setattr(near, "stream", lambda *_: {"rc": 0, "outcomes.json": b'{"warning": "forged"}'})
    monkeypatch.setattr(near.end_patiently, "__defaults__", (0.0, lambda _: None))
    (tmp_path / "roll/inventory.json").parent.mkdir()
    (tmp_path / "roll/inventory.json").write_text("{}")
    found = []
    for number in (1, 2):
        folder = tmp_path / f"roll/steps/shard-{number}"
        folder.mkdir(parents=True)
        found.append(near.play(folder, far_at(tmp_path), "p", "/x", (), NODES[:4], tmp_path / "roll/inventory"))
        assert (folder / PLAY).read_text() in ("on 10.0.0.9", "waiting for its worker to end what it left there")
        resets[0] = 9
    assert found[0][0] == 0 and found[0][1]["warning"] == "", "the second try has ended it"
    assert "shard-2 may still run on 10.0.0.9" in found[1][1]["warning"] and len(near.left_by(tmp_path / "roll")) == 1
    feeds, longest_s = tmp_path / "feeds", swings().waves_s + SLACK_S + 5
    assert len(Turns(feeds, Limits(1)).counted()) == 3, "of the second alone"
    later = datetime.now(UTC) + timedelta(seconds=longest_s)
    assert not Turns(feeds, Limits(1), now=lambda: later).counted()


@pytest.mark.parametrize("sent", [{}, {"feeds/gpu-1.json": b""}])
def test_what_a_later_roll_ends_swings_no_longer_than_from_the_end_of_its_shard(
    sent: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker answers when the next roll begins: turns that are over stay so, and the others keep their end."""

    def ask(*_: object) -> str:
        if away:
            raise GpuBurninError("ssh: Connection reset")
        return ""

    away = True
    monkeypatch.setattr(places, "ask", ask)
    monkeypatch.setattr(near, "stream", lambda *_: {"rc": 0, **sent})
    monkeypatch.setattr(near.end_patiently, "__defaults__", (0.0, lambda _: None))
    folder, feeds = tmp_path / "roll/steps/shard-1", tmp_path / "feeds"
    folder.mkdir(parents=True)
    (tmp_path / "roll/inventory.json").write_text("{}")
    near.play(folder, far_at(tmp_path), "p", "/x", (), NODES[:4], tmp_path / "roll/inventory")
    [note], turns, now = near.left_by(tmp_path / "roll"), Turns(feeds, Limits(1)), datetime.now(UTC)
    assert len(before := turns.counted()) == 3
    assert json.loads(note.read_text())["swings"] is bool(sent)
    end_of(feeds, note, now + timedelta(minutes=1), swings=True)
    assert turns.counted() == before
    away = False
    if sent:
        late = now + timedelta(days=1)
        monkeypatch.setattr(near, "datetime", SimpleNamespace(now=lambda _: late))
        near.end(note)
        assert list(feeds.glob("*.json")) == [] and not note.exists()
    else:
        near.end(note)
        assert turns.counted() == [] and not note.exists()


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
