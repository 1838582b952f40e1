"""Wheel and sdist, the collection, and the tree of Python packages that image and .deb bring."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from tools import collection, wheelhouse

from .archives import repack
from .error import DistError
from .source import Source, run

# The home of the packages in image and .deb: a virtual environment with a folder for each Python.
HOME = "usr/lib/gpu-burnin"
# Equal files from this size on are stored once.
LINKED_BYTES = 4096
# manylinux of each glibc that is not newer than the nodes', and the three that have names.
PLACES = [f"manylinux_2_{minor}_x86_64" for minor in range(wheelhouse.GLIBC_NEWEST, 4, -1)]
PLACES += [f"manylinux{name}_x86_64" for name in ("2014", "2010", "1")]
COMMANDS = {"gpu-burnin": "main", "muster": "muster"}


def build_wheel_and_sdist(source: Source, output: Path) -> list[Path]:
    """Build both from the commit's files. Raises DistError."""
    env = os.environ | {"SOURCE_DATE_EPOCH": str(source.epoch_s), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", output, source.tree]
    run(command, "wheel and sdist", env=env)
    (wheel,), (sdist,) = output.glob("gpu_burnin-*.whl"), output.glob("gpu_burnin-*.tar.gz")
    repack(sdist, source.epoch_s)
    return [wheel, sdist]


def build_collection(source: Source, output: Path) -> Path:
    """Build the collection and make it reproducible. Raises DistError."""
    try:
        archive = collection.build(source.tree, output)
    except collection.CollectionError as error:
        raise DistError(str(error)) from None
    repack(archive, source.epoch_s, _sorted_lists(archive))
    return archive


def _sorted_lists(archive: Path) -> dict[str, bytes]:
    """FILES.json in the order of names (ansible-galaxy has it in the disk's), and MANIFEST.json with its new sum."""
    with tarfile.open(archive) as tar:
        files, manifest = (json.load(tar.extractfile(name) or sys.stdin) for name in ("FILES.json", "MANIFEST.json"))
    files["files"].sort(key=lambda one: one["name"])
    listed = json.dumps(files, indent=1).encode()
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(listed).hexdigest()
    return {"FILES.json": listed, "MANIFEST.json": json.dumps(manifest, indent=1).encode()}


def build_wheelhouse(source: Source, locks: Sequence[str], pythons: Sequence[str], output: Path) -> Path:
    """The archive that the roles install from, under the name by which they look for it. Raises DistError."""
    requirements = source.tree / "requirements"
    wanted = wheelhouse.Wanted(
        tuple(requirements / lock for lock in locks), requirements / "controller.txt", tuple(pythons), ("x86_64",)
    )
    try:
        return Path(wheelhouse.build(source.tree, wanted, output.absolute()).path)
    except wheelhouse.WheelhouseError as error:
        raise DistError(str(error)) from None


def wheels_in(archive: Path) -> list[str]:
    """The wheels of a wheelhouse, but for pip, which serves the installation alone."""
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    return sorted(name for name in names if name.endswith(".whl") and not name.startswith("pip-"))


def fits(wheel: str, python: str) -> bool:
    """Whether a wheel of this name is for this Python on x86-64."""
    major, minor = (int(word) for word in python.split("."))
    tags = parse_wheel_filename(wheel)[3]
    return not tags.isdisjoint(
        {*cpython_tags((major, minor), platforms=PLACES), *compatible_tags((major, minor), f"cp{major}{minor}", PLACES)}
    )


def lay_out(archives: Sequence[Path], pythons: Sequence[str], interpreter: str, root: Path) -> None:
    """Lay the packages of wheelhouses below `root`, with both commands on the PATH. Raises DistError.

    Equal files for two Pythons are one file with two names: CUDA's libraries are the same for both.
    """
    home = root / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin/python").symlink_to(interpreter)
    settings = f"home = {PurePosixPath(interpreter).parent}\ninclude-system-site-packages = false\n"
    (home / "pyvenv.cfg").write_text(settings)
    for name, function in COMMANDS.items():
        program = home / "bin" / name
        start = f"import sys\n\nfrom gpu_burnin.__main__ import {function}\n\nsys.exit({function}())\n"
        program.write_text(f"#!/{HOME}/bin/python\n{start}")
        program.chmod(0o755)
        (root / "usr/bin").mkdir(exist_ok=True)
        (root / "usr/bin" / name).symlink_to(f"../lib/gpu-burnin/bin/{name}")
    seen: dict[str, Path] = {}
    for python in pythons:
        site, had = home / "lib" / f"python{python}" / "site-packages", dict[str, str]()
        site.mkdir(parents=True)
        for archive in archives:
            wheels = wheels_in(archive)
            with tarfile.open(archive) as tar:
                for wheel in wheels:
                    name, version = parse_wheel_filename(wheel)[:2]
                    if not fits(wheel, python) or had.get(name) == str(version):
                        continue
                    if had.setdefault(name, str(version)) != str(version):
                        raise DistError(f"{archive}: {wheel} is a second version of {name}; run `make lock`")
                    content = tar.extractfile(wheel)
                    assert content is not None
                    with zipfile.ZipFile(content) as packed:
                        _spread(packed, site, seen)
            for missing in sorted({parse_wheel_filename(wheel)[0] for wheel in wheels} - had.keys()):
                raise DistError(f"{archive}: has no {missing} for Python {python} on x86-64; look at its wheels' names")


def _spread(wheel: zipfile.ZipFile, site: Path, seen: dict[str, Path]) -> None:
    """Unpack a wheel; of its data folder only what belongs among the packages."""
    for member in wheel.infolist():
        path = PurePosixPath(member.filename)
        if path.parts[0].endswith(".data"):
            if path.parts[1] not in ("purelib", "platlib"):
                continue
            path = PurePosixPath(*path.parts[2:])
        if member.is_dir():
            continue
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = wheel.open(member)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        target.chmod(0o755 if member.external_attr >> 16 & 0o100 else 0o644)
        if member.file_size < LINKED_BYTES:
            continue
        first = seen.setdefault(f"{oct(target.stat().st_mode)} {_digest(target)}", target)
        if first != target:
            target.unlink()
            os.link(first, target)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compile_tree(root: Path, python: str) -> None:
    """Write the bytecode of all modules below `root`, bound to their contents and not to times. Raises DistError."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" != python:
        raise DistError(f"Python {python} of the image is compiled by itself; run with that version")
    env = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0"}
    options = ["-q", "-q", "--invalidation-mode", "unchecked-hash", "-s", root, "-p", "/"]
    run([sys.executable, "-m", "compileall", *options, root / "usr/lib"], "bytecode", env=env)
