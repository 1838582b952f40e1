"""`muster mirror`: the programs that hosts fetch, and none of the lab's own. How a folder is filled: tests/unit/lab."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_burnin.cli.muster.main import cli
from gpu_burnin.fleet.mirror import fill
from gpu_burnin.fleet.mirror.golang import Build
from gpu_burnin.fleet.mirror.manifests import Manifests
from gpu_burnin.fleet.mirror.programs import DOWNLOADS, MIRROR

ROOT = Path(__file__).resolve().parents[3]


def test_the_command_prints_the_folder_of_the_mirrors_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(builds: Sequence[Build], part: Path) -> None:
        for one in builds:
            (part / one.name).write_text(one.name)

    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    monkeypatch.setattr(fill, "go_build", build)
    monkeypatch.setattr(fill, "ready_go", lambda: "go")
    monkeypatch.setattr(fill.Sources, "fetch", lambda sources, builds: None)
    monkeypatch.setattr(fill, "reachable", lambda url: False)
    monkeypatch.setattr(Manifests, "make", lambda made, part: (part / made.outputs[0]).write_text("[]"))
    done = CliRunner().invoke(cli, ["mirror"])
    assert done.exit_code == 0, done.output
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path / "mirror"
    sums = [line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    collected = [name for made in MIRROR.made for name in made.outputs]
    assert sums == sorted([*(build.name for build in MIRROR.builds), *collected])
    # What the page promises, and what a fleet of the example fetches.
    page = (ROOT / "docs/operations/mirror.md").read_text()
    assert [name for name in sums if f"`{name}`" not in page] == []
    example = (ROOT / "inventory/example/SHA256SUMS.txt").read_text()
    assert {line.split()[1] for line in example.splitlines() if line and not line.startswith("#")} <= {*sums}


def test_what_is_downloaded_is_what_is_built() -> None:
    assert {name for step in DOWNLOADS for name in step.outputs} <= {build.name for build in MIRROR.builds}
    assert all((build.modules / build.module / "go.sum").is_file() for build in MIRROR.builds)


def test_the_wheel_has_all_that_a_build_needs() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gpu_burnin"]
    files = {path for pattern in listed for path in (ROOT / "gpu_burnin").glob(pattern)}
    kinds = (".mod", ".sum", ".go", ".txt")
    needed = [path for path in (ROOT / "gpu_burnin/fleet/mirror").rglob("*") if path.suffix in kinds]
    assert len(needed) > 10 and {*needed} <= files
