"""What is sent of a script or a folder."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.pack import MOST_BYTES, Packed, pack, pack_text


def _names(packed: Packed) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(packed.archive)) as tar:
        return tar.getnames()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("main.py", "lib/model.py", ".git/HEAD", "lib/__pycache__/model.pyc", "venv/pyvenv.cfg", "old.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_a_folder_goes_without_what_nobody_misses(project: Path) -> None:
    packed = pack(project)
    assert (_names(packed), packed.entry, packed.files) == (["lib/model.py", "main.py"], "main.py", 2)


def test_the_same_files_make_the_same_bytes(project: Path) -> None:
    first = pack(project).archive
    os.utime(project / "main.py", (1, 1))
    assert pack(project).archive == first
    (project / "main.py").write_text("other")
    assert pack(project).archive != first


def test_what_is_started(project: Path) -> None:
    assert pack(project, "lib/model.py").entry == "lib/model.py"
    with pytest.raises(LaunchError, match=r"has no file train\.py to start"):
        pack(project, "train.py")
    (project / "main.py").unlink()
    with pytest.raises(LaunchError, match=r"has neither __main__\.py nor main\.py; name what is started: --entry FILE"):
        pack(project)


def test_a_script_goes_alone(project: Path) -> None:
    assert _names(pack(project / "main.py")) == ["main.py"]
    with pytest.raises(LaunchError, match="an entry is given for a folder alone"):
        pack(project / "main.py", "main.py")
    with pytest.raises(LaunchError, match="there is no file or folder"):
        pack(project / "none.py")
    (project / "binary.py").write_bytes(b"\xff\xfe")
    with pytest.raises(LaunchError, match="cannot be read as a Python script"):
        pack(project / "binary.py")


def test_links_stay_inside(project: Path) -> None:
    (project / "again.py").symlink_to("main.py")
    (project / "sub").symlink_to("lib")
    assert {"again.py", "sub"} <= set(_names(pack(project)))
    (project / "out").symlink_to("../elsewhere")
    with pytest.raises(LaunchError, match=r"the link .*/out leads out of the folder \(to \.\./elsewhere\)"):
        pack(project)
    (project / "out").unlink()
    (project / "out").symlink_to(project / "main.py")
    with pytest.raises(LaunchError, match="leads out of the folder"):
        pack(project)


def test_what_is_no_file_is_refused(project: Path) -> None:
    os.mkfifo(project / "pipe")
    with pytest.raises(LaunchError, match="pipe is neither file, folder nor link"):
        pack(project)


def test_a_folder_that_is_too_large_says_so_with_the_way_out(project: Path) -> None:
    (project / "weights.bin").write_bytes(random.Random(0).randbytes(MOST_BYTES + 1))
    with pytest.raises(
        LaunchError, match=r"\(3 files\) holds 928 KiB, packed more than the 928 KiB .*--source URL --sha256"
    ):
        pack(project)
    with (project / "sparse.bin").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(LaunchError, match=r"\(4 files\) holds 1 TiB, packed more than the 928 KiB"):
        pack(project)


def test_a_text_that_is_too_large_is_refused() -> None:
    text = random.Random(0).randbytes(MOST_BYTES).hex()
    with pytest.raises(LaunchError, match=r"the source of train\.py holds 1\.8"):
        pack_text("train.py", text)
