"""Whether somebody has what would be installed: asked of the sources anew, and nothing of the host is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import Output, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import offered

from tests.support.nvidia_repository import FINGERPRINT, REPOSITORY

DEBIAN = "http://deb.debian.org/debian bookworm/non-free"
NVIDIA = f"{REPOSITORY.url}/ "
DONE = Output(0, "", "")


@dataclass
class Sources:
    """What apt says: {package: ((version, source), ...)}, and what `update` ends with."""

    has: dict[str, tuple[tuple[str, str], ...]]
    update: Output = DONE
    commands: list[list[str]] = field(default_factory=list)
    configuration: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def with_environment(self, environment: Mapping[str, str]) -> Run:
        conf = Path(environment["APT_CONFIG"])
        self.configuration = conf.read_text()
        self.files = {path.name: path.read_text() for path in conf.parent.joinpath("sources.list.d").iterdir()}
        return self.run

    def run(self, command: Sequence[str], timeout_s: float = 30.0) -> Output:
        self.commands.append(list(command))
        if command[0] == "apt-get":
            return self.update
        rows = self.has.get(command[-1], ())
        return Output(0, "".join(f" {command[-1]} | {version} | {source}\n" for version, source in rows), "")

    def lacks(self, folder: Path, *, of_nvidia: bool = True, **wanted: dict[str, str]) -> str:
        return offered.lacks(
            wanted.get("driver", {}),
            wanted.get("beside", {}),
            REPOSITORY,
            of_nvidia=of_nvidia,
            run_with=self.with_environment,
            sources_of_host=folder,
        )


def test_a_version_that_nobody_has_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    sources = Sources({"nvidia-driver-cuda": (("580.105.08-1", NVIDIA), ("580.95.05-1", NVIDIA))})
    assert sources.lacks(tmp_path, driver={"nvidia-driver-cuda": "580.105.08"}) == ""
    assert sources.lacks(tmp_path, driver={"nvidia-driver-cuda": "580.99.01"}) == (
        "no package source of the host has nvidia-driver-cuda 580.99.01; they have 580.105.08-1, 580.95.05-1"
    )
    assert "has linux-headers-6.1.0-50-amd64" in sources.lacks(tmp_path, driver={"linux-headers-6.1.0-50-amd64": ""})
    what = "datacenter-gpu-manager-4-core"
    assert f"no package source of the host has {what}" in sources.lacks(tmp_path, beside={what: "4.5.9"})


def test_a_driver_of_debians_is_not_had_from_nvidia_and_dcgm_is(tmp_path: Path) -> None:
    sources = Sources({"nvidia-smi": (("580.105.08-1", NVIDIA),), "dcgm": (("1:4.5.2-1", NVIDIA),)})
    wanted = {"driver": {"nvidia-smi": "580.105.08"}, "beside": {"dcgm": "4.5.2"}}
    assert sources.lacks(tmp_path, of_nvidia=True, **wanted) == ""
    assert sources.lacks(tmp_path, of_nvidia=False, **wanted).startswith("no package source of the host has nvidia-smi")
    sources.has["nvidia-smi"] = (("580.105.08-1~deb12u1", DEBIAN),)
    assert sources.lacks(tmp_path, of_nvidia=False, **wanted) == ""


def test_the_sources_of_the_host_and_the_inventorys_repository_in_a_folder_that_goes(tmp_path: Path) -> None:
    """What the host has of an older inventory does not count, and no command names a path of the host's."""
    (tmp_path / "debian.sources").write_text("Types: deb\n")
    (tmp_path / "muster-nvidia.sources").write_text("URIs: https://old.example.com/\n")
    sources = Sources({"a": (("1-1", NVIDIA),)})
    assert sources.lacks(tmp_path, driver={"a": "1"}) == ""
    assert sources.files["debian.sources"] == "Types: deb\n" and f"URIs: {REPOSITORY.url}/" in sources.files.pop(
        "muster-nvidia.sources"
    )
    (alone, whole) = (command for command in sources.commands if command[0] == "apt-get")
    folder = Path(sources.configuration.partition('sourceparts "')[2].partition('"')[0]).parent
    assert f"--option=Dir::Etc::sourcelist={folder}/sources.list.d/muster-nvidia.sources" in alone
    assert whole[-1] == "update" and f'Dir::State::lists "{folder}/lists";' in sources.configuration
    assert not folder.exists()


def test_a_repository_that_is_not_read_or_signed_by_another_key_is_told(tmp_path: Path) -> None:
    said = "W: GPG error: m: NO_PUBKEY 93CAF20793AACEB0\nE: The repository is not signed."
    sources = Sources({}, update=Output(100, "", said))
    assert f"signed by the key 93CAF20793AACEB0 and not by {FINGERPRINT}" in sources.lacks(tmp_path, driver={"a": "1"})
    wrong = replace(REPOSITORY, fingerprint="A" * 40)
    found = offered.lacks({"a": "1"}, {}, wrong, of_nvidia=True, run_with=sources.with_environment)
    assert f"and not {'A' * 40} of fleet_nvidia_repository_fingerprint" in found
