"""The real apt with a root of its own, on a repository of the lab's stand-in packages. It installs nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import Output

MACHINE_STATUS = """Package: muster-lab-machine
Status: install ok installed
Version: 1
Architecture: amd64
Provides: dkms (= 3.0.10)
Description: stand-in
"""


class Apt:
    """apt-get with a root of its own, in which the stand-in machine alone is installed."""

    def __init__(self, top: Path, repository: Path, folder: str, key: str) -> None:
        for name in ("etc/apt/preferences.d", "state/lists/partial", "cache/archives/partial", "log"):
            (top / name).mkdir(parents=True)
        (top / "status").write_text(MACHINE_STATUS)
        self.environment = {**os.environ, "APT_CONFIG": str(top / "apt.conf"), "LC_ALL": "C"}
        (top / "apt.conf").touch()
        source = f"deb [signed-by={repository}/keys/{key}.asc] file:{repository}/{folder} /\n"
        (top / "etc/apt/sources.list").write_text(source)
        settings = {
            "Dir::Etc": top / "etc/apt", "Dir::State": top / "state", "Dir::State::status": top / "status",
            "Dir::Cache": top / "cache", "Dir::Log": top / "log", "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64", "Acquire::Languages": "none",
        }  # fmt: skip
        self.options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["apt-get", *self.options, "-q", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)

    def plan(self, *packages: str) -> dict[str, str]:
        """What would be installed, with its version."""
        done = self("--simulate", "--no-install-recommends", "install", *packages)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.split() for line in done.stdout.splitlines() if line.startswith("Inst ")]
        return {words[1]: words[2].strip("(") for words in lines}


class Host:
    """What a module runs: the real apt decides and dpkg's records are changed as it says, the real dpkg-query reads."""

    def __init__(self, apt: Apt, top: Path, index: Path) -> None:
        self._apt, self._top = apt, top
        # What an index has of the file is no field of dpkg's records.
        text = re.sub(r"^(Filename|Size|SHA256): .*\n?", "", index.read_text(), flags=re.MULTILINE)
        self._offered = {self._of(stanza): stanza.strip() for stanza in text.strip().split("\n\n")}
        self._records: dict[str, tuple[str, str]] = {}

    def has(self, name: str, version: str, want: str = "hold") -> None:
        """Have a package installed, held or not."""
        self._records[name] = (version, want)
        stanzas = [
            f"{self._offered[one, full]}\nStatus: {wish} ok installed\n" for one, (full, wish) in self._records.items()
        ]
        (self._top / "status").write_text("\n".join([MACHINE_STATUS, *stanzas]))

    @property
    def packages(self) -> dict[str, tuple[str, str]]:
        """By name the version, and hold or install."""
        return dict(self._records)

    def run(self, command: Sequence[str], timeout_s: float = 30.0) -> Output:
        """Run a command of apt's or dpkg's."""
        program, words = command[0], list(command[1:])
        if program == "dpkg" or "update" in words:
            return Output(0, "", "")  # nothing is half installed, and the lists are there
        if program == "apt-mark":
            for name in words[1:]:
                self.has(name, self._records[name][0], "hold" if words[0] == "hold" else "install")
            return Output(0, "", "")
        installs = program == "apt-get" and "install" in words
        options = [f"--admindir={self._top}"] if program == "dpkg-query" else self._apt.options
        whole = [program, *options, *(["--simulate"] if installs else []), *words]
        done = subprocess.run(whole, capture_output=True, text=True, check=False, env=self._apt.environment)
        if installs and done.returncode == 0:
            self._do(done.stdout)
        return Output(done.returncode, done.stdout, done.stderr)

    def _do(self, plan: str) -> None:
        for line in plan.splitlines():
            if removed := re.match(r"Remv (\S+)", line):
                del self._records[removed[1]]
            if came := re.match(r"Inst (\S+) .*?\((\S+)", line):
                self.has(came[1], came[2], self._records.get(came[1], ("", "install"))[1])

    @staticmethod
    def _of(stanza: str) -> tuple[str, str]:
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        return fields["Package"], fields["Version"]
