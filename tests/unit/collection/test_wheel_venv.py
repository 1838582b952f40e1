"""Versioned virtual environments on hosts: what is refused, what is replaced, what is kept."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import wheel_venv
from ansible_collections.muster.fleet.plugins.modules import wheel_venv as module


def make_tar(path: Path, members: dict[str, bytes]) -> str:
    """A tar archive; gives its SHA-256."""
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return wheel_venv.sha256_of(path)


def test_unpack_wants_the_named_bytes(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    make_tar(archive, {"x.whl": b"x"})
    with pytest.raises(FleetError, match="SHA-256"):
        wheel_venv.unpack(archive, "0" * 64, tmp_path)


@pytest.mark.parametrize("name", ["../evil.whl", "sub/x.whl", ".hidden"])
def test_unpack_refuses_paths(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.tar"
    sha256 = make_tar(archive, {name: b"x"})
    target = tmp_path / "out"
    target.mkdir()
    with pytest.raises(FleetError, match="not a plain file"):
        wheel_venv.unpack(archive, sha256, target)
    assert list(target.iterdir()) == []


def test_install_without_pip_is_refused_and_leaves_nothing_complete(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    sha256 = make_tar(archive, {"x-1-py3-none-any.whl": b"x", "requirements.txt": b""})
    with pytest.raises(FleetError, match="no pip wheel"):
        wheel_venv.install(archive, sha256, tmp_path / "root" / "b")
    assert not wheel_venv.is_complete(tmp_path / "root" / "b")


def test_complete_only_for_the_same_python(tmp_path: Path) -> None:
    assert not wheel_venv.is_complete(tmp_path)
    (tmp_path / wheel_venv.COMPLETE).write_text(wheel_venv.python_version() + "\n")
    assert wheel_venv.is_complete(tmp_path)
    (tmp_path / wheel_venv.COMPLETE).write_text("3.9\n")
    assert not wheel_venv.is_complete(tmp_path)


def test_links_are_replaced_by_rename_but_files_are_not(tmp_path: Path) -> None:
    link = tmp_path / "current"
    wheel_venv.set_link(link, "one")
    wheel_venv.set_link(link, "two")
    assert str(link.readlink()) == "two"
    assert wheel_venv.wrong_links({str(link): "two"}) == []
    assert wheel_venv.wrong_links({str(link): "one"}) == [str(link)]
    (tmp_path / "file").write_text("")
    with pytest.raises(FleetError, match="move it away"):
        wheel_venv.set_link(tmp_path / "file", "one")


def test_prune_keeps_the_build_in_use_and_the_one_before(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "before", "old", "older"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "current").symlink_to("new")
    wheel_venv.prune(tmp_path, "new", "before")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "current", "new"]


def params(root: Path) -> dict[str, object]:
    """The module's parameters."""
    return {
        "root": str(root),
        "build": "b1",
        "archive": str(root / "b1.tar"),
        "sha256": "0" * 64,
        "links": {str(root / "program"): str(root / "current/bin/program")},
    }


def test_asks_for_the_archive_and_changes_nothing(tmp_path: Path) -> None:
    assert module.apply(params(tmp_path), check_mode=False) == {"changed": False, "archive_needed": True}
    assert module.apply(params(tmp_path), check_mode=True) == {"changed": True, "archive_needed": True}
    assert list(tmp_path.iterdir()) == []


def test_installed_build_only_gets_its_links_back(tmp_path: Path) -> None:
    (tmp_path / "b1").mkdir()
    (tmp_path / "b1" / wheel_venv.COMPLETE).write_text(wheel_venv.python_version())
    assert module.apply(params(tmp_path), check_mode=True)["changed"] is True
    assert not (tmp_path / "current").is_symlink()
    assert module.apply(params(tmp_path), check_mode=False) == {"changed": True, "archive_needed": False}
    assert str((tmp_path / "current").readlink()) == "b1"
    assert module.apply(params(tmp_path), check_mode=False) == {"changed": False, "archive_needed": False}
