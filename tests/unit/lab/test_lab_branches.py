"""Another branch of a part whose packages have it in their names: by the real apt, with the old packages held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import apt, fabric, parts
from ansible_collections.muster.fleet.plugins.modules import nvidia_dcgm

from tests.lab.packages import repository as apt_repository
from tests.lab.packages.build import ensure_repository
from tests.lab.packages.deb import Package, package
from tests.lab.packages.keys import keys
from tests.support.lab_apt import Apt, Host

OLD, NEW = "575.57.08", "580.105.08"
DCGM = "datacenter-gpu-manager-4"
NVIDIA, UBUNTU = "nvidia", "ubuntu"


def _ubuntus(name: str, version: str) -> Package:
    """Ubuntu's packages have their branch in the name, also since 580."""
    fields = dict.fromkeys(("provides", "conflicts", "replaces"), name)
    return package(f"{name}-{version.split('.')[0]}", f"{version}-0ubuntu1", {}, **fields)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, str]]:
    """The folder of each source's repository, as top and the way from it."""
    top = tmp_path_factory.mktemp("ubuntu")
    built = [_ubuntus(name, version) for name in fabric.BRANCHED for version in (OLD, NEW)]
    with keys() as signers:
        apt_repository.write(top / "flat", built, signers["good"])
        (top / "keys").mkdir()
        (top / "keys/good.asc").write_text(signers["good"].public)
    return {NVIDIA: (ensure_repository(), "debian12/x86_64"), UBUNTU: (top, "flat")}


class Node(Host):
    """A host of one source, and what the modules ask of it."""

    def __init__(self, top: Path, source: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
        repository, folder = source
        real = Apt(top, repository, folder, "good")
        assert real("update").returncode == 0
        super().__init__(real, top, repository / folder / "Packages")
        monkeypatch.setattr(apt, "run_apt", self.run)
        monkeypatch.setattr(nvidia_dcgm, "run_command", self.run)
        monkeypatch.setattr(parts.files, "apply", lambda *given, **options: SimpleNamespace(changed_files=()))

    def have_fabric(self, kind: str, source: str, version: str) -> None:
        wanted = fabric.packages(kind, source, version, "", imex=kind == fabric.RACK)
        parts.ensure("nvidia-fabric", wanted, None, self.run, act=True, numbered=fabric.BRANCHED)

    def have_dcgm(self, version: str, cuda: str) -> None:
        monitored = {"version": version, "cuda": cuda, "exporter_version": "4.8.2"}
        key = {"repository_key": "", "repository_fingerprint": "", "repository_url": "http://mirror.example.com"}
        nvidia_dcgm.install(monitored | key, act=True)

    @property
    def names(self) -> list[str]:
        return sorted(self.packages)


@pytest.fixture
def node(
    tmp_path: Path, sources: Mapping[str, tuple[Path, str]], request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Node:  # fmt: skip
    monkeypatch.setattr(apt, "repository_files", lambda repository: ())
    return Node(tmp_path, sources[getattr(request, "param", NVIDIA)], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(OLD, NEW), (NEW, OLD)])
@pytest.mark.parametrize(("kind", "stem"), [(fabric.NVSWITCH, fabric.BRANCHED[0]), (fabric.RACK, fabric.BRANCHED[1])])
@pytest.mark.parametrize(
    ("node", "names"),
    [(NVIDIA, {OLD: "-575", NEW: ""}), (UBUNTU, {OLD: "-575", NEW: "-580"})], indirect=["node"],
)  # fmt: skip
def test_the_fabrics_packages_of_the_other_branch_take_the_place_of_the_held_ones(
    node: Node, names: Mapping[str, str], kind: str, stem: str, before: str, after: str
) -> None:
    source = NVIDIA if names[NEW] == "" else UBUNTU
    node.have_fabric(kind, source, before)
    assert node.packages[f"{stem}{names[before]}"][1] == "hold"
    node.have_fabric(kind, source, after)
    assert node.names == [f"{stem}{names[after]}"]
    version, want = node.packages[node.names[0]]
    assert version.startswith(f"{after}-") and want == "hold"


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [(("4.4.1", "12"), ("4.5.2", "13")), (("4.5.2", "13"), ("4.4.1", "12"))])
def test_dcgm_for_another_cuda_takes_the_place_of_the_held_one(
    node: Node, old: tuple[str, str], new: tuple[str, str]
) -> None:
    node.have_dcgm(*old)
    node.have_dcgm(*new)
    version, cuda = new
    assert node.packages == {
        f"{DCGM}-core": (f"1:{version}-1", "hold"), f"{DCGM}-cuda{cuda}": (f"1:{version}-1", "hold"),
        "datacenter-gpu-manager-exporter": ("4.8.2-1", "hold"),
    }  # fmt: skip


def test_what_is_not_of_the_part_stays_as_it_is(node: Node) -> None:
    node.has("nvidia-imex-575", f"{OLD}-1")
    node.has("libnvidia-nscq-575", f"{OLD}-1")
    node.has("nvidia-fabricmanager-575", f"{OLD}-1")
    others = {name: node.packages[name] for name in ("nvidia-imex-575", "libnvidia-nscq-575")}
    node.have_fabric(fabric.NVSWITCH, NVIDIA, NEW)
    assert node.packages == {**others, "nvidia-fabricmanager": (f"{NEW}-1", "hold")}


def test_a_held_package_that_needs_the_old_one_is_not_taken_away(node: Node) -> None:
    names, old = (f"{DCGM}-core", f"{DCGM}-cuda12", f"{DCGM}-proprietary-cuda12"), "1:4.4.1-1"
    for name in names:
        node.has(name, old)
    with pytest.raises(FleetError, match=r"cannot install .*held"):
        node.have_dcgm("4.5.2", "13")
    assert node.packages == dict.fromkeys(names, (old, "hold"))


def test_packages_that_cannot_be_read_stop_it() -> None:
    def broken(command: list[str], timeout_s: float = 30.0) -> None:
        raise CommandError("dpkg-query gave no answer in 30 s")

    with pytest.raises(FleetError, match="dpkg-query gave no answer"):
        parts.ensure("x", {"nvlsm": ""}, None, broken, act=True)  # type: ignore[arg-type]
