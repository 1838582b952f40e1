"""Debian packages made by Python alone: no root, no staging folder, the same bytes for the same input."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

MAINTAINER = "NVIDIA Corporation <cudatools@nvidia.com>"
# No file of a package is older or newer than another: a build is repeatable.
_MTIME_S = 1767225600
_SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


@dataclass(frozen=True)
class File:
    """One file of a package: its content, or where the link leads when `link` is set."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True)
class Package:
    """One binary package. `files` by absolute path; `scripts`: the maintainer's, by name; `fields`: any other."""

    name: str
    version: str
    files: Mapping[str, File] = field(default_factory=dict)
    depends: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    triggers: str = ""
    conffiles: tuple[str, ...] = ()
    architecture: str = "amd64"
    maintainer: str = MAINTAINER
    description: str = "Stand-in for the package of this name"

    @property
    def filename(self) -> str:
        """As dpkg-name gives it: without the epoch."""
        return f"{self.name}_{self.version.split(':')[-1]}_{self.architecture}.deb"

    def control(self, installed_kib: int = 0) -> str:
        """The control file's text."""
        values = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": self.maintainer,
            "Installed-Size": str(installed_kib) if installed_kib else "",
            "Depends": ", ".join(self.depends),
            **self.fields,
            "Section": "non-free/libs",
            "Priority": "optional",
            "Description": self.description,
        }
        return "".join(f"{key}: {value}\n" for key, value in values.items() if value)


def package(
    name: str,
    version: str,
    files: Mapping[str, str | bytes | Path | File],
    depends: Iterable[str] = (),
    **fields: str,
) -> Package:
    """A package of files by absolute path: text, bytes, a file to read (which keeps its mode), or a File.

    Paths below a bin folder are executable. `fields` are further lines of the control file with `_` for `-`
    (`conflicts="a, b"`, `provides=...`, `replaces=...`).
    """
    named = {key.replace("_", "-").title(): value for key, value in fields.items()}
    return Package(name, version, {path: _file(path, value) for path, value in files.items()}, tuple(depends), named)


def with_scripts(base: Package, **scripts: str) -> Package:
    """The package with maintainer scripts, by name: the lines of a shell script."""
    return replace(
        base, scripts={**base.scripts, **{key: f"#!/bin/sh\nset -e\n{text}" for key, text in scripts.items()}}
    )


def write(built: Package, folder: Path) -> Path:
    """Write the package's .deb file into a folder and return its path."""
    path = folder / built.filename
    path.write_bytes(archive(built))
    return path


def archive(built: Package) -> bytes:
    """The bytes of the .deb file: an `ar` archive of a format mark, the control files and the content (deb(5))."""
    unknown = [name for name in built.scripts if name not in _SCRIPTS]
    if unknown:
        raise ValueError(
            f"package {built.name}: {unknown[0]} is no maintainer script: use one of {', '.join(_SCRIPTS)}"
        )
    sums = "".join(
        f"{hashlib.md5(file.content, usedforsecurity=False).hexdigest()}  {path.lstrip('/')}\n"
        for path, file in sorted(built.files.items())
        if not file.link
    )
    control = {
        "control": File(built.control(sum(len(file.content) for file in built.files.values()) // 1024 + 1).encode()),
        "md5sums": File(sums.encode()),
        "triggers": File(built.triggers.encode()),
        "conffiles": File("".join(f"{path}\n" for path in built.conffiles).encode()),
        **{name: File(text.encode(), 0o755) for name, text in built.scripts.items()},
    }
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar({name: file for name, file in control.items() if file.content}),
        "data.tar.gz": _tar(built.files),
    }
    return b"!<arch>\n" + b"".join(_ar_member(name, data) for name, data in members.items())


def _file(path: str, value: str | bytes | Path | File) -> File:
    if isinstance(value, File):
        return value
    if isinstance(value, Path):
        return File(value.read_bytes(), value.stat().st_mode & 0o777)
    content = value.encode() if isinstance(value, str) else value
    return File(content, 0o755 if Path(path).parent.name in ("bin", "sbin") else 0o644)


def _tar(files: Mapping[str, File]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in sorted({str(parent) for path in files for parent in Path(path.lstrip("/")).parents}):
            entry = tarfile.TarInfo("./" if folder == "." else f"./{folder}/")
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, _MTIME_S
            tar.addfile(entry)
        for path, file in sorted(files.items()):
            entry = tarfile.TarInfo(f"./{path.lstrip('/')}")
            entry.mode, entry.mtime, entry.uname, entry.gname = file.mode, _MTIME_S, "root", "root"
            if file.link:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, file.link, 0o777
            else:
                entry.size = len(file.content)
            tar.addfile(entry, None if file.link else io.BytesIO(file.content))
    return gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)


def _ar_member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{_MTIME_S:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)
