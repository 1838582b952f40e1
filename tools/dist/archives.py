"""Archives whose bytes follow from names, modes and contents alone."""

from __future__ import annotations

import gzip
import io
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

# Level 1 is three times as fast as 6, and libraries of CUDA get no smaller by more.
GZIP_LEVEL = 1


def write_tree(tree: Path, out: IO[bytes], epoch_s: int) -> None:
    """Write a folder as a tar: sorted, owned by root, of one time. Files of one inode are stored once."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        seen: dict[tuple[int, int], str] = {}
        for path in _sorted(tree):
            state = path.lstat()
            info = tarfile.TarInfo(str(path.relative_to(tree)))
            info.mtime, info.mode = epoch_s, stat.S_IMODE(state.st_mode)
            if path.is_symlink():
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
            elif path.is_dir():
                info.type = tarfile.DIRTYPE
            elif (first := seen.setdefault((state.st_dev, state.st_ino), info.name)) != info.name:
                info.type, info.linkname = tarfile.LNKTYPE, first
            else:
                info.size = state.st_size
                with path.open("rb") as file:
                    tar.addfile(info, file)
                continue
            tar.addfile(info)


def _sorted(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _sorted(path)


def compress(source: Path, target: Path) -> None:
    """gzip without name and time."""
    with (
        source.open("rb") as plain,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)


def repack(archive: Path, epoch_s: int, replaced: Mapping[str, bytes] | None = None) -> None:
    """Write a .tar.gz anew: members sorted, of root, of one time; `replaced` have other contents. Raises OSError."""
    new = replaced or {}
    plain = archive.with_suffix(".repacked")
    with tarfile.open(archive) as old, tarfile.open(plain, "w", format=tarfile.PAX_FORMAT) as tar:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            info = tarfile.TarInfo(member.name)
            info.type, info.linkname, info.mtime = member.type, member.linkname, epoch_s
            info.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            if not member.isfile():
                tar.addfile(info)
                continue
            file = old.extractfile(member)
            assert file is not None
            content = new.get(member.name, None)
            content = file.read() if content is None else content
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    compress(plain, archive)
    plain.unlink()
