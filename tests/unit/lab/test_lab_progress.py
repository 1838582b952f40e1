"""The progress of a run of minutes: the time left, on a terminal and elsewhere, now and the next time."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from gpu_burnin.fleet.mirror import progress
from gpu_burnin.fleet.mirror.fill import GO
from gpu_burnin.fleet.mirror.programs import MIRROR
from gpu_burnin.fleet.mirror.progress import Progress, left_s
from tests.lab import binaries, hosts, image
from tests.lab.paths import REPOSITORY
from tests.lab.preparing import DURATIONS
from tests.support.clocks import HandClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own, and known estimates: preparing takes 100 s and 300 s, the site 200 s."""
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    # The tests' own clock passes, and it is they who tick.
    monkeypatch.setattr(progress, "REDRAW_S", 1e6)
    monkeypatch.setattr(progress, "SHIPPED", tmp_path / "durations.json")
    shipped = {"prepare": {"build a": 100, "build b": 300}, "site": {"starting": 10, "Build": 190}}
    (tmp_path / "durations.json").write_text(json.dumps(shipped))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("current_s", "elapsed_s", "ahead_s", "finished", "left"),
    [
        (100, 0, 300, [], 400),  # nothing measured: as expected
        (100, 40, 300, [], 360),
        (100, 0, 300, [(60, 180)], 800),  # half of 120 s trusted: twice as slow
        (100, 0, 300, [(60, 0)], 200),  # or twice as fast
        (100, 260, 300, [], 600),  # over its time: (60 + 260) / (60 + 100) as slow
        (100, 260, 0, [], 0),
        (0, 30, 0, [], 0),
    ],
)
def test_the_time_left(
    current_s: float, elapsed_s: float, ahead_s: float, finished: list[tuple[float, float]], left: float
) -> None:
    assert left_s(current_s, elapsed_s, ahead_s, finished) == pytest.approx(left)


def test_a_first_run_is_estimated_by_what_is_shipped_and_by_its_own_pace() -> None:
    out, clock = io.StringIO(), HandClock()
    with Progress("prepare", out, each=True, clock=clock) as shown:
        shown.plan(["build a", "build b"], after_s=200)
        shown.stage("build a", "1 of 2")
        clock.now_s = 260  # 100 s were expected
        shown.stage("build b", "2 of 2")
    assert out.getvalue().splitlines() == [
        " 0:00, about 10 min left  build a (1 of 2)",
        " 4:20, about 17 min left  build b (2 of 2)",  # 500 s, twice as slow
    ]


def test_a_run_that_goes_on_knows_the_pace_of_the_one_that_was_cut() -> None:
    out, clock = io.StringIO(), HandClock()
    with pytest.raises(KeyboardInterrupt), Progress("prepare", out, each=True, clock=clock) as shown:
        shown.plan(["build a", "build b"])
        shown.stage("build a")
        clock.now_s = 260
        shown.stage("build b")
        clock.now_s = 300
        raise KeyboardInterrupt
    with Progress("prepare", out, each=True, clock=clock) as shown:
        shown.plan(["build b"])
        shown.stage("build b")
    assert out.getvalue().splitlines()[-1] == " 0:00, about 10 min left  build b"  # 300 s, twice as slow


def test_a_stage_that_goes_on_says_nothing_of_the_pace(cache: Path) -> None:
    """What a cut run has done of it makes it short."""
    out, clock = io.StringIO(), HandClock()
    with Progress("prepare", out, each=True, clock=clock) as shown:
        shown.plan(["build a", "build b"])
        shown.stage("build a", whole=False)
        clock.now_s = 1
        shown.stage("build b")
        clock.now_s = 301
    assert out.getvalue().splitlines()[-1] == " 0:01, about 5 min left  build b"
    assert json.loads((cache / "durations/prepare.json").read_text()) == {"build b": 300}


def test_a_stage_of_which_less_is_to_be_done_takes_less() -> None:
    out = io.StringIO()
    with Progress("prepare", out, each=True, clock=HandClock()) as shown:
        shown.plan(["build b"], share=0.1)
        shown.stage("build b", whole=False)
    assert out.getvalue() == " 0:00, about 30 s left  build b\n"


def test_what_goes_on_beside_the_stages_is_said_as_long_as_it_does(cache: Path) -> None:
    out, clock = io.StringIO(), HandClock()
    ended: list[int] = []
    with Progress("prepare", out, each=True, clock=clock) as shown:
        shown.plan(["build a", "build b"])
        shown.beside("build a", lambda: ended[0] if ended else None)
        shown.stage("build b")
        clock.now_s = 60
        shown.tick()
        ended.append(0)
        shown.tick()
        clock.now_s = 120
        shown.tick()
        clock.now_s = 330
    assert out.getvalue().splitlines() == [
        " 0:00, about 5 min left  build b; beside it: build a",  # its own 100 s are none of the run's
        " 1:00, about 4 min left  still: build b; beside it: build a",
        " 2:00, about 105 s left  still: build b",  # the pace: 60 s instead of 100
    ]
    assert json.loads((cache / "durations/prepare.json").read_text()) == {"build a": 60, "build b": 330}


