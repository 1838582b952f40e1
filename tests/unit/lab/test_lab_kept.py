"""The cache of binaries: what an older directory has of the same making is taken over, and nothing else of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.fleet.mirror import fill, golang, kept, manifests
from gpu_burnin.fleet.mirror.golang import Build
from gpu_burnin.fleet.mirror.manifests import Manifests
from gpu_burnin.fleet.mirror.programs import ETCD, JOBS_MANIFESTS, KUBERNETES
from tests.lab import binaries, paths
from tests.lab.binaries import BUILDS, IMAGES, PYTHON, PackageImage, ensure_binaries

MANIFESTS = {name for made in JOBS_MANIFESTS for name in made.outputs}
COLLECTED = MANIFESTS | {*PYTHON.outputs}
NAMES = {build.name for build in BUILDS} | {name for made in IMAGES for name in made.outputs} | COLLECTED


class Cache:
    """The cache and what was built since the last look; a build writes the number of its run."""

    def __init__(self, root: Path) -> None:
        self.root, self.runs, self.built = root, 0, list[str]()

    def build(self, builds: Sequence[Build], part: Path) -> None:
        for build in builds:
            self.built.append(build.name)
            (part / build.name).write_text(f"{build.name} of run {self.runs}")

    def collect(self, made: Manifests | PackageImage, part: Path) -> None:
        for name in made.outputs:
            (part / name).write_text(f"{name} of run {self.runs}")

    def ensure(self) -> Path:
        self.runs += 1
        self.built.clear()
        return ensure_binaries()

    def directories(self) -> set[str]:
        return {path.name for path in (self.root / "bin").iterdir()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache that is filled, of artifacts that may be changed."""
    found = Cache(tmp_path / "cache")
    monkeypatch.setenv("MUSTER_CACHE", str(found.root))
    artifacts = tmp_path / "artifacts"
    for modules in (golang.MODULES, paths.ARTIFACTS):
        shutil.copytree(modules, artifacts, dirs_exist_ok=True)
    key = golang.build_key
    for part in (binaries, fill, manifests):
        monkeypatch.setattr(part, "build_key", lambda build: key(replace(build, modules=artifacts)))
    for part in (binaries, fill):
        monkeypatch.setattr(part, "go_build", found.build)
    for kind in (Manifests, PackageImage):
        monkeypatch.setattr(kind, "make", lambda made, part: found.collect(made, part))
    monkeypatch.setattr(fill, "ready_go", lambda: "go")
    monkeypatch.setattr(fill.Sources, "fetch", lambda sources, builds: None)
    monkeypatch.setattr(binaries, "libraries", lambda program: [])
    monkeypatch.setattr(fill, "reachable", lambda url: False)
    found.ensure()
    assert {*found.built} == {build.name for build in BUILDS} | {made.build.name for made in IMAGES}
    return found


def change(artifact: str, cache: Cache) -> None:
    path = cache.root.parent / "artifacts" / artifact
    path.write_text(path.read_text() + "// another line\n")


def inodes(directory: Path) -> dict[str, int]:
    return {name: (directory / name).stat().st_ino for name in NAMES}


@pytest.mark.parametrize(
    ("artifact", "rebuilt", "made"),
    [
        ("deviceplugin/main.go", {"deviceplugin"}, {"deviceplugin.tar"}),
        ("labtool/main.go", {"labtool"}, {"labtool", "labtool.tar"}),
        ("coredns/go.mod", {"coredns"}, {"coredns"}),
        ("etcd/tools.go", {*ETCD}, {*ETCD}),
        ("kubernetes/go.sum", {*KUBERNETES}, {*KUBERNETES}),
        ("kueue/go.mod", {"kueue", "jobset"}, {"kueue", "jobset", *MANIFESTS}),
    ],
)
def test_a_changed_artifact_is_made_again_and_no_other(
    cache: Cache, artifact: str, rebuilt: set[str], made: set[str]
) -> None:
    before = ensure_binaries()
    files, sums = inodes(before), (before / kept.SUMS).read_text()
    change(artifact, cache)
    after = cache.ensure()
    assert after != before and {*cache.built} == rebuilt
    assert {name for name in NAMES if inodes(after)[name] != files[name]} == made
    assert kept.damaged(before) == kept.damaged(after) == []
    assert (before / kept.SUMS).read_text() == sums, "a file that both have was written in place"
    assert (cache.root / "bin/current").resolve() == after


