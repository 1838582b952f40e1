"""The file by which jobs hear that they are asked to leave, and what a job reads of it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin import job
from gpu_burnin.admission.decide.draining import leave_annotation
from gpu_burnin.api.record import DrainRequest
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.job import asked_to_leave
from gpu_burnin.node import leave_file

ASK = DrainRequest("2026-11-22T11:00:00Z", "2026-11-29T12:00:00Z", "XID 79 on GPU-1")
TEXT = leave_annotation(ASK)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "muster" / "leave.json"


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_job_reads_what_the_admitter_asks(path: Path) -> None:
    assert asked_to_leave(str(path)) is None
    assert leave_file.write(TEXT, path)
    found = asked_to_leave(str(path))
    assert found == job.Leave(ASK.since, ASK.deadline, ASK.why)
    assert leave_file.write(None, path)
    assert asked_to_leave(str(path)) is None


@pytest.mark.usefixtures("umask")
def test_everybody_may_read_it_whatever_the_umask(path: Path) -> None:
    leave_file.write(TEXT, path)
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_there_keeps_its_mode(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o750)
    leave_file.write(TEXT, path)
    assert path.parent.stat().st_mode & 0o777 == 0o750


def test_the_same_ask_writes_nothing(path: Path) -> None:
    assert [leave_file.write(None, path), leave_file.write(TEXT, path)] == [False, True]
    before = path.stat()
    assert not leave_file.write(TEXT, path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [leave_file.write(None, path), leave_file.write(None, path)] == [True, False]


def test_the_folder_is_there_before_anything_is_asked(path: Path) -> None:
    leave_file.write(None, path)
    assert path.parent.is_dir()


@pytest.mark.parametrize("annotation", ["", "no JSON", "[]", "null", '{"since": 1}', "[" * 100_000])
def test_an_annotation_that_cannot_be_read_asks_all_the_same(path: Path, annotation: str) -> None:
    leave_file.write(annotation, path)
    assert asked_to_leave(str(path)) == job.Leave(why="the node is taken out of work")


def test_a_folder_in_the_place_of_the_file_gives_way_when_it_is_empty(path: Path) -> None:
    path.mkdir(parents=True)
    assert asked_to_leave(str(path)) is None
    assert not leave_file.write(None, path)
    assert leave_file.write(TEXT, path)
    assert asked_to_leave(str(path))


def test_a_place_that_cannot_be_written_is_one_sentence(path: Path) -> None:
    path.parent.parent.mkdir(parents=True)
    path.parent.write_text("a file")
    with pytest.raises(GpuBurninError, match=rf"^{path}: jobs cannot be told .* \(Not a directory\); make room"):
        leave_file.write(TEXT, path)


@pytest.mark.parametrize("content", [b" ", b"\xff\xfe", b"[1]", b"3", b"{", b"[" * 60_000, b'{"why": null}'])
def test_a_job_takes_any_file_for_an_ask(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "leave.json").write_bytes(content)
    assert isinstance(asked_to_leave(str(tmp_path / "leave.json")), job.Leave)


def test_the_downward_api_asks_by_what_is_in_its_file_and_an_empty_one_asks_nothing(tmp_path: Path) -> None:
    """kubelet's AtomicWriter: each state is a new folder, and `..data` a link to the newest."""
    file = tmp_path / "leave.json"
    file.symlink_to("..data/leave.json")

    def projected(number: int, annotation: str) -> job.Leave | None:
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}/leave.json").write_text(annotation)
        (tmp_path / "..new").symlink_to(f"..{number}")
        (tmp_path / "..new").replace(tmp_path / "..data")
        return asked_to_leave(str(file))

    asks = [projected(1, ""), projected(2, TEXT), projected(3, ""), projected(4, TEXT)]
    assert asks == [None, job.Leave(ASK.since, ASK.deadline, ASK.why)] * 2


@pytest.mark.parametrize("name", ["", "\0", "x" * 5000, "missing/leave.json"])
def test_a_job_is_never_stopped_by_a_strange_path(name: str, tmp_path: Path) -> None:
    assert asked_to_leave(f"{tmp_path}/{name}") is None


def test_the_environment_names_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_file.write(TEXT, path)
    monkeypatch.setenv("MUSTER_LEAVE_FILE", str(path))
    assert asked_to_leave() == job.Leave(ASK.since, ASK.deadline, ASK.why)


def test_a_file_that_stays_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_file.write(TEXT, path)
    first = asked_to_leave(str(path))
    monkeypatch.setattr(job, "_read", lambda _: pytest.fail("it is read again"))
    assert asked_to_leave(str(path)) is first


def test_a_new_ask_is_seen(path: Path) -> None:
    leave_file.write(TEXT, path)
    asked_to_leave(str(path))
    leave_file.write(leave_annotation(DrainRequest(ASK.since, ASK.deadline, "a window")), path)
    found = asked_to_leave(str(path))
    assert found is not None and found.why == "a window"


def test_an_image_with_an_old_python_reads_it() -> None:
    """Images of jobs are older than nodes: Python 3.8 has no newer grammar."""
    source = Path(job.__file__).read_text()
    ast.parse(source, feature_version=(3, 8))
    with pytest.raises(SyntaxError):
        ast.parse("match x:\n  case 1: pass", feature_version=(3, 8))


def test_the_module_works_alone_in_an_image(path: Path, tmp_path: Path) -> None:
    """Copied, with no package around it and no site-packages."""
    leave_file.write(TEXT, path)
    shutil.copy(job.__file__, tmp_path / "job.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import job; "
         "print(job.asked_to_leave().deadline); assert not [m for m in sys.modules if m.startswith('gpu_burnin')]"],
        capture_output=True, text=True, env={"MUSTER_LEAVE_FILE": str(path)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{ASK.deadline}\n", "")
