"""The wheelhouse's name follows its content; lock files are read as pip-compile writes them."""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]


def load() -> ModuleType:
    """tools/wheelhouse.py as a module."""
    spec = importlib.util.spec_from_file_location("wheelhouse", ROOT / "tools" / "wheelhouse.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["wheelhouse"] = module
    spec.loader.exec_module(module)
    return module


wheelhouse = load()

LOCK = """\
# comment
--find-links /somewhere

click==8.5.1 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via gpu-burnin
colorama==0.4.6 ; sys_platform == "win32" \\
    --hash=sha256:cc

# The following packages are considered to be unsafe in a requirements file:
pip==26.3 \\
    --hash=sha256:dd \\
    --hash=sha256:ee
    # via -r x
setuptools==84.2.1 \\
    --hash=sha256:ff
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout."""
    root = tmp_path / "checkout"
    (root / "gpu_burnin").mkdir(parents=True)
    (root / "gpu_burnin" / "a.py").write_text("A = 1\n")
    (root / "pyproject.toml").write_text('[project]\nname = "gpu-burnin"\n')
    (root / "node.txt").write_text(LOCK)
    return root


def wanted(checkout: Path, *pythons: str) -> object:
    """What the archive is for."""
    lock = checkout / "node.txt"
    return wheelhouse.Wanted((lock,), lock, pythons or ("3.11",), ("x86_64",))


def test_pins_without_hashes() -> None:
    assert wheelhouse.pins(LOCK) == [
        "click==8.5.1",
        'colorama==0.4.6 ; sys_platform == "win32"',
        "pip==26.3",
        "setuptools==84.2.1",
    ]


def test_pip_comes_with_its_hashes_and_nothing_else(checkout: Path) -> None:
    text = wheelhouse.pip_requirement(checkout / "node.txt")
    assert text.split() == ["pip==26.3", "\\", "--hash=sha256:dd", "\\", "--hash=sha256:ee"]


def test_lock_without_pip_is_an_error(tmp_path: Path) -> None:
    lock = tmp_path / "x.txt"
    lock.write_text("click==1\n")
    with pytest.raises(wheelhouse.WheelhouseError, match=r"x\.txt: does not pin pip"):
        wheelhouse.pip_requirement(lock)


def test_key_follows_what_goes_in(checkout: Path) -> None:
    key = wheelhouse.build_key(checkout, wanted(checkout))
    (checkout / "gpu_burnin" / "__pycache__").mkdir()
    (checkout / "gpu_burnin" / "__pycache__" / "a.pyc").write_bytes(b"x")
    (checkout / "README.md").write_text("text\n")
    assert wheelhouse.build_key(checkout, wanted(checkout)) == key
    assert wheelhouse.build_key(checkout, wanted(checkout, "3.12")) != key
    (checkout / "gpu_burnin" / "a.py").write_text("A = 2\n")
    changed = wheelhouse.build_key(checkout, wanted(checkout))
    assert changed != key
    (checkout / "gpu_burnin" / "a.py").rename(checkout / "gpu_burnin" / "b.py")
    assert wheelhouse.build_key(checkout, wanted(checkout)) not in (key, changed)


def test_archive_that_is_there_is_not_built_again(checkout: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    dry = wheelhouse.build(checkout, wanted(checkout), output, dry_run=True)
    assert dry.changed and dry.sha256 == ""
    assert not output.exists()
    output.mkdir()
    Path(dry.path).write_bytes(b"tar")
    Path(f"{dry.path}.sha256").write_text("abc  name\n")
    # Nothing of pip could work here: it must not be called.
    found = wheelhouse.build(checkout, wanted(checkout), output)
    assert (found.changed, found.path, found.sha256) == (False, dry.path, "abc")


def test_failed_download_leaves_nothing(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(arguments: object, what: str) -> None:
        raise wheelhouse.WheelhouseError(f"{what}: pip failed: THESE PACKAGES DO NOT MATCH THE HASHES")

    monkeypatch.setattr(wheelhouse, "run_pip", refuse)
    with pytest.raises(wheelhouse.WheelhouseError, match=r"for Python 3\.11 on x86_64"):
        wheelhouse.build(checkout, wanted(checkout), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_nodes_ask_for_the_version_that_the_wheel_got(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pip(arguments: list[str | Path], what: str) -> None:
        folder = Path(arguments[arguments.index("--dest" if arguments[0] == "download" else "--wheel-dir") + 1])
        name = "click-8.5.1" if arguments[0] == "download" else "gpu_burnin-4.5.6"
        (folder / f"{name}-py3-none-any.whl").write_bytes(b"")

    monkeypatch.setattr(wheelhouse, "run_pip", pip)
    built = wheelhouse.build(checkout, wanted(checkout), tmp_path / "out")
    with tarfile.open(built.path) as archive:
        requirements = archive.extractfile("requirements.txt")
        assert requirements is not None
        lines = requirements.read().decode().splitlines()
    assert lines[0] == "click==8.5.1" and lines[-1] == "gpu-burnin==4.5.6"


def test_of_two_that_want_one_archive_one_builds_it(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go, builds = threading.Event(), threading.Event(), list[str]()

    def pip(arguments: Sequence[str | Path], what: str) -> None:
        if arguments[0] == "wheel":
            (Path(str(arguments[arguments.index("--wheel-dir") + 1])) / "gpu_burnin-1.0-py3-none-any.whl").touch()
            builds.append(what)
            began.set()
            assert go.wait(PATIENCE_S)

    monkeypatch.setattr(wheelhouse, "run_pip", pip)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(wheelhouse.build, checkout, wanted(checkout), tmp_path / "out")
        assert began.wait(PATIENCE_S)
        second = pool.submit(wheelhouse.build, checkout, wanted(checkout), tmp_path / "out")
        go.set()
    assert len(builds) == 1 and (first.result().changed, second.result().changed) == (True, False)
    assert first.result().sha256 == second.result().sha256


def test_equal_contents_give_equal_archives(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for wheel in ("b.whl", "a.whl") if name == "one" else ("a.whl", "b.whl"):
            (tmp_path / name / wheel).write_text(wheel)
        wheelhouse.write_tar(tmp_path / name, tmp_path / f"{name}.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_platforms_do_not_need_a_newer_glibc_than_debian_12() -> None:
    assert wheelhouse.platforms("x86_64")[0] == "manylinux_2_36_x86_64"
    assert "manylinux_2_17_x86_64" in wheelhouse.platforms("x86_64")


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--output", str(tmp_path), "--machine", "x86_64"]
    assert wheelhouse.main([*common, "--requirements", str(tmp_path / "none.txt"), "--python", "3.11"]) == 2
    assert "none.txt: cannot be read" in capsys.readouterr().err
    assert wheelhouse.main([*common, "--requirements", "x", "--python", "python3"]) == 2
    assert "not a Python version" in capsys.readouterr().err


@pytest.mark.parametrize(("cuda", "gpu_wheels"), [("none", set()), ("12", {"cu12", "12x"}), ("13", {"cu13", "13x"})])
def test_cuda_selects_a_lock_file_with_all_of_node_txt(
    cuda: str, gpu_wheels: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def build(checkout: Path, wanted: object, output: Path, dry_run: bool = False) -> object:
        seen.append(wanted)
        return wheelhouse.Result(False, "", "", "")

    monkeypatch.setattr(wheelhouse, "build", build)
    arguments = ["--cuda", cuda, "--python", "3.11", "--machine", "x86_64", "--output", str(tmp_path)]
    assert wheelhouse.main(arguments) == 0
    (lock,) = seen[0].requirements
    pins = set(wheelhouse.pins(lock.read_text()))
    assert set(wheelhouse.pins((ROOT / "requirements" / "node.txt").read_text())) <= pins
    found = {word for word in ("cu12", "12x", "cu13", "13x") if any(word in pin for pin in pins)}
    assert found == gpu_wheels
    # What the backend loads: cublasLt, NVRTC, the headers beside it.
    names = {pin.split("==")[0] for pin in pins}
    libraries = {"nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"}
    wanted = {f"{name}-cu12" if cuda == "12" else name for name in libraries} if gpu_wheels else set()
    assert {n for n in names if n.startswith("nvidia-cu")} == wanted


def test_lock_file_and_cuda_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--output", str(tmp_path), "--machine", "x86_64", "--python", "3.11"]
    for wrong in ([], ["--cuda", "12", "--requirements", "x"], ["--cuda", "11"]):
        with pytest.raises(SystemExit) as caught:
            wheelhouse.main([*common, *wrong])
        assert caught.value.code == 2
        assert "--cuda" in capsys.readouterr().err


def test_prints_one_json_object(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheelhouse, "CHECKOUT", checkout)
    lock = str(checkout / "node.txt")
    arguments = ["--requirements", lock, "--pip-lock", lock, "--python", "3.11", "--machine", "x86_64"]
    assert wheelhouse.main([*arguments, "--output", str(tmp_path / "out"), "--dry-run"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"changed", "path", "sha256", "build"}
