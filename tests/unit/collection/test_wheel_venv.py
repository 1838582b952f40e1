"""Versioned virtual environments on hosts: what is refused, what is replaced, what is kept."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import wheel_venv
from ansible_collections.muster.fleet.plugins.modules import wheel_venv as module

from tests.support.server_helpers import QuietFiles, listening


def make_tar(path: Path, members: dict[str, bytes]) -> str:
    """A tar archive; gives its SHA-256."""
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
        "url": "",
        "timeout_s": 5.0,
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


def small_wheelhouse() -> dict[str, bytes]:
    """What a wheelhouse holds, with a pip that installs nothing."""
    pip = io.BytesIO()
    with zipfile.ZipFile(pip, "w") as wheel:
        wheel.writestr("pip/__main__.py", "")
    return {"pip-1-py3-none-any.whl": pip.getvalue(), "requirements.txt": b"x==1"}


@dataclass
class Mirror:
    """A web server with a folder, and what was asked of it. Of /cut it gives the first byte alone."""

    url: str
    folder: Path
    asked: list[str]


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    asked: list[str] = []

    class Handler(QuietFiles):
        def do_GET(self) -> None:
            asked.append(self.path)
            if not self.path.startswith("/cut/"):
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 20))
            self.end_headers()
            self.wfile.write(b"x")

    (tmp_path / "mirror").mkdir()
    with listening(partial(Handler, directory=str(tmp_path / "mirror"))) as url:
        yield Mirror(url, tmp_path / "mirror", asked)


@pytest.fixture
def fetched(mirror: Mirror, tmp_path: Path) -> dict[str, object]:
    """Parameters of a host that fetches its archive, which the mirror has. The host is the folder `host`."""
    (tmp_path / "host").mkdir()
    sha256 = make_tar(mirror.folder / "b1.tar", small_wheelhouse())
    return params(tmp_path / "host") | {"sha256": sha256, "url": f"{mirror.url}/"}


def on_host(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path / "host")) for path in (tmp_path / "host").iterdir())


def test_a_host_fetches_its_archive_once(mirror: Mirror, fetched: dict[str, object], tmp_path: Path) -> None:
    assert module.apply(fetched, check_mode=False) == {"changed": True, "archive_needed": False}
    assert wheel_venv.is_complete(tmp_path / "host/b1")
    assert on_host(tmp_path) == ["b1", "current", "program"]
    assert module.apply(fetched, check_mode=False) == {"changed": False, "archive_needed": False}
    assert mirror.asked == ["/b1.tar"]


def test_check_mode_says_that_it_would_install_and_fetches_nothing(
    mirror: Mirror, fetched: dict[str, object], tmp_path: Path
) -> None:
    assert module.apply(fetched, check_mode=True) == {"changed": True, "archive_needed": False}
    assert on_host(tmp_path) == [] == mirror.asked


def test_what_a_killed_run_left_is_used_where_it_is_whole_and_removed_where_not(
    mirror: Mirror, fetched: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "host/.b1.tar.abc.muster-tmp").write_text("half")
    (tmp_path / "host/b1.tar").write_bytes((mirror.folder / "b1.tar").read_bytes())
    module.apply(fetched, check_mode=False)
    assert mirror.asked == []
    assert on_host(tmp_path) == ["b1", "current", "program"]


def test_another_archive_under_the_name_is_replaced(mirror: Mirror, fetched: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "host/b1.tar").write_text("of another build")
    assert module.apply(fetched, check_mode=False)["changed"] is True
    assert mirror.asked == ["/b1.tar"]


def other_sum(given: dict[str, object], mirror: Mirror) -> str:
    with (mirror.folder / "b1.tar").open("ab") as archive:
        archive.write(b"x")
    found = hashlib.sha256((mirror.folder / "b1.tar").read_bytes()).hexdigest()
    wanted = f"the controller's file has {given['sha256']}; copy the controller's file to the mirror"
    return f"{mirror.url}/b1.tar has SHA-256 {found}, but {wanted}"


def not_there(given: dict[str, object], mirror: Mirror) -> str:
    (mirror.folder / "b1.tar").unlink()
    todo = "copy this file from the controller's wheelhouse to the mirror, or correct fleet_wheelhouse_url"
    return f"{mirror.url}/b1.tar answers HTTP 404 File not found; {todo}"


def cut(given: dict[str, object], mirror: Mirror) -> str:
    given["url"] = f"{mirror.url}/cut"
    return f"{mirror.url}/cut/b1.tar broke off after 1 of {1 << 20} bytes; run again"


def nobody(given: dict[str, object], mirror: Mirror) -> str:
    given["url"] = "http://127.0.0.1:1"
    todo = "start the mirror, let the host reach it, or correct fleet_wheelhouse_url"
    return f"http://127.0.0.1:1/b1.tar cannot be fetched: [Errno 111] Connection refused; {todo}"


@pytest.mark.parametrize("fault", [other_sum, not_there, cut, nobody])
def test_what_cannot_be_fetched_leaves_the_host_as_it_was(
    mirror: Mirror, fetched: dict[str, object], tmp_path: Path, fault: Callable[[dict[str, object], Mirror], str]
) -> None:
    """An earlier build is in use."""
    (tmp_path / "host/b0").mkdir()
    (tmp_path / "host/current").symlink_to("b0")
    said = fault(fetched, mirror)
    with pytest.raises(FleetError, match=f"^{re.escape(said)}$"):
        module.apply(fetched, check_mode=False)
    assert on_host(tmp_path) == ["b0", "current"]
    assert str((tmp_path / "host/current").readlink()) == "b0"


def test_an_archive_that_does_not_fit_unpacked_is_named_and_stays_for_the_next_run(
    mirror: Mirror, fetched: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own file that is always full stands where the first wheel goes."""
    room = tmp_path / "room"
    room.mkdir()
    (room / "requirements.txt").symlink_to("/dev/full")
    with monkeypatch.context() as patched:
        patched.setattr(wheel_venv.tempfile, "TemporaryDirectory", lambda prefix: contextlib.nullcontext(str(room)))
        said = f"{tmp_path}/host/b1.tar cannot be unpacked into {room}: No space left on device; make room on its file"
        with pytest.raises(FleetError, match=re.escape(said)):
            module.apply(fetched, check_mode=False)
    assert module.apply(fetched, check_mode=False)["changed"] is True
    assert mirror.asked == ["/b1.tar"]
