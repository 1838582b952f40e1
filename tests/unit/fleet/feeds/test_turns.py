"""Turns at a feed: two processes compete, one is killed, files are damaged, disks are full."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.limits import Limits
from gpu_burnin.fleet.feeds.turns import SLACK_S, Turns, end_of
from gpu_burnin.fleet.roll import documents

START = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
# Takes a turn and says so, then waits for a line, gives it back and says that.
OTHER = """\
import sys, time
from pathlib import Path
from gpu_burnin.fleet.feeds.limits import Limits
from gpu_burnin.fleet.feeds.turns import Turns
turns = Turns(Path(sys.argv[1]), Limits(1), pause=lambda: time.sleep(0.02))
waits = lambda busy: print("waits", busy, flush=True)
print("has", turns.take(sys.argv[2], "", 24.0, 60.0, waits) or "it", flush=True)
sys.stdin.readline()
turns.give_back(sys.argv[2])
print("gone", flush=True)
"""


@dataclass
class Clock:
    """Time that passes when somebody waits. `meanwhile` is done at the first wait."""

    passed_s: float = 0.0
    waits: list[str] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    def pause(self) -> None:
        self.passed_s += 1
        self.meanwhile()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def turns_of(folder: Path, clock: Clock, limits: Limits = Limits(1)) -> Turns:  # noqa: B008
    return Turns(
        folder / "feeds", limits, lambda: START + timedelta(seconds=clock.passed_s), lambda: clock.passed_s, clock.pause
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Another play that wants a turn for a node."""
    with ExitStack() as stack:

        def begin(node: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", OTHER, str(tmp_path / "feeds"), node]
            made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(made)
            stack.callback(made.kill)
            return made

        yield begin


def line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


def end(of: subprocess.Popen[str]) -> None:
    assert of.stdin is not None
    of.stdin.write("\n")
    of.stdin.flush()
    assert line(of) == "gone"


def take(turns: Turns, clock: Clock, node: str, feed: str = "", wait_s: float = 3.0) -> str:
    return turns.take(node, feed, 24.0, wait_s, clock.waits.append)


@pytest.mark.slow
def test_of_two_processes_one_has_the_last_turn_and_the_other_says_for_whom_it_waits(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    first, second = start("gpu-1"), None
    assert line(first) == "has it"
    second = start("gpu-2")
    said = line(second)
    assert re.fullmatch(
        rf"waits in the fleet 1 may swing at a time: gpu-1 since \S+Z \(process {first.pid} on "
        rf"{re.escape(socket.gethostname())}\)",
        said,
    )
    end(first)
    assert line(second) == "has it"
    end(second)


@pytest.mark.slow
def test_many_that_compete_never_swing_together(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]], clock: Clock
) -> None:
    waiting = {(one := start(f"gpu-{number}")).pid: one for number in range(4)}
    watching = turns_of(tmp_path, clock)
    while waiting:
        # Which of the processes is next shows in the folder alone.
        while not (there := watching.counted()):
            time.sleep(0.01)
        (turn,) = there
        one = waiting.pop(turn.owner.pid)
        while line(one) != "has it":
            pass
        assert watching.counted() == [turn]
        end(one)


