"""What a host could install and where it would lie: apt's package lists, NVIDIA's repository, free space."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.packages import upstream

# Folders that packages and module builds fill. They are often file systems of their own.
FILLED = ("usr", "var", "lib/modules")


@dataclass(frozen=True)
class Offers:
    """`versions`: by package name the versions that apt's lists have; None: there are no lists, so nobody knows.

    `repository_fault`: why NVIDIA's repository does not answer; empty when it does or is not asked.
    `free_bytes`: by folder of FILLED, one for each file system.
    """

    versions: dict[str, tuple[str, ...]] | None
    repository_fault: str
    free_bytes: dict[str, int]

    def has(self, name: str, upstream_version: str = "") -> bool | None:
        """Whether apt's lists have a package, in a version of upstream's where one is given; None: nobody knows."""
        if self.versions is None:
            return None
        known = self.versions.get(name, ())
        return any(upstream(version) == upstream_version for version in known) if upstream_version else bool(known)


def apt_versions(root: Path, names: Sequence[str], run: Run) -> dict[str, tuple[str, ...]] | None:
    """The versions of packages in apt's lists; None where apt has no lists yet. Raises CommandError."""
    lists = root / "var/lib/apt/lists"
    if not names or not any(lists.glob("*_Packages*")):
        return None
    done = run(["apt-cache", "madison", *names])
    if done.code != 0:
        raise CommandError(f"apt-cache madison failed: {done.err.strip()}")
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in done.out.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) == 3 and words[0] in found and words[1] not in found[words[0]]:
            found[words[0]].append(words[1])
    return {name: tuple(versions) for name, versions in found.items()}


def repository_fault(url: str, timeout_s: float) -> str:
    """Why the package repository at `url` gives no signed index, in one sentence; empty when it does."""
    base = url.rstrip("/")
    try:
        with urllib.request.urlopen(f"{base}/InRelease", timeout=timeout_s) as answer:
            signed = b"-----BEGIN PGP SIGNED MESSAGE-----" in answer.read(4096)
    except urllib.error.HTTPError as error:
        return f"the repository {base} answers HTTP {error.code} {error.reason} for InRelease"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        return f"the repository {base} cannot be reached: {reason}"
    return "" if signed else f"the repository {base} has an InRelease that is not signed"


def free_bytes(root: Path) -> dict[str, int]:
    """Free space by folder, each file system once. Raises OSError."""
    found: dict[int, tuple[str, int]] = {}
    for name in FILLED:
        path = root / name
        if path.is_dir():
            space = os.statvfs(path)
            found.setdefault(path.stat().st_dev, (f"/{name}", space.f_bavail * space.f_frsize))
    return dict(found.values())
