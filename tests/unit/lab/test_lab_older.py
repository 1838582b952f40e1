"""Kubernetes of the minor before: built when it is asked for, and each program once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import older
from tests.lab.binaries import BUILDS, KUBERNETES_VERSION
from tests.lab.golang import ARTIFACTS, Build
from tests.lab.older import NAMES, OLDER_VERSION, ensure_older
from tests.lab.shell import LabError


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was built, in an empty cache."""
    made: list[str] = []

    def build(one: Build, part: Path) -> None:
        if len(made) == 3:
            made.append("cut")
            raise LabError("the disk is full")
        made.append(one.name)
        (part / one.name).write_text(one.ldflags)

    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    monkeypatch.setattr(older, "go_build", build)
    monkeypatch.setattr(older, "ready_go", lambda: "go")
    return made


def test_what_was_cut_goes_on_with_what_is_missing_and_nothing_is_built_twice(built: list[str]) -> None:
    with pytest.raises(LabError):
        ensure_older()
    directory = ensure_older()
    assert built == [*NAMES[:3], "cut", *NAMES[3:]]
    assert "gitVersion=v1.35.4 " in (directory / "kubelet").read_text()
    assert ensure_older() == directory and len(built) == 6
    assert {path.name for path in directory.iterdir()} == {*NAMES, ".lock"}


def test_it_is_one_minor_older_and_no_part_of_the_labs_own_binaries() -> None:
    def minor(version: str) -> int:
        return int(version.split(".")[1])

    assert minor(KUBERNETES_VERSION) - minor(OLDER_VERSION) == 1
    assert {build.module for build in older.BUILDS}.isdisjoint(build.module for build in BUILDS)
    required = (ARTIFACTS / older.BUILDS[0].module / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{OLDER_VERSION}\n" in required
