#!/usr/bin/env python3
"""Build the wheelhouse: one tar archive with everything that `gpu-burnin` on a node needs, pip included.

The wheel of gpu_burnin is built from this checkout; its dependencies are downloaded as the lock files pin them, with
hashes required, for each Python version and machine type of the nodes. The archive is named after what went into it, so
that a second call finds it there and does nothing. Prints one JSON object: changed, path, sha256, build.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# Part of the archive's name: raise it when the way of building changes.
FORMAT = 1
MACHINES = ("x86_64", "aarch64")
# CUDA version of the nodes' GPUs ("none": no GPU is computed on) -> lock file of everything such a node installs.
NODE_LOCKS = {"none": "node.txt", "12": "node-cuda12.txt", "13": "node-cuda13.txt"}
# glibc of Debian 12, the oldest supported system; and of manylinux2014, the oldest platform tag of our wheels.
GLIBC_NEWEST, GLIBC_OLDEST = 36, 17
# 1980-01-01, the earliest time a wheel (a zip file) can hold: builds of equal sources are equal.
EPOCH_S = 315532800
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)(?:\s*;\s*(.*?))?\s*\\?$")
_PYTHON = re.compile(r"^3\.\d+$")


class WheelhouseError(Exception):
    """A wheelhouse that cannot be built; the message names the file or command and what to do."""


@dataclass(frozen=True)
class Wanted:
    """What the archive is for: lock files of the nodes, the lock file that pins pip, Pythons and machine types."""

    requirements: tuple[Path, ...]
    pip_lock: Path
    pythons: tuple[str, ...]
    machines: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What is printed. `sha256` is empty in a dry run that would build."""

    changed: bool
    path: str
    sha256: str
    build: str


def source_files(checkout: Path) -> list[Path]:
    """The files that the wheel of gpu_burnin is built from, relative to the checkout, sorted."""
    package = [
        path.relative_to(checkout)
        for path in (checkout / "gpu_burnin").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted([*package, Path("pyproject.toml")])


def read(path: Path) -> bytes:
    """The bytes of a file. Raises WheelhouseError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise WheelhouseError(f"{path}: cannot be read ({error.strerror}); restore it from the repository") from error


def build_key(checkout: Path, wanted: Wanted) -> str:
    """16 hex digits that stand for all that goes into the archive."""
    digest = hashlib.sha256()

    def add(name: str, content: bytes) -> None:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)

    add("format", str(FORMAT).encode())
    add("for", " ".join([*wanted.pythons, *wanted.machines]).encode())
    for lock in wanted.requirements:
        add("requirements", read(lock))
    add("pip", pip_requirement(wanted.pip_lock).encode())
    for path in source_files(checkout):
        add(str(path), read(checkout / path))
    return digest.hexdigest()[:16]


def pins(text: str) -> list[str]:
    """The `name==version` lines of a lock file, with their markers and without hashes."""
    found = (_PIN.match(line) for line in text.splitlines())
    return [f"{m[1]}=={m[2]}" + (f" ; {m[3]}" if m[3] else "") for m in found if m]


def pip_requirement(lock: Path) -> str:
    """The part of a lock file that pins pip, with its hashes. Raises WheelhouseError when there is none."""
    lines = read(lock).decode().splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith("pip==")), None)
    if start is None:
        raise WheelhouseError(f"{lock}: does not pin pip; lock it with pip-compile --allow-unsafe")
    end = next(
        (number for number in range(start, len(lines)) if not lines[number].rstrip().endswith("\\")), len(lines) - 1
    )
    return "\n".join(lines[start : end + 1]) + "\n"


def platforms(machine: str) -> list[str]:
    """The wheel platform tags that the supported systems can use, best first."""
    return [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_NEWEST, GLIBC_OLDEST - 1, -1)] + [
        f"manylinux2014_{machine}"
    ]


def run_pip(arguments: Sequence[str | Path], what: str) -> None:
    """Run this Python's pip. Raises WheelhouseError with pip's own errors."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S)},
        check=False,
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if line.upper().startswith("ERROR")] or lines[-3:]
        raise WheelhouseError(f"{what}: pip failed: {' / '.join(errors) or 'it said nothing'}")


def download(requirements: Path, python: str, machine: str, directory: Path) -> None:
    """Download the wheels of one lock file for one kind of node, as pinned, with hashes."""
    tags = [word for platform in platforms(machine) for word in ("--platform", platform)]
    kind = ["--python-version", python, "--implementation", "cp", *tags]
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", str(directory)]
    run_pip(
        ["download", *options, *kind, "--requirement", requirements],
        f"{requirements.name} for Python {python} on {machine}",
    )


