"""Which workers wait for one another as they collect tests."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from tests.support.collecting import one_at_a_time


def others_wait(tests: Path) -> bool:
    """Whether another worker would."""
    folder = os.open(tests, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False


def test_workers_wait_where_something_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for area in ("one", "two"):
        (tmp_path / area / "__pycache__").mkdir(parents=True)
        (tmp_path / area / "test_it.py").touch()
    (tmp_path / "one/__pycache__/test_it.cpython-311-pytest-9.2.0.pyc").touch()
    with one_at_a_time(tmp_path):
        assert others_wait(tmp_path)
    assert not others_wait(tmp_path)
    (tmp_path / "two/__pycache__/test_it.cpython-311-pytest-9.2.0.pyc").touch()
    with one_at_a_time(tmp_path):
        assert not others_wait(tmp_path), "all is compiled"


def test_nobody_waits_where_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "test_it.py").touch()
    with one_at_a_time(tmp_path):
        assert not others_wait(tmp_path)
