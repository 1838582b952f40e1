"""Kubernetes of the minor before: built when it is asked for, and each program once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_burnin.fleet.mirror.golang import Build
from gpu_burnin.fleet.mirror.programs import KUBERNETES_VERSION
from tests.lab import older
from tests.lab.binaries import BUILDS
from tests.lab.error import LabError
from tests.lab.older import NAMES, OLDER_VERSION, ensure_older, older_dir
from tests.lab.paths import ARTIFACTS


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was built, in an empty cache."""
    made: list[str] = []

    def build(builds: Sequence[Build], part: Path) -> None:
        for one in builds:
            (part / one.name).write_text(one.ldflags)
            made.append(one.name)
            if made == [*NAMES[:3]]:
                raise LabError("the disk is full")

    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    monkeypatch.setattr(older, "go_build", build)
    monkeypatch.setattr(older, "ready_go", lambda: "go")
    return made


def test_what_is_missing_is_built_by_one_call_and_nothing_of_a_cut_one_is_used(built: list[str]) -> None:
    with pytest.raises(LabError):
        ensure_older()
    assert {path.name for path in older_dir().iterdir()} == {".lock"}
    built.clear()
    built.append("after the cut")
    directory = ensure_older()
    assert built[1:] == [*NAMES]
    assert "gitVersion=v1.35.4 " in (directory / "kubelet").read_text()
    assert ensure_older() == directory and len(built) == 6
    (directory / "kubelet").unlink()
    ensure_older()
    assert built[6:] == ["kubelet"]
    assert {path.name for path in directory.iterdir()} == {*NAMES, ".lock"}


def test_it_is_one_minor_older_and_no_part_of_the_labs_own_binaries() -> None:
    def minor(version: str) -> int:
        return int(version.split(".")[1])

    assert minor(KUBERNETES_VERSION) - minor(OLDER_VERSION) == 1
    assert {build.module for build in older.BUILDS}.isdisjoint(build.module for build in BUILDS)
    required = (ARTIFACTS / older.BUILDS[0].module / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{OLDER_VERSION}\n" in required
