"""What version a program is: asked of the program itself, since a file's name and an inventory may both be wrong.

Standard library only: this runs on the hosts.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.binaries import file_sha256

ASK_TIMEOUT_S = 20.0
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_UNITS = Path("/etc/systemd/system")


@dataclass(frozen=True, order=True)
class Version:
    """MAJOR.MINOR.PATCH; what follows it is not looked at."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def release(self) -> str:
        """MAJOR.MINOR."""
        return f"{self.major}.{self.minor}"

    def minors_after(self, other: Version) -> int:
        """How many minors it is newer, negative for older. Another major is further away than any minor."""
        return (self.major - other.major) * 1000 + self.minor - other.minor


def parse(text: str) -> Version | None:
    """The first version in a text such as `Kubernetes v1.36.3` or `etcd Version: 3.6.16`; None without one."""
    found = _VERSION.search(text)
    return Version(*map(int, found.groups())) if found else None


def ask(program: Path, timeout_s: float = ASK_TIMEOUT_S) -> Version | None:
    """What `PROGRAM --version` says; None for what is no program, fails or does not answer."""
    try:
        done = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


@dataclass(frozen=True)
class Build:
    """An installed program."""

    name: str
    version: Version
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def other_builds(
    names: Sequence[str], checksums: Mapping[str, object], directory: Path, units: Path = _UNITS
) -> list[Build]:
    """Each program that has a unit here, works, and is not the one of its checksum.

    What does not work is a spoilt file, which the role that installs it puts right. Costs the digest of one file each.
    """
    found = []
    for name in names:
        path = directory / name
        pinned = str(checksums.get(name, "")).lower()
        if not pinned or not (units / f"{name}.service").exists():
            continue
        sha256 = file_sha256(str(path))
        if sha256 and sha256 != pinned and (version := ask(path)):
            found.append(Build(name, version, sha256))
    return found
