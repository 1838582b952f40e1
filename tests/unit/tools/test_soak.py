"""`make soak`: what it has that `make test` leaves out, and its seed."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tools import soak
from tools.prove import REPOSITORY, Stage

MARKED = re.compile(r"pytest\.mark\.soak\b")


def stages(seed: int = 7) -> dict[str, Stage]:
    return {stage.name: stage for lane in soak.lanes(seed) for stage in lane}


def test_the_seed_is_the_day_and_can_be_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak.seed_of(datetime(2026, 11, 26, 23, 59, tzinfo=UTC)) == 20261126
    seen: list[list[list[Stage]]] = []
    monkeypatch.setattr(soak, "prove", lambda lanes, _, of: seen.append(lanes) or 0)
    assert soak.main(["--seed=20260131"]) == 0
    assert capsys.readouterr().out == "soak: seed 20260131; again: make soak SEED=20260131\n"
    (lanes,) = seen
    with_seed = {stage.name for lane in lanes for stage in lane if "--seed=20260131" in " ".join(stage.command)}
    assert with_seed == {"campaign", "kills"}


def test_every_test_that_is_marked_soak_is_run_by_a_stage() -> None:
    """By its whole file, or by the mark: without this a test with the mark could be run by nobody."""
    marked = [path for path in (REPOSITORY / "tests").rglob("test_*.py") if MARKED.search(path.read_text())]
    marked = [path for path in marked if path != Path(__file__)]
    assert marked
    places = [REPOSITORY / word for stage in stages().values() for word in stage.command if word.startswith("tests/")]
    unreached = [path for path in marked if not any(path.is_relative_to(place) for place in places)]
    assert [path for path in unreached if "campaign" not in path.parts] == []


def test_every_scenario_every_draw_and_every_kill_is_in_it() -> None:
    found = stages()
    folders = list(REPOSITORY.glob("roles/*/molecule/*/molecule.yml"))
    assert len(found["molecule"].command[3:]) == len(set(found["molecule"].command[3:])) == len(folders)
    assert "nvidia_driver/debian" in found["molecule"].command
    assert not any(word.startswith("--each") for word in found["campaign"].command)
    assert "tests/integration/on_demand/test_rotation.py" in found["lab"].command
    assert "--kills=20" in found["kills"].command[-1]
    assert found["kills"].command[-1].endswith(f"; ended=$?; {sys.executable} -m tests.lab down; exit $ended")
    assert found["unit"].command[-1] == "tests/unit"
    for stage in ("unit", "lab", "servers"):
        command = found[stage].command
        assert command[command.index("-v") + 1 :][:2] == ["-m", "soak"], stage


def test_a_run_is_the_same_one_while_commit_and_seed_are_and_no_file_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"status": "", "rev-parse": "4812c9d1"}
    monkeypatch.setattr(soak, "_git", lambda word, *_: answers[word])
    assert soak.run_of(7) == {"commit": "4812c9d1", "seed": "7"}
    answers["status"] = " M README.md"
    assert soak.run_of(7) == {}


def test_every_test_on_demand_is_marked_soak() -> None:
    """The lab's stage takes those with the mark."""
    files = list((REPOSITORY / "tests/integration/on_demand").glob("test_*.py"))
    assert files and all("pytestmark = pytest.mark.soak\n" in path.read_text() for path in files)
