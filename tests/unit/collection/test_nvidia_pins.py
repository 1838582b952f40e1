"""Which package the real apt takes where NVIDIA's repository is beside the distribution's: by our preferences alone."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import run_command
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import apt, carry_out
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.decide import Wanted
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import Models

from tests.support.nvidia_repository import FINGERPRINT, KEY

# The driver's packages have one name in both, and NVIDIA's revision of the same version is the higher one.
DEBIAN = {"nvidia-smi": "535.261.03-1~deb12u1", "libcuda1": "535.261.03-1~deb12u1"}
NVIDIA = {
    "nvidia-smi": "535.261.03-1", "libcuda1": "580.105.08-1", "datacenter-gpu-manager-4-core": "1:4.5.2-1",
    "nvidia-container-toolkit-base": "1.20.1-1", "libnvidia-container1": "1.20.1-1",
}  # fmt: skip


class Apt:
    """apt-get and apt-cache of this machine on two repositories and preferences of the test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("lists/partial", "cache/archives/partial", "preferences.d", "empty"):
            (root / folder).mkdir(parents=True)
        (root / "status").touch()
        sources = [self._repository("debian", "Debian", DEBIAN), self._repository("nvidia", apt.ORIGIN, NVIDIA)]
        (root / "sources.list").write_text("".join(f"deb [trusted=yes] file:{source} /\n" for source in sources))
        self.run(["apt-get", "--quiet", "update"])

    def run(self, command: list[str]) -> str:
        places = {
            "State::lists": "lists", "State::status": "status", "Cache": "cache", "Etc::sourcelist": "sources.list",
            "Etc::sourceparts": "empty", "Etc::preferencesparts": "preferences.d", "Etc::preferences": "none",
        }  # fmt: skip
        options = [f"--option=Dir::{key}={self.root / place}" for key, place in places.items()]
        machine = ["--option=APT::Architecture=amd64", "--option=APT::Sandbox::User="]
        done = subprocess.run(
            [command[0], *options, *machine, *command[1:]], capture_output=True, text=True, check=True
        )
        return done.stdout

    def candidate(self, name: str) -> str:
        """What apt would install of a package."""
        lines = self.run(["apt-cache", "policy", name]).splitlines()
        return next(line.split()[1] for line in lines if line.strip().startswith("Candidate:"))

    def _repository(self, name: str, origin: str, packages: Mapping[str, str]) -> Path:
        folder = self.root / name
        folder.mkdir()
        stanza = "Package: {}\nVersion: {}\nArchitecture: amd64\nFilename: ./{}.deb\nSize: 1\nSHA256: {}\n\n"
        (folder / "Packages").write_text("".join(stanza.format(*item, name, "0" * 64) for item in packages.items()))
        (folder / "Release").write_text(f"Origin: {origin}\nDate: Sun, 23 Nov 2025 00:00:00 UTC\n")
        return folder


@pytest.mark.parametrize("source", ["debian", "nvidia"])
def test_a_driver_is_of_its_own_source_and_dcgm_is_nvidias(tmp_path: Path, source: str) -> None:
    host = Apt(tmp_path)
    url = f"file:{tmp_path}/nvidia"
    wanted = Wanted(source, "535.261.03", "debian12", Models({}))
    specs, _ = carry_out.config_files(wanted, apt.Repository(url, KEY, FINGERPRINT))
    pins = next(spec for spec in specs if "/preferences.d/" in spec.dest)
    (tmp_path / "preferences.d/muster-nvidia-driver").write_bytes(pins.content)

    own = DEBIAN if source == "debian" else {"nvidia-smi": "535.261.03-1", "libcuda1": DEBIAN["libcuda1"]}
    assert {name: host.candidate(name) for name in DEBIAN} == own
    beside = sorted(set(NVIDIA) - set(DEBIAN))
    assert {name: host.candidate(name) for name in beside} == {name: NVIDIA[name] for name in beside}
    listed = host.run(["apt-cache", "madison", "nvidia-smi"])
    answer = run_command(["printf", "%s", listed])
    aside = url if source == "debian" else ""
    assert apt.resolve({"nvidia-smi": "535.261.03"}, lambda *_: answer, aside) == {"nvidia-smi": own["nvidia-smi"]}


def test_without_preferences_apt_would_mix_them(tmp_path: Path) -> None:
    assert Apt(tmp_path).candidate("libcuda1") == NVIDIA["libcuda1"]
