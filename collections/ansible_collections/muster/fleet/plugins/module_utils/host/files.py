"""Put a set of files on a host: compare, stage, validate all, then place each by rename.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

import difflib
import grp
import os
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

MODE = re.compile(r"^0?[0-7]{3,4}$")
VALIDATE_TIMEOUT_S = 60.0
DIFF_LIMIT_BYTES = 256 * 1024
# With the leading dot, readers of drop-in folders pass over it.
_PARTIAL = ".muster-tmp"


@dataclass(frozen=True)
class FileSpec:
    """One file as it should be. `owner` and `group` None: keep what is there, else the caller's own."""

    dest: str
    content: bytes
    mode: int
    owner: str | None = None
    group: str | None = None
    sensitive: bool = False
    validate: str | None = None


@dataclass(frozen=True)
class DirectorySpec:
    """One directory as it should be; missing parents are made with mode 0755."""

    path: str
    mode: int = 0o755
    owner: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Diff:
    """What changed on one path: text before and after, or one prepared line."""

    path: str
    before: str = ""
    after: str = ""
    note: str = ""

    def as_ansible(self) -> dict[str, str]:
        """The form in which Ansible's callbacks print it."""
        if self.note:
            return {"prepared": f"{self.path}: {self.note}\n"}
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"before: {self.path}",
            f"after: {self.path}",
        )
        return {"prepared": "".join(line if line.endswith("\n") else line + "\n" for line in lines)}


@dataclass(frozen=True)
class Outcome:
    """The paths that changed (or would, in check mode), in order, and the differences."""

    changed_files: tuple[str, ...]
    diffs: tuple[Diff, ...]


@dataclass(frozen=True)
class _Ids:
    uid: int | None
    gid: int | None
    unknown: bool = False


def parse_mode(text: str, path: str) -> int:
    """An octal mode such as "0644" as a number. Raises FleetError for anything else."""
    if not MODE.match(text):
        raise FleetError(f'{path}: mode {text!r} is not octal; write it as a quoted string like "0644"')
    return int(text, 8)


def _lookup(spec: FileSpec | DirectorySpec, path: str, check: bool) -> _Ids:
    uid: int | None = None
    gid: int | None = None
    unknown = False
    if spec.owner is not None:
        try:
            uid = int(spec.owner) if spec.owner.isdigit() else pwd.getpwnam(spec.owner).pw_uid
        except KeyError as error:
            # In a first check run the user is not made yet: that is a change to come, not an error.
            if not check:
                raise FleetError(f"{path}: user {spec.owner!r} does not exist; create it first") from error
            unknown = True
    if spec.group is not None:
        try:
            gid = int(spec.group) if spec.group.isdigit() else grp.getgrnam(spec.group).gr_gid
        except KeyError as error:
            if not check:
                raise FleetError(f"{path}: group {spec.group!r} does not exist; create it first") from error
            unknown = True
    return _Ids(uid, gid, unknown)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _attribute_notes(info: os.stat_result, mode: int, ids: _Ids) -> list[str]:
    notes = []
    if stat.S_IMODE(info.st_mode) != mode:
        notes.append(f"mode {stat.S_IMODE(info.st_mode):04o} -> {mode:04o}")
    if ids.uid is not None and info.st_uid != ids.uid:
        notes.append(f"owner {info.st_uid} -> {ids.uid}")
    if ids.gid is not None and info.st_gid != ids.gid:
        notes.append(f"group {info.st_gid} -> {ids.gid}")
    if ids.unknown:
        notes.append("owner or group to be created")
    return notes


def _chown_ids(ids: _Ids) -> tuple[int, int]:
    return -1 if ids.uid is None else ids.uid, -1 if ids.gid is None else ids.gid


def _set_attributes(path: str, mode: int, ids: _Ids) -> None:
    os.chown(path, *_chown_ids(ids))
    Path(path).chmod(mode)


