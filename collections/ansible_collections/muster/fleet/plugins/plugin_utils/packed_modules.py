"""What Ansible packed for one run serves the next, as long as no source of it has changed.

Ansible parses a module and all that it imports, and packs them, on the module's first use in a run: 0.2 to 0.4 s of
processor time, while its workers wait for each other. It keeps the archives in its own temporary folder until the run
ends (docs/decisions/42-modules-packed-once.md). Here they are kept for longer: under a name that is made of every
source, in a folder that nobody else may enter, each with its digest.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ansible.release import __version__ as ansible_version

# How Ansible names an archive: module, compression, debuggers. Of other collections nobody here knows the sources.
PACKED = re.compile(r"(ansible_collections\.muster\.fleet\.plugins\.modules|ansible\.modules)\.\w+-\w+-none")
# In Ansible's temporary folder.
ANSIBLE_FOLDER = "ansiballz_cache"
# Each state of the sources has a folder: some checkouts at work, and the state before.
KEPT_STATES = 8
# Of ansible-core, below its package.
_CORE_SOURCES = (
    "module_utils/**/*.py",
    "modules/*.py",
    "executor/module_common.py",
    "_internal/_ansiballz/*.py",
    "config/ansible_builtin_runtime.yml",
)
_OWN_SOURCES = ("plugins/module_utils/**/*.py", "plugins/modules/*.py", "meta/runtime.yml")


@dataclass(frozen=True)
class Sources:
    """What archives are made of: this collection's folder, and ansible-core's package."""

    collection: Path
    core: Path

    def state(self) -> str:
        """A digest over all of it: content of the collection, size and time of what was installed with ansible-core.

        Raises OSError.
        """
        digest = hashlib.sha256(f"{ansible_version}\n{sys.version}\n{self.core}\n".encode())
        for path in _files(self.collection, _OWN_SOURCES):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(self.collection)} {len(content)}\n".encode() + content)
        for path in _files(self.core, _CORE_SOURCES):
            status = path.stat()
            digest.update(f"{path.relative_to(self.core)} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def complete(self, module_utils: Iterable[str]) -> bool:
        """Whether nothing of the user's may be packed in place of ansible-core's: Ansible looks into these folders.

        Those beside the playbook and in the roles that its plays name are among them once it is read.
        """
        return not any(Path(path).is_dir() for path in module_utils if Path(path) != self.core / "module_utils")


def take_out(kept: Path, state: str, temporary: Path) -> None:
    """Give this run the archives of its sources. What is damaged goes; in a folder that others may enter is nothing.

    Raises OSError.
    """
    folder = kept / state
    if not (_only_ours(kept) and _only_ours(folder)):
        return
    os.utime(folder)
    into = temporary / ANSIBLE_FOLDER
    into.mkdir(exist_ok=True)
    for path in sorted(folder.glob("*-none")):
        archive = _checked(path.read_bytes())
        if archive is None:
            path.unlink()
        else:
            (into / path.name).write_bytes(archive)


def put_away(kept: Path, state: str, temporary: Path) -> None:
    """Keep what this run packed, and no more than some states. Raises OSError."""
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = kept / state
    if not _only_ours(kept):
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in sorted((temporary / ANSIBLE_FOLDER).glob("*-none")):
        if PACKED.fullmatch(path.name) and not (folder / path.name).exists():
            _write(folder / path.name, path.read_bytes())
    by_use = sorted(kept.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for old in by_use[KEPT_STATES:]:
        shutil.rmtree(old, ignore_errors=True)


def _files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _only_ours(folder: Path) -> bool:
    """A folder, not a link to one, of this user, that nobody else may enter: Ansible unpickles what is in it."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _checked(content: bytes) -> bytes | None:
    """The archive, if it is whole: its digest stands before it."""
    digest, _, archive = content.partition(b"\n")
    return archive if digest == _digest(archive) else None


def _digest(archive: bytes) -> bytes:
    return hashlib.sha256(archive).hexdigest().encode()


def _write(path: Path, archive: bytes) -> None:
    """Under its name at once, whole. No fsync: what a lost machine left half-written has another digest."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_digest(archive) + b"\n" + archive)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
