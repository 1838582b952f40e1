"""Install a wheelhouse as a versioned virtual environment. Standard library only: runs on the hosts.

A build lies under ROOT/BUILD, is complete once ROOT/BUILD/.complete exists, and is in use when ROOT/current points
to it. A virtual environment cannot be moved, so it is made in place and marked at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, os_error
from ansible_collections.muster.fleet.plugins.module_utils.host import binaries, files

COMPLETE = ".complete"
INSTALL_TIMEOUT_S = 600.0
# The build in use and the one before it, which a run that has not ended may still be using.
KEEP_BUILDS = 2
_ADVICE = binaries.Advice(
    wanted="the controller's file has",
    other_sum="copy the controller's file to the mirror",
    not_there="copy this file from the controller's wheelhouse to the mirror, or correct fleet_wheelhouse_url",
    no_answer="start the mirror, let the host reach it, or correct fleet_wheelhouse_url",
)


def python_version() -> str:
    """Major and minor version of the running Python, to which a virtual environment is bound."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def is_complete(build: Path) -> bool:
    """Whether the build was finished, with the Python that this host has now."""
    try:
        return (build / COMPLETE).read_text().strip() == python_version()
    except (FileNotFoundError, NotADirectoryError):
        return False


def fetch(url: str, archive: Path, sha256: str, timeout_s: float) -> None:
    """Have the archive of this SHA-256 from the folder `url` of a mirror: as a whole, or not at all.

    What is right already is not fetched again. Raises FleetError, OSError.
    """
    files.forget_partial(archive)
    if binaries.file_sha256(str(archive)) != sha256:
        binaries.install(f"{url.rstrip('/')}/{archive.name}", str(archive), sha256, 0o600, timeout_s, _ADVICE)


def unpack(archive: Path, sha256: str, directory: Path) -> None:
    """Unpack a flat archive whose SHA-256 is known. Raises FleetError for any other content."""
    found = binaries.file_sha256(str(archive))
    if found != sha256:
        raise FleetError(f"{archive}: its SHA-256 is {found}, not {sha256}; remove it and run again")
    with tarfile.open(archive) as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isfile() else None
            if source is None or "/" in member.name or member.name.startswith("."):
                raise FleetError(f"{archive}: {member.name} is not a plain file; build the wheelhouse again")
            try:
                with source, (directory / member.name).open("wb") as handle:
                    shutil.copyfileobj(source, handle)
            except OSError as error:
                raise FleetError(f"{archive} cannot be unpacked into {directory}: {os_error(error)}") from None


def _run(command: Sequence[str | Path], what: str) -> None:
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=INSTALL_TIMEOUT_S,
        # No configuration of pip or Python from outside: everything comes from the archive.
        env={"PATH": os.environ.get("PATH", os.defpath), "PIP_CONFIG_FILE": os.devnull, "LC_ALL": "C.UTF-8"},
        check=False,
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        errors = "; ".join(line for line in lines if line.startswith("ERROR")) or " / ".join(lines[-3:])
        raise FleetError(f"{what} failed (exit code {done.returncode}): {errors}")


def install(archive: Path, sha256: str, build: Path) -> None:
    """Make the virtual environment `build` from the archive; what an interrupted installation left is replaced.

    Uses the pip of the archive, so that the host needs neither pip nor python3-venv. Raises FleetError.
    """
    if build.exists():
        shutil.rmtree(build)
    build.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="muster-wheels-") as scratch:
        wheels = Path(scratch)
        unpack(archive, sha256, wheels)
        pip = next(iter(wheels.glob("pip-*.whl")), None)
        if pip is None or not (wheels / "requirements.txt").exists():
            raise FleetError(f"{archive}: holds no pip wheel or no requirements.txt; build the wheelhouse again")
        _run([sys.executable, "-m", "venv", "--without-pip", build], f"{build}: python -m venv")
        options = [
            "--no-index",
            "--no-deps",
            "--no-compile",
            "--no-cache-dir",
            "--disable-pip-version-check",
            "--quiet",
        ]
        requirements = ["--find-links", wheels, "--requirement", wheels / "requirements.txt"]
        _run(
            [build / "bin" / "python", pip / "pip", "install", *options, *requirements],
            f"{build}: pip install for Python {python_version()} (is it in gpu_burnin_python_versions?)",
        )
    marker = build / f"{COMPLETE}.tmp"
    with marker.open("w") as handle:
        handle.write(f"{python_version()}\n")
        handle.flush()
        os.fsync(handle.fileno())
    marker.rename(build / COMPLETE)


def wrong_links(links: Mapping[str, str]) -> list[str]:
    """Those link paths that do not point to their target yet."""
    return [
        path for path, target in links.items() if not Path(path).is_symlink() or str(Path(path).readlink()) != target
    ]


def set_link(path: Path, target: str) -> None:
    """Make or replace a symbolic link by rename. Raises FleetError when something else is in its place."""
    if path.exists() and not path.is_symlink():
        raise FleetError(f"{path}: should be a symbolic link, but a file or folder is there; move it away")
    temporary = path.with_name(f".{path.name}.muster-tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.rename(path)


def prune(root: Path, build: str, previous: str | None) -> None:
    """Remove builds other than the one in use, the one before it, and the newest up to KEEP_BUILDS."""
    builds = [entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()]
    newest_first = sorted(builds, key=lambda entry: entry.stat().st_mtime, reverse=True)
    keep = {build, *([previous] if previous else [])}
    for entry in newest_first:
        if len(keep) < KEEP_BUILDS:
            keep.add(entry.name)
        if entry.name not in keep:
            shutil.rmtree(entry)
