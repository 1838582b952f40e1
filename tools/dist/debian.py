"""The root of the image: files of Debian packages, and of those only what Python and ssh-keygen need. No shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .error import DistError
from .source import run
from .sums import sha256

# With what they depend on. openssh-client comes for ssh-keygen alone, base-files for the system's name.
WITH_DEPENDENCIES = ("python{0}-minimal", "libpython{0}-stdlib", "libstdc++6", "libselinux1")
ALONE = ("openssh-client", "base-files")
_KEPT = re.compile(
    r"usr/bin/(python3\.\d+|ssh-keygen)$|usr/lib/|usr/lib64/|usr/share/doc/[^/]+/copyright$"
    r"|etc/(ssl/openssl\.cnf|debian_version)$"
)
# Modules for people at a terminal, and what else of a library's package no program here opens.
_NOT_KEPT = re.compile(
    r"usr/lib/python3\.\d+/(test|idlelib|lib2to3|ensurepip|tkinter|turtledemo|pydoc_data|config-[^/]*)/"
    r"|usr/lib/python3\.\d+/lib-dynload/(readline|_curses|_curses_panel|_dbm|_tkinter|nis)\."
    r"|usr/lib/(openssh|ssl|systemd|mime|tmpfiles\.d|sysusers\.d|valgrind|init|dpkg|apt|tar|bfd-plugins|binfmt\.d)(/|$)"
    r"|usr/lib/[^/]+/(gconv|audit|perl[^/]*|krb5|security|engines-[^/]*|ossl-modules/legacy\.so)(/|$)"
    r"|usr/lib/[^/]+/lib(readline|history|ncursesw?|formw?|menuw?|panelw?|tinfo|tic|db-5|nsl|tirpc|gssapi_krb5|krb5|"
    r"krb5support|k5crypto|com_err|keyutils|memusage|pcprofile|SegFault|thread_db)[-.]"
)
_MERGED = ("bin", "sbin", "lib", "lib64")
UID = 65532
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/nonexistent\nmuster:x:{UID}:{UID}:Muster:/tmp:/nonexistent\n",
    "etc/group": f"root:x:0:\nmuster:x:{UID}:\n",
}


@dataclass(frozen=True)
class DebPackage:
    """A package that the image has files of."""

    name: str
    version: str
    architecture: str
    sha256: str


def fetch(python: str, directory: Path) -> list[Path]:
    """Have apt download the packages as if nothing were installed, from this machine's sources, which apt verifies.

    Raises DistError.
    """
    (directory / "state/lists/partial").mkdir(parents=True)
    (directory / "cache/archives/partial").mkdir(parents=True)
    (directory / "status").touch()
    options = [
        f"Dir::State={directory}/state", f"Dir::State::status={directory}/status", f"Dir::Cache={directory}/cache",
        "APT::Sandbox::User=root", "Acquire::Languages=none", "APT::Architecture=amd64", "APT::Install-Recommends=0",
        # They are no part of the image, and a half of the time.
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=0", "DPkg::Post-Invoke::=",
    ]  # fmt: skip
    apt = ["apt-get", "-q", *(word for option in options for word in ("-o", option))]
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    run([*apt, "update", "--error-on=any"], "lists of Debian packages", env=env)
    names = [name.format(python) for name in WITH_DEPENDENCIES]
    run([*apt, "install", "--download-only", "--yes", *names], "Debian packages of the image", env=env)
    archives = directory / "cache/archives"
    run([*apt, "download", *ALONE], "Debian packages of the image", env=env, cwd=archives)
    return sorted(archives.glob("*.deb"))


def lay_out(packages: Sequence[Path], root: Path) -> list[DebPackage]:
    """Lay what is kept of each package below `root`, without running any of its scripts. Raises DistError.

    A package of which nothing but its copyright would be left is left out. Those that stay are written down where
    scanners look for them.
    """
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    kept = []
    for path in packages:
        if _unpack(path, root):
            kept.append(_describe(path, root))
    for name, content in ACCOUNTS.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(content)
    for name in ("tmp", "proc", "sys", "dev", "run", "var/lib", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    _remove_empty(root / "usr")
    return kept


def place(name: str) -> str | None:
    """Where a file of a package goes, in a system whose /bin, /lib are in /usr; None for one that is not kept."""
    path = PurePosixPath(name.removeprefix("./"))
    merged = f"usr/{path}" if path.parts and path.parts[0] in _MERGED else str(path)
    return merged if _KEPT.match(merged) and not _NOT_KEPT.match(merged) else None


def _unpack(package: Path, root: Path) -> bool:
    """Whether anything but the copyright was kept; nothing is where it was not."""
    with tempfile.TemporaryFile() as data:
        done = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], stdout=data, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise DistError(f"{package.name}: dpkg-deb cannot read it: {done.stderr.decode(errors='replace').strip()}")
        data.seek(0)
        with tarfile.open(fileobj=data) as tar:
            found = [(member, where) for member in tar if not member.isdir() and (where := place(member.name))]
            if not any("/doc/" not in where for _, where in found):
                return False
            for member, where in found:
                target = root / where
                target.parent.mkdir(parents=True, exist_ok=True)
                if member.issym():
                    target.symlink_to(member.linkname)
                elif (file := tar.extractfile(member)) is not None:
                    with target.open("wb") as out:
                        shutil.copyfileobj(file, out)
                    target.chmod(0o755 if member.mode & 0o100 else 0o644)
    return True


def _describe(package: Path, root: Path) -> DebPackage:
    control = run(["dpkg-deb", "--field", package], package.name).decode()
    fields = dict(_fields(control))
    status = root / "var/lib/dpkg/status.d" / fields["Package"]
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text(control)
    return DebPackage(fields["Package"], fields["Version"], fields["Architecture"], sha256(package))


def _fields(control: str) -> Iterator[tuple[str, str]]:
    for line in control.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            yield name, value.strip()


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        of_the_root = path.relative_to(folder).as_posix() in _MERGED
        if path.is_dir() and not path.is_symlink() and not of_the_root and not any(path.iterdir()):
            path.rmdir()
