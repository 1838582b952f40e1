"""What a killed process leaves goes with the next one, and nothing of a process that lives, or of somebody else."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.system.temporary_folder import temporary_folder

HEX = "0123456789ab"


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a process that removed nothing; the kernel has closed what it had open."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with temporary_folder("muster-given") as left:
            (left / "given.json").touch()
    return left


def test_it_is_its_owners_alone_and_goes(tmp: Path) -> None:
    with pytest.raises(KeyError), temporary_folder("muster-given") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and folder.parent == tmp
        (folder / "given.json").touch()
        raise KeyError
    assert list(tmp.iterdir()) == []


def test_what_a_killed_process_left_goes_and_that_of_a_living_one_stays(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with temporary_folder("muster-given") as living:
        left = killed(monkeypatch)
        assert left.is_dir()
        with temporary_folder("muster-other"):
            assert left.is_dir()
        with temporary_folder("muster-given") as second:
            assert set(tmp.iterdir()) == {living, second}
    assert list(tmp.iterdir()) == []


def test_one_that_is_taken_for_a_rest_before_it_is_locked_is_made_anew(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, taken = os.open, list[Path]()

    def late(path: Path, flags: int, **more: Any) -> int:
        if not taken:
            taken.append(path)
            with temporary_folder("muster-given"):
                assert not path.exists()
        return opened(path, flags, **more)

    monkeypatch.setattr(os, "open", late)
    with temporary_folder("muster-given") as folder:
        assert folder.is_dir() and folder not in taken


def test_what_only_has_such_a_name_stays(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, link, file = tmp / "elsewhere/inner", tmp / f"muster-given-{HEX}", tmp / f"muster-given-{HEX[::-1]}"
    inner.mkdir(parents=True)
    link.symlink_to(inner.parent)
    file.touch()
    named = tmp / "muster-given-of-last-week"
    named.mkdir()
    with temporary_folder("muster-given"):
        pass
    assert inner.is_dir() and link.is_symlink() and file.exists() and named.is_dir()
    theirs = killed(monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with temporary_folder("muster-given"):
        assert theirs.is_dir()