def _fsync_directory(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(dest: Path) -> Iterator[IO[bytes]]:
    """A file (mode 0600 at first) beside `dest`, which is synced and takes its place at the end.

    After an exception in between, `dest` is as it was. Raises OSError.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{dest.name}.", suffix=_PARTIAL, dir=dest.parent)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        Path(temporary).rename(dest)
    except BaseException:
        Path(temporary).unlink()
        raise
    _fsync_directory(dest.parent)


def forget_partial(dest: Path) -> None:
    """Remove what calls of `replacing` that were killed have left beside `dest`. Raises OSError."""
    for path in dest.parent.glob(f".{dest.name}.*{_PARTIAL}"):
        path.unlink(missing_ok=True)


def _content_diff(spec: FileSpec, before: bytes | None) -> Diff:
    if spec.sensitive:
        return Diff(spec.dest, note="sensitive content changed")
    old = before or b""
    if len(old) > DIFF_LIMIT_BYTES or len(spec.content) > DIFF_LIMIT_BYTES:
        sizes = f"{len(old)} -> {len(spec.content)} bytes"
        return Diff(spec.dest, note=f"content changed ({sizes}, too large to show)")
    try:
        texts = old.decode(), spec.content.decode()
    except UnicodeDecodeError:
        return Diff(spec.dest, note=f"binary content changed ({len(old)} -> {len(spec.content)} bytes)")
    if texts[0] == texts[1]:
        return Diff(spec.dest, note="empty file created")
    return Diff(spec.dest, *texts)


def _make_directory(spec: DirectorySpec, check: bool) -> list[Diff]:
    ids = _lookup(spec, spec.path, check)
    info = _lstat(spec.path)
    if info is not None and stat.S_ISLNK(info.st_mode) and Path(spec.path).is_dir():
        info = Path(spec.path).stat()
    if info is not None and not stat.S_ISDIR(info.st_mode):
        raise FleetError(f"{spec.path}: should be a directory, but a file is there; move it away")
    if info is not None:
        notes = _attribute_notes(info, spec.mode, ids)
        if notes and not check:
            _set_attributes(spec.path, spec.mode, ids)
        return [Diff(spec.path, note=", ".join(notes))] if notes else []
    if not check:
        path = Path(spec.path)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Made closed: nobody may look in before owner and mode are right.
        path.mkdir(0o700)
        _set_attributes(spec.path, spec.mode, ids)
        _fsync_directory(path.parent)
    return [Diff(spec.path, note="directory created")]


def _remove(path: str, check: bool) -> list[Diff]:
    if len([part for part in path.split("/") if part]) < 2:
        raise FleetError(f"{path}: refusing to remove a top-level path; name the file itself")
    info = _lstat(path)
    if info is None:
        return []
    if not check:
        if stat.S_ISDIR(info.st_mode):
            shutil.rmtree(path)
        else:
            Path(path).unlink()
        _fsync_directory(Path(path).parent)
    return [Diff(path, note="removed")]


def _run_validate(spec: FileSpec, directory: str) -> None:
    """Run the file's own checker on a copy that has the file's name, in a private directory."""
    command = shlex.split(spec.validate or "")
    if not command or not any("%s" in word for word in command):
        raise FleetError(f"{spec.dest}: validate command {spec.validate!r} has no %s for the file; add it")
    copy = Path(directory) / Path(spec.dest).name
    copy.touch(0o600, exist_ok=False)
    copy.write_bytes(spec.content)
    copy.chmod(spec.mode)
    words = [word.replace("%s", str(copy)) for word in command]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VALIDATE_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise FleetError(f"{spec.dest}: validate command {words[0]!r} is not installed; install it first") from error
    except subprocess.TimeoutExpired as error:
        raise FleetError(
            f"{spec.dest}: validate command {spec.validate!r} gave no answer in {VALIDATE_TIMEOUT_S:.0f} s"
        ) from error
    finally:
        copy.unlink()
    if done.returncode != 0:
        # A checker may quote the line it dislikes, so the output of a sensitive file is not shown.
        output = "(output withheld: the file is sensitive)" if spec.sensitive else ""
        output = output or done.stdout.decode(errors="replace").replace(str(copy), spec.dest).strip()
        raise FleetError(
            f"{spec.dest}: nothing was placed, because {spec.validate!r} refused the new content "
            f"(exit code {done.returncode}): {output}"
        )


@dataclass(frozen=True)
class _Pending:
    spec: FileSpec
    ids: _Ids
    content_changed: bool
    diffs: tuple[Diff, ...]


def _compare(spec: FileSpec, check: bool) -> _Pending | None:
    ids = _lookup(spec, spec.dest, check)
    info = _lstat(spec.dest)
    if info is None:
        return _Pending(spec, ids, True, (_content_diff(spec, None),))
    if stat.S_ISLNK(info.st_mode):
        return _Pending(spec, ids, True, (Diff(spec.dest, note="symbolic link replaced by a file"),))
    if not stat.S_ISREG(info.st_mode):
        raise FleetError(f"{spec.dest}: is not a regular file; move it away")
    uid = info.st_uid if ids.uid is None else ids.uid
    gid = info.st_gid if ids.gid is None else ids.gid
    diffs: list[Diff] = []
    same = False
    if info.st_size == len(spec.content) or not spec.sensitive:
        before = Path(spec.dest).read_bytes()
        same = before == spec.content
        if not same:
            diffs.append(_content_diff(spec, before))
    else:
        diffs.append(_content_diff(spec, None))
    notes = _attribute_notes(info, spec.mode, ids)
    if notes:
        diffs.append(Diff(spec.dest, note=", ".join(notes)))
    return _Pending(spec, _Ids(uid, gid), not same, tuple(diffs)) if diffs else None


def _place(pending: _Pending) -> None:
    spec = pending.spec
    if not pending.content_changed:
        _set_attributes(spec.dest, spec.mode, pending.ids)
        return
    with replacing(Path(spec.dest)) as handle:
        handle.write(spec.content)
        os.fchown(handle.fileno(), *_chown_ids(pending.ids))
        os.fchmod(handle.fileno(), spec.mode)


def _check_set(files: Sequence[FileSpec], directories: Sequence[DirectorySpec], absent: Sequence[str]) -> None:
    seen: set[str] = set()
    for path in [*(d.path for d in directories), *absent, *(f.dest for f in files)]:
        if not path.startswith("/") or path.endswith("/") or os.path.normpath(path) != path:
            raise FleetError(f"{path}: is not a plain absolute path; write it in full, without .. or a final /")
        if path in seen:
            raise FleetError(f"{path}: is named twice in one set; keep one of the two")
        seen.add(path)


def apply(
    files: Sequence[FileSpec],
    directories: Sequence[DirectorySpec] = (),
    absent: Sequence[str] = (),
    *,
    check: bool = False,
) -> Outcome:
    """Bring directories, then removals, then files to the wanted state.

    All new contents pass their `validate` command before the first file is placed; each file is
    written beside its destination, synced and renamed. With `check` nothing is written and no
    validate command runs (its program may not be installed yet). Raises FleetError, OSError.
    """
    _check_set(files, directories, absent)
    pending = [found for spec in files if (found := _compare(spec, check)) is not None]
    if not check:
        with tempfile.TemporaryDirectory(prefix="muster-validate-") as scratch:
            for item in pending:
                if item.spec.validate and item.content_changed:
                    _run_validate(item.spec, scratch)
    diffs: list[Diff] = []
    for directory in directories:
        diffs += _make_directory(directory, check)
    for path in absent:
        diffs += _remove(path, check)
    for item in pending:
        if not check:
            folder = Path(item.spec.dest).parent
            if not folder.is_dir():
                raise FleetError(f"{item.spec.dest}: {folder} is missing; list it under directories")
            _place(item)
        diffs += item.diffs
    return Outcome(tuple(dict.fromkeys(diff.path for diff in diffs)), tuple(diffs))