def test_the_turn_of_a_killed_process_ends_with_the_waves_that_it_may_have_granted(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    killed = start("gpu-1")
    assert line(killed) == "has it"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (path,) = (tmp_path / "feeds").glob("*.json")
    until = datetime.fromisoformat(json.loads(path.read_text())["until"])
    clock = Clock()
    late = Turns(
        tmp_path / "feeds", Limits(1), lambda: until + timedelta(seconds=clock.passed_s - 2), lambda: clock.passed_s,
        clock.pause,
    )  # fmt: skip
    assert take(late, clock, "gpu-2") == ""
    assert clock.passed_s == 2
    (said,) = clock.waits
    assert said.endswith(f"Z at the latest (its play, process {killed.pid}, is gone)")
    assert [one.name for one in (tmp_path / "feeds").glob("*.json")] == ["gpu-2.json"], "what is over is cleared away"


def test_a_node_whose_play_was_killed_is_granted_at_once_by_the_next_play(
    tmp_path: Path, start: Callable[[str], subprocess.Popen[str]], clock: Clock
) -> None:
    killed = start("gpu-1")
    assert line(killed) == "has it"
    killed.kill()
    killed.wait()
    turns = turns_of(tmp_path, clock)
    assert take(turns, clock, "gpu-1") == "" and not clock.waits
    assert [one.owner.pid for one in turns.counted()] == [os.getpid()]


@pytest.mark.slow
def test_who_waited_and_was_killed_keeps_nobody(start: Callable[[str], subprocess.Popen[str]]) -> None:
    first = start("gpu-1")
    assert line(first) == "has it"
    second = start("gpu-2")
    assert line(second).startswith("waits")
    third = start("gpu-3")
    assert line(third).startswith("waits")
    second.kill()
    second.wait()
    end(first)
    assert line(third) == "has it"


def test_a_turn_lasts_as_long_as_its_process_and_another_machine_s_until_its_waves_are_over(
    tmp_path: Path, clock: Clock
) -> None:
    turns = turns_of(tmp_path, clock)
    assert take(turns, clock, "gpu-1") == ""
    clock.passed_s = 10 * SLACK_S
    assert [one.node for one in turns.counted()] == ["gpu-1"], "its process runs"
    path = tmp_path / "feeds/gpu-1.json"
    document = json.loads(path.read_text())
    document["owner"]["machine"] = "another"
    path.write_text(json.dumps(document))
    assert turns.counted() == []
    clock.passed_s = 24 + SLACK_S - 1
    assert [one.node for one in turns.counted()] == ["gpu-1"]
    turns.give_back("gpu-1")
    assert path.exists(), "it gave back what it did not have"


def test_each_feed_has_its_limit_and_all_others_share_one(tmp_path: Path, clock: Clock) -> None:
    turns = turns_of(tmp_path, clock, Limits(1, {"a": 2}))
    taken = [take(turns, clock, node, feed) for node, feed in (("a-1", "a"), ("a-2", "a"), ("b-1", "b"))]
    assert taken == ["", "", ""] and not clock.waits
    assert take(turns, clock, "a-3", "a").startswith("at the feed a 2 may swing at a time: a-1 since ")
    busy = take(turns, clock, "none-1")
    assert busy.startswith("at all feeds without a limit of their own 1 may swing at a time: b-1 since ")
    turns.give_back("b-1")
    assert take(turns, clock, "c-1", "c") == ""


def test_a_turn_that_comes_free_while_it_is_waited_for_is_taken(tmp_path: Path, clock: Clock) -> None:
    turns = turns_of(tmp_path, clock)
    assert take(turns, clock, "gpu-1") == ""
    clock.meanwhile = lambda: turns.give_back("gpu-1")
    assert take(turns, clock, "gpu-2") == ""
    assert len(clock.waits) == 1 and clock.passed_s == 1


def test_a_shard_that_found_no_room_keeps_no_node_of_this_machine_waiting(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it looked there was room, and where it was first in the queue there was none."""
    here, shard = turns_of(tmp_path, clock, Limits(2)), turns_of(tmp_path, clock, Limits(2))
    note = tmp_path / "note"
    note.touch()
    assert take(here, clock, "a") == take(here, clock, "b") == ""
    monkeypatch.setattr(Turns, "_noted", lambda *_: "")
    got = list[str]()

    def another_node() -> None:
        clock.meanwhile = lambda: None
        here.give_back("a")
        got.append(here.take("c", "", 24.0, 0.0, clock.waits.append))

    clock.meanwhile = another_node
    assert shard.take("d", "", 24.0, 1.0, clock.waits.append, note)
    assert got == [""]


def test_no_more_than_a_few_nodes_are_named(tmp_path: Path, clock: Clock) -> None:
    turns = turns_of(tmp_path, clock, Limits(5))
    assert not any(take(turns, clock, f"gpu-{number}") for number in range(5))
    assert take(turns, clock, "gpu-5").endswith(", 2 more")


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "a b/ü", ".json", "x" * 80])
def test_odd_names_stay_in_the_folder(name: str, tmp_path: Path, clock: Clock) -> None:
    turns = turns_of(tmp_path, clock, Limits(1, {name: 1}))
    assert take(turns, clock, name, name) == ""
    assert [one.node for one in turns.counted()] == [name]
    assert take(turns, clock, "gpu-2", name) != ""
    assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {tmp_path / "feeds"}
    turns.give_back(name)
    assert turns.counted() == []


def test_a_name_that_no_file_can_have_is_an_error_that_names_it(tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(GpuBurninError, match=r"x\.json cannot be written \(File name too long\)"):
        take(turns_of(tmp_path, clock), clock, "x" * 300)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "nobody knows whether its node swings; look there with `gpu-burnin status`"),
        ('{"schema": "muster-driver-upgrade/v1"}', "gpu-9.json cannot be read"),
        ("\x00", "gpu-9.json cannot be read"),
    ],
)
def test_a_damaged_turn_is_an_error_that_names_it(text: str, says: str, tmp_path: Path, clock: Clock) -> None:
    turns = turns_of(tmp_path, clock, Limits(9))
    assert take(turns, clock, "gpu-1") == ""
    (tmp_path / "feeds/gpu-9.json").write_text(text)
    with pytest.raises(GpuBurninError, match=re.escape(says)):
        take(turns, clock, "gpu-2")
    assert not (tmp_path / "feeds/gpu-2.json").exists(), "nobody swings while nobody knows who does"


def test_a_turn_without_a_time_is_an_error_that_names_it(tmp_path: Path, clock: Clock) -> None:
    turns = turns_of(tmp_path, clock)
    assert take(turns, clock, "gpu-1") == ""
    path = tmp_path / "feeds/gpu-1.json"
    path.write_text(path.read_text().replace("T12:01:24", " soon "))
    with pytest.raises(GpuBurninError, match=r"gpu-1\.json: until is '2026-11-28 soon .*; remove it"):
        take(turns, clock, "gpu-2")


@pytest.mark.parametrize(("key", "time"), [("since", "T12:00:00"), ("until", "T12:01:24")])
def test_the_turn_of_a_shard_without_a_time_is_one_too(key: str, time: str, tmp_path: Path, clock: Clock) -> None:
    turns, note = turns_of(tmp_path, clock, Limits(2)), tmp_path / "note.json"
    note.touch()
    assert turns.take("gpu-1", "", 24.0, 3.0, clock.waits.append, note) == ""
    path = tmp_path / "feeds/gpu-1.json"
    path.write_text(path.read_text().replace(time, " soon "))
    says = rf"gpu-1\.json: {key} is '2026-11-28 soon .*; remove it"
    with pytest.raises(GpuBurninError, match=says):
        end_of(tmp_path / "feeds", note, START, swings=True)
    # As where a person has removed the note.
    note.unlink()
    with pytest.raises(GpuBurninError, match=says):
        take(turns, clock, "gpu-2")


def test_on_a_full_disk_nobody_has_a_turn(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(documents, "write_atomic", full)
    with pytest.raises(GpuBurninError, match=r"gpu-1\.json cannot be written \(No space left on device\)"):
        take(turns_of(tmp_path, clock), clock, "gpu-1")
    assert turns_of(tmp_path, clock).counted() == []


def test_a_folder_that_is_none_is_an_error_that_names_it(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "feeds").write_text("")
    with pytest.raises(GpuBurninError, match=r"feeds/\.queue cannot be used \(File exists\)"):
        take(turns_of(tmp_path, clock), clock, "gpu-1")