def test_what_lasts_longer_than_all_that_it_is_beside_becomes_the_stage(cache: Path) -> None:
    out, clock = io.StringIO(), HandClock()
    with Progress("prepare", out, each=True, clock=clock) as shown:
        shown.plan(["build b"])
        shown.beside("build b", lambda: None)
        shown.stage("build a")
        clock.now_s = 100
        shown.stage("build b")
        clock.now_s = 310
    assert out.getvalue().splitlines() == [
        " 0:00, about 5 min left  build a; beside it: build b",
        " 1:40, about 4 min left  build b",  # 200 s
    ]
    assert json.loads((cache / "durations/prepare.json").read_text()) == {"build a": 100, "build b": 310}


def test_what_fails_beside_the_stages_is_said_once_and_is_no_measure(cache: Path) -> None:
    out = io.StringIO()
    with Progress("prepare", out, each=True, clock=HandClock()) as shown:
        shown.beside("build a", lambda: 2)
        shown.tick()
        shown.stage("build b")
    lines = out.getvalue().splitlines()
    assert lines[0] == "failed: build a" and lines[1].endswith("  build b") and len(lines) == 2
    assert json.loads((cache / "durations/prepare.json").read_text()) == {"build b": 0}


def test_what_others_keep_meanwhile_stays(cache: Path) -> None:
    with Progress("prepare", io.StringIO(), each=True, clock=HandClock()) as shown:
        shown.stage("build a")
        with Progress("prepare", io.StringIO(), each=True, clock=HandClock()) as other:
            other.stage("build b")
    assert json.loads((cache / "durations/prepare.json").read_text()) == {"build a": 0, "build b": 0}


def test_elsewhere_than_on_a_terminal_a_long_stage_says_once_a_minute_that_it_goes_on() -> None:
    out, clock = io.StringIO(), HandClock()
    shown = Progress("prepare", out, each=True, clock=clock)
    shown.plan(["build a"])
    shown.stage("build a")
    for clock.now_s in range(1, 131):
        shown.tick()
    assert out.getvalue().splitlines() == [
        " 0:00, about 100 s left  build a",
        " 1:00, about 40 s left  still: build a",
        " 2:00, longer than expected  still: build a",
    ]


def test_on_a_terminal_one_line_is_rewritten_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out, clock = Terminal(), HandClock()
    with Progress("prepare", out, each=True, clock=clock) as shown:
        shown.plan(["build a"])
        shown.stage("build a")
        clock.now_s = 5
        shown.tick()
        shown.task("a task with a name that is longer than the terminal")
        shown.say("a line that stays")
    text = out.getvalue()
    lines = text.replace("a line that stays\n", "").split("\r\x1b[K")
    assert "\n" not in "".join(lines) and lines[-1] == ""
    assert lines[2] == " 0:05, about 95 s left  build a"
    assert lines[3] == " 0:05, about 95 s left  build a: a task"


def test_a_run_that_nobody_knows_has_no_estimate_the_first_time_and_one_afterwards() -> None:
    clock = HandClock()
    texts = []
    for _ in range(2):
        out = io.StringIO()
        clock.now_s = 0
        with Progress("x", out, clock=clock) as shown:
            shown.stage("Build", "3 hosts")
            clock.now_s = 30
            shown.remember()
        texts.append(out.getvalue())
    assert texts == [" 0:00  Build (3 hosts)\n", " 0:00, about 30 s left  Build (3 hosts)\n"]
    assert progress.expected_s("x") == 30


def test_a_run_that_failed_is_no_estimate(cache: Path) -> None:
    with Progress("site", io.StringIO()) as shown:
        shown.stage("Build")
    assert not (cache / "durations").exists()
    assert progress.expected_s("site") == 200


def test_an_unreadable_history_is_none(cache: Path) -> None:
    (cache / "durations").mkdir(parents=True)
    for text in ("{", "[]", '{"Build": "long"}'):
        (cache / "durations/site.json").write_text(text)
        assert progress.expected_s("site") == 200


def test_every_stage_of_preparing_and_every_play_has_a_shipped_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ours, shipped = (json.loads(path.read_text()) for path in (progress.SHIPPED, DURATIONS))
    steps = {step.name for step in (*binaries.DOWNLOADS, *binaries.CONTENTS.steps())}
    assert set(shipped["prepare"]) | set(ours["prepare"]) == steps | {GO, image.STAGE, hosts.START}
    assert set(ours["prepare"]) == {step.name for step in (*MIRROR.downloads, *MIRROR.steps())} | {GO}
    plays = [
        line.removeprefix("- name: ")
        for line in (REPOSITORY / "site.yml").read_text().splitlines()
        if line.startswith("- name: ")
    ]
    assert list(shipped["site"]) == ["starting", *plays]