def test_the_checksums_are_those_of_the_mirrors_files_alone(cache: Cache) -> None:
    lines = (ensure_binaries() / kept.SUMS).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == sorted(NAMES)


def test_another_version_flag_or_packing_is_another_key(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = Build("etcd", "etcd", "package", version="1")
    changed = [
        replace(etcd, version="2"), replace(etcd, ldflags="-X a=b"), replace(etcd, nvml=True),
        replace(etcd, package="other"), replace(etcd, module="coredns"),
    ]  # fmt: skip
    assert len({golang.build_key(build) for build in (etcd, *changed)}) == 1 + len(changed)
    image = IMAGES[0]
    assert replace(PYTHON, packages=("python3",)).key() != PYTHON.key() != replace(PYTHON, name="other:1").key()
    assert replace(image, name="other:1").key() != image.key() != replace(image, command=("x",)).key()
    before = image.key()
    monkeypatch.setattr(binaries.container_image, "__file__", __file__)
    assert image.key() != before


def test_a_damaged_file_of_an_older_directory_is_not_taken(cache: Cache) -> None:
    before = ensure_binaries()
    (before / "kubelet").write_text("damaged")
    (before / "etcd").unlink()
    change("labtool/main.go", cache)
    after = cache.ensure()
    assert {*cache.built} == {"kubelet", "etcd", "labtool"}
    assert (after / "kubelet").read_text() == "kubelet of run 2"


@pytest.mark.parametrize("keys", [None, "", "{", "[]", "{}"])
def test_a_directory_without_keys_gives_nothing(cache: Cache, keys: str | None) -> None:
    path = ensure_binaries() / kept.KEYS
    path.unlink() if keys is None else path.write_text(keys)
    change("labtool/main.go", cache)
    cache.ensure()
    assert {*cache.built} == {build.name for build in BUILDS} | {made.build.name for made in IMAGES}


def test_a_directory_without_checksums_gives_nothing(cache: Cache) -> None:
    (ensure_binaries() / kept.SUMS).unlink()
    change("labtool/main.go", cache)
    cache.ensure()
    assert {"kubelet", "etcd", "deviceplugin"} < {*cache.built}


def test_what_another_run_has_not_finished_gives_nothing(cache: Cache) -> None:
    before = ensure_binaries()
    before.rename(before.with_name(f"{before.name}{kept.FILLING}"))
    change("labtool/main.go", cache)
    cache.ensure()
    assert "kubelet" in cache.built


def test_a_file_of_the_directory_itself_that_was_damaged_is_made_again_and_no_other(cache: Cache) -> None:
    final = ensure_binaries()
    (final / "kubelet").write_text("damaged")
    (final / "labtool.tar").unlink()
    assert cache.ensure() == final
    assert {*cache.built} == {"kubelet", "labtool"}
    assert kept.damaged(final) == [] and (final / "kubelet").read_text() == "kubelet of run 2"


def test_a_directory_that_lost_its_checksums_is_made_again(cache: Cache) -> None:
    final = ensure_binaries()
    (final / kept.SUMS).unlink()
    cache.ensure()
    assert {build.name for build in BUILDS} < {*cache.built}
    assert kept.damaged(final) == []


def test_a_file_that_cannot_be_linked_is_copied(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    before = inodes(ensure_binaries())
    change("labtool/main.go", cache)
    after = cache.ensure()
    assert {*cache.built} == {"labtool"}
    assert not {*before.values()} & {*inodes(after).values()}


def test_the_directory_before_stays_and_those_before_it_go(cache: Cache) -> None:
    first = ensure_binaries()
    change("labtool/main.go", cache)
    second = cache.ensure()
    change("labtool/main.go", cache)
    third = cache.ensure()
    assert cache.directories() == {"current", second.name, third.name}
    assert first.name not in cache.directories()
    assert json.loads((third / kept.KEYS).read_text()).keys() == NAMES
