"""`make lab` for somebody who is not root: one sentence, exit code 2, nothing begun."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import __main__ as lab_command
from tests.lab import fleet


@pytest.mark.parametrize(
    ("main", "arguments"), [(fleet.main, ()), (lab_command.main, ("up",))], ids=["make lab", "lab up"]
)
def test_without_root_nothing_is_begun(
    main: Callable[[], int],
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["lab", *arguments])
    for name in ("MUSTER_LAB_STATE", "MUSTER_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "lab: the lab starts hosts with mounts and a network of their own and needs root: run it with sudo\n"
    )
    assert list(tmp_path.iterdir()) == []
