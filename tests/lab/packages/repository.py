"""A flat APT repository, as NVIDIA's is: the packages, their index and the signed Release file in one folder."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from . import deb
from .deb import Package
from .keys import Key, sign

INDEXES = ("Packages", "Packages.gz")


def write(folder: Path, packages: Iterable[Package], key: Key, kind: str = "good") -> None:
    """Write packages, Packages, Packages.gz, Release, InRelease and Release.gpg into a folder (created if missing)."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_index(folder, "".join(_stanza(package, deb.write(package, folder)) for package in packages))
    _sign(folder, key, kind)


def write_signed_otherwise(folder: Path, of: Path, key: Key, kind: str) -> None:
    """Write the repository of another folder once more, signed by another key; its packages are links."""
    folder.mkdir(parents=True)
    for path in sorted(of.glob("*.deb")):
        (folder / path.name).symlink_to(os.path.relpath(path, folder))
    _write_index(folder, (of / "Packages").read_text())
    _sign(folder, key, kind)


def _write_index(folder: Path, text: str) -> None:
    (folder / "Packages").write_text(text)
    (folder / "Packages.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _sign(folder: Path, key: Key, kind: str) -> None:
    release = folder / "Release"
    release.write_text(_release({name: (folder / name).read_bytes() for name in INDEXES}, datetime.now(UTC)))
    sign(key, release, kind)


def _stanza(package: Package, path: Path) -> str:
    data = path.read_bytes()
    facts = {
        "Filename": f"./{path.name}",
        "Size": str(len(data)),
        "SHA256": hashlib.sha256(data).hexdigest(),
    }
    return package.control(1) + "".join(f"{name}: {value}\n" for name, value in facts.items()) + "\n"


def _release(indexes: dict[str, bytes], now: datetime) -> str:
    """Origin, label and architecture as in NVIDIA's own Release file, which pins (apt_preferences) go by."""
    lines = [
        "Origin: NVIDIA",
        "Label: NVIDIA CUDA",
        "Architecture: x86_64",
        f"Date: {now:%a, %d %b %Y %H:%M:%S} UTC",
        "SHA256:",
        *(f" {hashlib.sha256(data).hexdigest()} {len(data):>16} {name}" for name, data in indexes.items()),
    ]
    return "".join(f"{line}\n" for line in lines)
