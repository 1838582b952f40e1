"""`muster mirror`: the programs that hosts fetch, and none of the lab's own. How a folder is filled: tests/unit/lab."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpu_burnin.cli.muster.main import cli
from gpu_burnin.cli.muster.mirror import CUDAS, MACHINES, mirror
from gpu_burnin.fleet.mirror import fill, golang, wheelhouse
from gpu_burnin.fleet.mirror.golang import Build
from gpu_burnin.fleet.mirror.manifests import Manifests
from gpu_burnin.fleet.mirror.programs import DOWNLOADS, MIRROR

ROOT = Path(__file__).resolve().parents[3]


def fake_builds(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and everything is made at once."""

    def build(builds: Sequence[Build], part: Path) -> None:
        for one in builds:
            (part / one.name).write_text(one.name)

    monkeypatch.setenv("MUSTER_CACHE", str(cache))
    monkeypatch.setattr(fill, "go_build", build)
    monkeypatch.setattr(fill, "ready_go", lambda: "go")
    monkeypatch.setattr(fill.Sources, "fetch", lambda sources, builds: None)
    monkeypatch.setattr(fill, "reachable", lambda url: False)
    monkeypatch.setattr(Manifests, "make", lambda made, part: (part / made.outputs[0]).write_text("[]"))


def test_the_command_prints_the_folder_of_the_mirrors_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_builds(tmp_path, monkeypatch)
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


# In the place of tools/wheelhouse.py: an archive is what it is asked for.
PROGRAM = """
import hashlib, json, pathlib, sys
words = sys.argv[1:]
output = pathlib.Path(words[words.index("--output") + 1])
if "12" in words:
    sys.exit("wheelhouse: no wheel for CUDA 12")
content = " ".join(words).encode()
path = output / f"gpu-burnin-{hashlib.md5(content).hexdigest()[:16]}.tar"
output.mkdir(exist_ok=True)
changed = not path.exists()
if changed:
    path.write_bytes(content)
told = output / "sum"
sha256 = told.read_text() if told.exists() else hashlib.sha256(content).hexdigest()
print(json.dumps({"changed": changed, "path": str(path), "build": "x", "sha256": sha256}))
"""


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The controller's folder of archives."""
    fake_builds(tmp_path / "cache", monkeypatch)
    (tmp_path / "checkout/tools").mkdir(parents=True)
    (tmp_path / "checkout/tools/wheelhouse.py").write_text(PROGRAM)
    monkeypatch.setattr(wheelhouse, "SOURCES", tmp_path / "checkout")
    return tmp_path / "wheelhouse"


@pytest.mark.slow
def test_the_controllers_archives_are_files_of_the_mirror(controller: Path) -> None:
    words = ["mirror", "--wheelhouse", str(controller), "--cuda", "13", "--cuda", "none", "--cuda", "13"]
    done = CliRunner().invoke(cli, [*words, "--python", "3.12", "--machine", "aarch64"])
    assert done.exit_code == 0, done.output
    folder = Path(done.stdout.strip())
    built = sorted(controller.iterdir())
    kinds = f"--output {controller} {{}} --python 3.12 --machine aarch64"
    admitter = f"--requirements {wheelhouse.SOURCES}/requirements/admitter.txt"
    asked = {kinds.format(what) for what in ("--cuda 13", "--cuda none", admitter)}
    assert {path.read_text() for path in built} == asked
    assert [(folder / path.name).stat().st_ino for path in built] == [path.stat().st_ino for path in built]
    sums = (folder / "SHA256SUMS").read_text()
    assert [path.name for path in built if f"{golang.sha256(path)}  {path.name}\n" not in sums] == []
    # Again: nothing is made.
    again = CliRunner().invoke(cli, [*words, "--python", "3.12", "--machine", "aarch64"])
    assert again.stdout == done.stdout and "take " not in again.stderr


@pytest.mark.slow
def test_an_archive_that_was_built_anew_takes_the_place_of_the_one_before(controller: Path) -> None:
    first = CliRunner().invoke(cli, ["mirror", "--wheelhouse", str(controller)])
    archive = min(controller.iterdir())
    for path in controller.iterdir():
        # Not in place: the mirror has the same file.
        path.unlink()
        path.write_text("other")
    (controller / "sum").write_text(golang.sha256(archive))
    second = CliRunner().invoke(cli, ["mirror", "--wheelhouse", str(controller)])
    assert second.exit_code == 0, second.output
    assert second.stdout != first.stdout
    assert (Path(second.stdout.strip()) / archive.name).read_text() == "other"


def test_a_damaged_archive_is_named(controller: Path) -> None:
    controller.mkdir()
    (controller / "sum").write_text("0" * 64)
    done = CliRunner().invoke(cli, ["mirror", "--wheelhouse", str(controller)])
    assert re.fullmatch(rf"{controller}/gpu-burnin-\w+\.tar is damaged: remove it, and run again", str(done.exception))


def test_why_an_archive_cannot_be_built_is_said(controller: Path) -> None:
    done = CliRunner().invoke(cli, ["mirror", "--wheelhouse", str(controller), "--cuda", "12"])
    assert str(done.exception).endswith("exit code 1: wheelhouse: no wheel for CUDA 12")
    (wheelhouse.SOURCES / "tools/wheelhouse.py").unlink()
    done = CliRunner().invoke(cli, ["mirror", "--wheelhouse", str(controller)])
    assert "tools/wheelhouse.py is not there, which builds the archives: run muster" in str(done.exception)


@pytest.mark.parametrize("option", [["--cuda", "13"], ["--python", "3.12"], ["--machine", "x86_64"]])
def test_what_archives_are_for_goes_with_their_folder(option: list[str]) -> None:
    done = CliRunner().invoke(cli, ["mirror", *option])
    assert done.exit_code == 2 and f"{option[0]} goes with --wheelhouse" in done.stderr


def test_without_options_the_archives_are_those_of_the_roles_defaults() -> None:
    """So they have the names that hosts ask for."""
    options = {one.name: one for one in mirror.params}
    for role in ("gpu_burnin", "admitter"):
        defaults = yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text())
        assert list(options["pythons"].default) == defaults[f"{role}_python_versions"]
        assert list(options["machines"].default) == defaults[f"{role}_machines"]
        specs = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
        assert list(MACHINES) == specs["options"][f"{role}_machines"]["choices"]
        if role == "gpu_burnin":
            assert list(options["cudas"].default) == [defaults["gpu_burnin_cuda"]]
            assert list(CUDAS) == specs["options"]["gpu_burnin_cuda"]["choices"]
    assert (wheelhouse.SOURCES / "tools/wheelhouse.py").is_file()
