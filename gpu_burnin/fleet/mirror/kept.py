"""Directories of files in the cache, each with a list of checksums and, for each file, the key of what it was made of.

A directory is filled under another name and gets its own when it is whole. What is missing in a new one is taken from
an older one where key and checksum are right.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gpu_burnin.fleet.mirror.golang import sha256

SUMS = "SHA256SUMS"
# Not of the mirror, so it is a hidden file.
KEYS = ".keys.json"
# A directory of the cache before it is whole, and one for what is being made.
FILLING = ".filling"
PART = ".part-"


def _whole(bin_dir: Path) -> list[Path]:
    """The directories of `bin_dir` that were filled to their end, the newest first."""
    found = [path for path in bin_dir.iterdir() if path.is_dir() and not path.is_symlink()]
    found = [path for path in found if not path.name.startswith(PART) and not path.name.endswith(FILLING)]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def take_over(filling: Path, part: Path, keys: Mapping[str, str]) -> int:
    """Have in `filling` each file that an older directory has of the same key and as its sum says; gives their number.

    It is one file in both: none is ever written in place. `part` is for what is not whole yet.
    """
    taken = 0
    for older in _whole(filling.parent):
        of_older, sums = _read_keys(older), _read_sums(older)
        for name in keys:
            if (filling / name).exists() or name not in sums or of_older.get(name) != keys[name]:
                continue
            if not (older / name).exists() or sha256(older / name) != sums[name]:
                continue
            link_or_copy(older / name, part / name)
            keep(part / name, filling / name)
            taken += 1
    return taken


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or have it twice. Raises OSError."""
    try:
        target.hardlink_to(source)
    except OSError:  # not every file system has hard links
        shutil.copy2(source, target)


def remove_old(final: Path) -> None:
    """Keep what is just made and what was current before: two checkouts may take turns."""
    current = final.parent / "current"
    kept = {final.name, str(current.readlink())} if current.is_symlink() else {final.name}
    for path in _whole(final.parent):
        if path.name not in kept:
            shutil.rmtree(path)


def clean(filling: Path) -> None:
    """Keep what a run that was cut has finished, and nothing else that it, or one of another version, has left."""
    filling.mkdir(parents=True, exist_ok=True)
    for name in (SUMS, KEYS):
        (filling / name).unlink(missing_ok=True)
    for path in filling.parent.iterdir():
        if path != filling and (path.name.startswith(PART) or path.name.endswith(FILLING)):
            shutil.rmtree(path)


def keep(made: Path, kept: Path) -> None:
    """Give a whole file, which is on the disk then, the name `kept`."""
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.rename(kept)


def damaged(directory: Path) -> list[str]:
    """The names of files that are not as SHA256SUMS says; without it all of them, and itself."""
    sums = _read_sums(directory)
    if not sums:
        return sorted({SUMS, *(path.name for path in directory.iterdir())})
    files = {path.name for path in directory.iterdir() if not path.name.startswith(".") and path.name != SUMS}
    return sorted(
        name
        for name in files | sums.keys()
        if name not in sums or not (directory / name).exists() or sha256(directory / name) != sums[name]
    )


def _read_sums(directory: Path) -> dict[str, str]:
    """The checksum of each file; none where the list is missing."""
    if not (directory / SUMS).exists():
        return {}
    lines = [line.split("  ", 1) for line in (directory / SUMS).read_text().splitlines()]
    return {words[1]: words[0] for words in lines if len(words) == 2}


def _read_keys(directory: Path) -> dict[str, str]:
    """The key of each file; none where they are missing or no JSON."""
    try:
        found = json.loads((directory / KEYS).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_lists(directory: Path, keys: Mapping[str, str]) -> None:
    """Write the checksum and the key of each file into a directory that is whole."""
    (directory / KEYS).write_text(json.dumps(dict(keys), indent=1))
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    (directory / SUMS).write_text("".join(f"{sha256(directory / name)}  {name}\n" for name in names))


def point_current(final: Path) -> None:
    """Have the link `current` beside the directory point to it."""
    link = final.parent / "current"
    if not link.is_symlink() or link.readlink() != Path(final.name):
        fresh = link.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(final.name)
        fresh.rename(link)
