"""What a killed step leaves on this machine, and what is removed of it: its own, and nothing else."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_burnin.fleet.waves import temporary
from gpu_burnin.fleet.waves.book import Book
from gpu_burnin.fleet.waves.model import Order, Roll


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "roll/steps/shard-0001"
    path.mkdir(parents=True)
    return path


def killed(step: Path) -> list[object]:
    """A step that was killed in the middle; what is given ends it when it is dropped."""
    begun = [temporary.sockets(step), temporary.runner(step)]
    for one in begun:
        Path(one.__enter__(), "file").touch()
    return list(begun)


def test_what_a_step_has_is_its_owners_and_goes_with_it(step: Path, folder: Path) -> None:
    with temporary.sockets(step) as sockets, temporary.runner(step) as private:
        assert {stat.S_IMODE(Path(one).stat().st_mode) for one in (sockets, private)} == {0o700}
        assert Path(private).parent == step and Path(sockets).parent == folder
        # ssh adds a dot and 16 characters to the name of 10 that Ansible gives, of at most 107 (unix(7)).
        assert len(f"/tmp/{Path(sockets).name}/{'x' * 10}.{'x' * 16}") < 108
    assert list(folder.iterdir()) == list(step.iterdir()) == []


def test_the_next_call_removes_what_a_killed_one_left(step: Path, folder: Path) -> None:
    begun = killed(step)
    assert list(folder.iterdir()) and list(step.iterdir())
    temporary.clear(step)
    assert list(folder.iterdir()) == list(step.iterdir()) == []
    temporary.clear(step)
    del begun


def test_a_new_roll_removes_it_too(step: Path, folder: Path) -> None:
    begun = killed(step)
    Book(step.parents[1]).begin(Roll("2", "", Order("site.yml", ("hosts.yml",)), "", (), {}), b"{}")
    assert list(folder.iterdir()) == [] and not step.exists()
    del begun


def test_what_is_somebody_elses_stays(step: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = folder / "other"
    (other / "inner").mkdir(parents=True)
    link, named, theirs = (folder / f"muster-{n * 12}" for n in "abc")
    link.symlink_to(other)
    theirs.mkdir()

    def clear(path: Path | str) -> None:
        (step / temporary.SOCKETS).write_text(str(path))
        temporary.clear(step)
        assert not (step / temporary.SOCKETS).exists()

    for path in (link, other, named, "muster-aaaaaaaaaaaa", "\0", ""):
        clear(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    clear(theirs)
    assert (other / "inner").is_dir() and link.is_symlink() and theirs.is_dir()


def test_the_environment_goes_before_ansible_starts(tmp_path: Path) -> None:
    config, kept = SimpleNamespace(artifact_dir=tmp_path), tmp_path / "command"
    kept.touch()
    temporary.forget_environment({"status": "starting"}, runner_config=config)
    assert kept.exists(), "ansible-runner writes it after that"
    temporary.forget_environment({"status": "running"}, runner_config=config)
    assert not kept.exists()
