"""Labs that run beside each other share the machine's kernel settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import machine


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A /proc/sys of our own."""
    for name in machine.SETTINGS:
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text("1\n")
    return tmp_path / "sys"


def test_the_last_of_two_labs_puts_the_settings_back(tmp_path: Path, settings: Path) -> None:
    first, second = tmp_path / "labs/first", tmp_path / "labs/second"
    limit, panic = settings / machine.INOTIFY_INSTANCES, settings / "kernel/panic"
    machine.enter(first, settings)
    assert int(limit.read_text()) == machine.MIN_INOTIFY_INSTANCES
    panic.write_text("10")
    machine.enter(second, settings)
    machine.leave(first, settings)
    assert not first.exists() and second.exists()
    assert int(limit.read_text()) == machine.MIN_INOTIFY_INSTANCES, "the second lab still needs it"
    machine.leave(second, settings)
    assert (limit.read_text(), panic.read_text()) == ("1", "1")


def test_a_limit_that_is_higher_is_left_alone(tmp_path: Path, settings: Path) -> None:
    (settings / machine.INOTIFY_INSTANCES).write_text("100000")
    machine.enter(tmp_path / "labs/one", settings)
    assert (settings / machine.INOTIFY_INSTANCES).read_text() == "100000"


def test_a_lab_that_was_never_started_can_be_left(tmp_path: Path, settings: Path) -> None:
    machine.leave(tmp_path / "labs/none", settings)
    assert (settings / machine.INOTIFY_INSTANCES).read_text() == "1\n"
