"""The packages of the NVIDIA stack that dpkg knows, and whose they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run

PATTERNS = (
    "nvidia-*", "libnvidia-*", "linux-modules-nvidia-*", "linux-objects-nvidia-*", "linux-signatures-nvidia-*",
    "libcuda1", "cuda-drivers*", "cuda-keyring", "datacenter-gpu-manager*", "nvlsm", "xserver-xorg-video-nvidia*",
    # Kernels, and what follows them.
    "linux-image-*", "linux-headers-*",
)  # fmt: skip
# With the architecture behind the name, where a library may be there for several (dpkg-query(1)).
_FORMAT = "${binary:Package}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\t${Maintainer}\n"
# Debian's names of the architectures that have the stack, by those of the kernel.
ARCHITECTURES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}
# dpkg's states of a package that is not there: never seen, removed, or removed but for its configuration.
_ABSENT = ("not-installed", "config-files")
# Who made a package, by its maintainer. Debian's and Ubuntu's driver and NVIDIA's own have packages of one name.
_SOURCES = (
    ("nvidia", re.compile(r"@nvidia\.com>|\bNVIDIA Corporation\b", re.IGNORECASE)),
    ("ubuntu", re.compile(r"@(lists\.)?ubuntu\.com>|@canonical\.com>", re.IGNORECASE)),
    ("debian", re.compile(r"@([a-z.-]+\.)?debian\.(org|net)>", re.IGNORECASE)),
)


@dataclass(frozen=True)
class Package:
    """One package. `state` is dpkg's, `installed` for a whole one; `source`: nvidia, debian, ubuntu or empty.

    The name has the architecture where that is not the host's own (libnvidia-compute-535:i386), as apt wants it.
    """

    name: str
    version: str
    held: bool
    state: str
    source: str

    @property
    def stem(self) -> str:
        """The name without an architecture."""
        return self.name.partition(":")[0]

    @property
    def upstream(self) -> str:
        """The version without epoch and revision of the packaging, such as 580.105.08."""
        return upstream(self.version)

    def fits(self, version: str) -> bool:
        """Whether it is whole and of that version, given in full or upstream's; empty: of any."""
        return self.state == "installed" and version in ("", self.version, self.upstream)


def lacking(wanted: Mapping[str, str], there: Mapping[str, Package]) -> list[str]:
    """Of {package: version} those that are not there whole and of that version."""
    return [name for name, version in wanted.items() if name not in there or not there[name].fits(version)]


def upstream(version: str) -> str:
    """The upstream part of a Debian version: `1:580.105.08-1ubuntu1` -> `580.105.08`."""
    return version.partition(":")[2].rpartition("-")[0] if ":" in version else version.rpartition("-")[0] or version


def source(maintainer: str) -> str:
    """Whose package it is, by its maintainer; empty for anybody else's."""
    return next((name for name, pattern in _SOURCES if pattern.search(maintainer)), "")


def installed(run: Run, patterns: Iterable[str] = PATTERNS) -> tuple[Package, ...]:
    """What dpkg has of the stack, also half of it. Raises CommandError."""
    # Exit code 1: at least one pattern matches nothing, which is an answer.
    done = run(["dpkg-query", "--show", f"--showformat={_FORMAT}", *patterns])
    if done.code not in (0, 1):
        raise CommandError(f"dpkg-query failed: {done.err.strip()}; run `dpkg --audit` there")
    rows = (line.split("\t") for line in done.out.splitlines())
    native = ARCHITECTURES.get(os.uname().machine, "")
    return tuple(
        Package(name.removesuffix(f":{native}"), version, want == "hold", state, source(maintainer))
        for name, version, want, state, maintainer in rows
        if state not in _ABSENT
    )