def build_own_wheel(checkout: Path, directory: Path, scratch: Path) -> str:
    """Build the wheel of gpu_burnin from a copy of its sources, so that nothing is left in the checkout.

    Returns what a node asks pip for: the name with the version that the wheel got.
    """
    copy = scratch / "source"
    for path in source_files(checkout):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(read(checkout / path))
    # The real one changes often and says nothing to a node.
    (copy / "README.md").write_text("See the repository of Muster.\n")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(directory)]
    run_pip(["wheel", *options, copy], "the wheel of gpu_burnin")
    (wheel,) = directory.glob("gpu_burnin-*.whl")
    return f"gpu-burnin=={wheel.name.split('-')[1]}"


def requirements_text(locks: Iterable[Path], own: str) -> str:
    """What the nodes install: every pin once, and `own`, gpu-burnin itself."""
    lines = [line for lock in locks for line in pins(read(lock).decode())]
    return "\n".join(dict.fromkeys([*lines, own])) + "\n"


def write_tar(directory: Path, target: Path) -> None:
    """Write a flat archive whose bytes depend on names and contents alone."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode = EPOCH_S, 0, 0, "", "", 0o644
        return info

    with target.open("wb") as handle:
        with tarfile.open(fileobj=handle, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(directory.iterdir()):
                tar.add(path, arcname=path.name, filter=plain)
        handle.flush()
        os.fsync(handle.fileno())


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One process at a time, of those that want the same folder."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def temporary_directory(parent: Path) -> Iterator[Path]:
    """A private directory beside the archives, so that the finished one can be renamed into place."""
    path = Path(tempfile.mkdtemp(prefix=".wheelhouse-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def build(checkout: Path, wanted: Wanted, output: Path, dry_run: bool = False) -> Result:
    """Build the archive in the folder `output`, unless it is there. Raises WheelhouseError, OSError."""
    key = build_key(checkout, wanted)
    archive, checksum = output / f"gpu-burnin-{key}.tar", output / f"gpu-burnin-{key}.tar.sha256"

    def found() -> Result | None:
        if archive.exists() and checksum.exists():
            return Result(False, str(archive), checksum.read_text().split()[0], key)
        return None

    if (there := found()) is not None:
        return there
    if dry_run:
        return Result(True, str(archive), "", key)
    output.mkdir(mode=0o755, parents=True, exist_ok=True)
    # Shards of a roll ask for the same archive at the same time: one builds it.
    with alone(output):
        return found() or _build(checkout, wanted, archive, checksum)


def _build(checkout: Path, wanted: Wanted, archive: Path, checksum: Path) -> Result:
    with temporary_directory(archive.parent) as scratch:
        wheels = scratch / "wheels"
        wheels.mkdir()
        pip_lock = scratch / "pip.txt"
        pip_lock.write_text(pip_requirement(wanted.pip_lock))
        for machine in wanted.machines:
            for python in wanted.pythons:
                for lock in (pip_lock, *wanted.requirements):
                    download(lock, python, machine, wheels)
        own = build_own_wheel(checkout, wheels, scratch)
        (wheels / "requirements.txt").write_text(requirements_text(wanted.requirements, own))
        write_tar(wheels, scratch / archive.name)
        with (scratch / archive.name).open("rb") as handle:
            sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
        (scratch / checksum.name).write_text(f"{sha256}  {archive.name}\n")
        # The archive last: with it in place the build counts as done.
        (scratch / checksum.name).rename(checksum)
        (scratch / archive.name).rename(archive)
    return Result(True, str(archive), sha256, build_key(checkout, wanted))


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the wheelhouse of gpu-burnin for nodes, unless it is there.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the archives")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--cuda", choices=NODE_LOCKS, help="CUDA version of the nodes' GPUs; selects the lock file")
    what.add_argument("--requirements", type=Path, action="append", help="another lock file; may be repeated")
    parser.add_argument("--pip-lock", type=Path, default=CHECKOUT / "requirements" / "controller.txt")
    parser.add_argument("--python", action="append", required=True, help="such as 3.11; may be repeated")
    parser.add_argument("--machine", action="append", required=True, choices=MACHINES, help="may be repeated")
    parser.add_argument("--dry-run", action="store_true", help="only say whether an archive would be built")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 2 with one sentence on stderr when it cannot be built."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        for python in options.python:
            if not _PYTHON.match(python):
                raise WheelhouseError(f"--python {python}: is not a Python version such as 3.11")
        locks = options.requirements or [CHECKOUT / "requirements" / NODE_LOCKS[options.cuda]]
        wanted = Wanted(tuple(locks), options.pip_lock, tuple(sorted(options.python)), tuple(sorted(options.machine)))
        result = build(CHECKOUT, wanted, options.output.absolute(), options.dry_run)
    except WheelhouseError as error:
        print(f"wheelhouse: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"wheelhouse: {error.filename or options.output}: {error.strerror}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
