"""Finding NCCL; and the binding against the real library and its header, where the wheel is installed. No GPU."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks.nccl import library as nccl
from gpu_burnin.checks.nccl.port import NcclMissing
from tests.support.nccl_fakes import FakeNccl


def test_the_wheel_comes_before_the_loader_and_every_function_has_its_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "installed_wheel", lambda: ("2.32.3", "/wheel/libnccl.so.2"))
    library = FakeNccl()
    tried: list[str] = []

    def opener(path: str) -> FakeNccl:
        tried.append(path)
        if path.startswith("/wheel"):
            raise OSError("/wheel/libnccl.so.2: file too short")
        return library

    assert nccl.load_library(opener) is library
    assert tried == ["/wheel/libnccl.so.2", "libnccl.so.2"]
    assert library.ncclCommInitRankConfig.argtypes[2] is nccl.UniqueId, "by value"
    assert len(library.ncclAllReduce.argtypes) == 7
    assert library.ncclGetErrorString.restype is ctypes.c_char_p


def test_no_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "installed_wheel", lambda: None)

    def opener(path: str) -> Any:
        raise OSError(f"{path}: cannot open shared object file")

    with pytest.raises(NcclMissing, match=r"libnccl\.so\.2: cannot open .*gpu-burnin\[cuda13\]"):
        nccl.load_library(opener)


def test_a_library_without_a_function_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "installed_wheel", lambda: None)
    with pytest.raises(NcclMissing, match="too old"):
        nccl.load_library(lambda path: object())


# --- the real one ---


@pytest.fixture(scope="module")
def real() -> Path:
    """The installed library."""
    wheel = nccl.installed_wheel()
    if wheel is None:
        pytest.skip("no nvidia-nccl wheel is installed")
    return Path(wheel[1])


def test_the_real_library_has_every_function_and_its_version_needs_no_gpu(real: Path) -> None:
    library = nccl.Nccl(nccl.load_library())
    wheel = nccl.installed_wheel()
    assert wheel is not None
    assert nccl.version_text(library.version()) == wheel[0]


def test_config_is_that_of_the_real_header_as_far_as_both_know(real: Path) -> None:
    header = (real.parent.parent / "include" / "nccl.h").read_text()
    body = re.search(r"typedef struct ncclConfig_v\d+ \{(.*?)\} ncclConfig_t;", header, re.DOTALL)
    assert body is not None
    plain = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    members = re.findall(r"([\w ]+?)\s*(\*?)\s*(\w+)\s*;", plain)
    names = {"size_t": ctypes.c_size_t, "unsigned int": ctypes.c_uint, "int": ctypes.c_int}
    found = [(name, ctypes.c_char_p if star else names[kind.strip()]) for kind, star, name in members]
    ours = list(nccl.Config._fields_)
    shared = min(len(found), len(ours))
    assert found[:shared] == ours[:shared]
    code = re.search(r"#define NCCL_VERSION_CODE (\d+)", header)
    assert code is not None
    if int(code[1]) == nccl.HEADER_VERSION:
        assert len(found) == len(ours)
    assert re.search(r"#define NCCL_API_MAGIC 0xcafebeef", header)
    for name, number in (("ncclInt32", 2), ("ncclInt64", 4), ("ncclFloat32", 7), ("ncclBfloat16", 9)):
        assert re.search(rf"\b{name}\s*=\s*{number}\b", header)


def test_the_lock_files_pin_the_version_whose_header_is_used() -> None:
    folder = Path(__file__).resolve().parents[4] / "requirements"
    pinned = nccl.version_text(nccl.HEADER_VERSION)
    for cuda in ("12", "13"):
        assert f"nvidia-nccl-cu{cuda}=={pinned} " in (folder / f"node-cuda{cuda}.txt").read_text()
