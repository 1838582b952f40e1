"""A folder, a script or a function as one archive: the same bytes for the same files."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.system.quantities import count, size

# What a ConfigMap holds at most (Kubernetes' own limit), without what else is in this one.
MOST_BYTES = (1 << 20) - (96 << 10)
# So much is not packed in the hope that it gets small.
_MOST_BEFORE = 256 << 20
# Nobody misses them in the pod, and they can be large.
LEFT_OUT_FOLDERS = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints"}
    | {"node_modules", ".tox", ".nox", ".eggs"}
)
_LEFT_OUT_ENDINGS = (".pyc", ".pyo", ".swp")
_VENV_MARK = "pyvenv.cfg"


@dataclass(frozen=True)
class Packed:
    """An archive, what is started of it, and how many files it has."""

    archive: bytes
    entry: str
    files: int = 1


def pack_text(name: str, text: str) -> Packed:
    """One script that is there as text. Raises LaunchError."""
    out = _Limited()
    with _archive(out) as tar:
        _add(tar, name, text.encode(), 0o644)
    return Packed(out.whole(f"the source of {name}", len(text)), name)


def pack(path: Path, entry: str | None = None) -> Packed:
    """A script, or a folder with what is started of it: `entry`, else __main__.py or main.py. Raises LaunchError."""
    if path.is_dir():
        return _pack_folder(path, entry)
    if entry is not None:
        raise LaunchError(f"{path} is a file; an entry is given for a folder alone")
    if not path.is_file():
        raise LaunchError(f"there is no file or folder {path}; check the path")
    try:
        return pack_text(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(
            f"{path} cannot be read as a Python script ({error}); check the path and its rights"
        ) from error


def _pack_folder(folder: Path, entry: str | None) -> Packed:
    files = sorted(_files(folder))
    names = {name for name, _ in files}
    if entry is None:
        entry = next((one for one in ("__main__.py", "main.py") if one in names), None)
        if entry is None:
            raise LaunchError(f"{folder} has neither __main__.py nor main.py; name what is started: --entry FILE")
    elif entry not in names:
        raise LaunchError(f"{folder} has no file {entry} to start; give --entry a path inside of the folder")
    out = _Limited()
    total = sum(path.lstat().st_size for _, path in files)
    if total > _MOST_BEFORE:
        raise _too_large(f"{folder} ({count(len(files), 'file')})", total)
    with _archive(out) as tar:
        for name, path in files:
            _add_path(tar, folder, name, path)
    return Packed(out.whole(f"{folder} ({count(len(files), 'file')})", total), entry, len(files))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files and links of a folder by their names in it. Raises LaunchError."""

    def refuse(error: OSError) -> None:
        raise LaunchError(f"{error.filename} cannot be read ({error.strerror}); change its rights, or move it away")

    for place, folders, names in os.walk(folder, onerror=refuse):
        here = Path(place)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in LEFT_OUT_FOLDERS and name not in links and not (here / name / _VENV_MARK).exists()
        ]
        for name in [*names, *links]:
            if not name.endswith(_LEFT_OUT_ENDINGS) and name not in LEFT_OUT_FOLDERS:
                path = here / name
                yield path.relative_to(folder).as_posix(), path


def _add_path(tar: tarfile.TarFile, folder: Path, name: str, path: Path) -> None:
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            _add_link(tar, folder, name, path)
        elif stat.S_ISREG(found.st_mode):
            info = _info(name)
            info.size, info.mode = found.st_size, 0o755 if found.st_mode & stat.S_IXUSR else 0o644
            with path.open("rb") as opened:
                tar.addfile(info, opened)
        else:
            raise LaunchError(f"{path} is neither file, folder nor link, and cannot be sent; move it away")
    except OSError as error:
        raise LaunchError(f"{path} cannot be read ({error.strerror}); change its rights, or move it away") from error


def _add_link(tar: tarfile.TarFile, folder: Path, name: str, path: Path) -> None:
    target = str(path.readlink())
    inside = Path(os.path.normpath(path.parent / target)).is_relative_to(folder)
    if Path(target).is_absolute() or not inside:
        raise LaunchError(f"the link {path} leads out of the folder (to {target}); put the file itself there")
    info = _info(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = _info(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def _info(name: str) -> tarfile.TarInfo:
    # Times and owners are 0: the same files make the same archive.
    return tarfile.TarInfo(name)


@contextlib.contextmanager
def _archive(out: _Limited) -> Iterator[tarfile.TarFile]:
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        yield tar


class _Limited(io.RawIOBase):
    """Keeps what a ConfigMap can hold, and drops the rest: the folder of a mistaken path may have any size."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether more has come than can be sent."""
        return self._bytes > MOST_BYTES

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        block = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._bytes += block.nbytes
        if not self.full:
            self._kept += block
        return block.nbytes

    def whole(self, what: str, bytes_before: int) -> bytes:
        """All that came. Raises LaunchError where it is too much."""
        if self.full:
            raise _too_large(what, bytes_before)
        return bytes(self._kept)


def _too_large(what: str, bytes_before: int) -> LaunchError:
    return LaunchError(
        f"{what} holds {size(bytes_before)}, packed more than the {size(MOST_BYTES)} that a ConfigMap takes; put its "
        ".tar.gz where pods can fetch it, and name it: --source URL --sha256 HASH"
    )
