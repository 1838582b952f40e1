"""The job's source, from its archive or a URL, in a folder of the pod. Standard library alone."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import time
import urllib.request
from pathlib import Path

from gpu_burnin.launch.pod.setup import Refused, Setup

_FETCHES = 3


def fetch(url: str, sha256: str, to: Path) -> None:
    """The file behind a URL, once its hash is as it should be. Raises Refused."""
    for attempt in range(1, _FETCHES + 1):
        digest = hashlib.sha256()
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, to.open("wb") as out:
                for chunk in iter(lambda: answer.read(1 << 20), b""):
                    digest.update(chunk)
                    out.write(chunk)
            break
        except (OSError, ValueError) as error:
            if attempt == _FETCHES:
                raise Refused(f"{url} cannot be fetched ({error}); check that the pods reach it") from error
            time.sleep(attempt)
    if digest.hexdigest() != sha256.lower():
        to.unlink()
        raise Refused(
            f"{url} has the SHA-256 {digest.hexdigest()} and not {sha256}; it was changed since, or the hash is of "
            "another file"
        )


def _stays_inside(folder: Path, name: str) -> bool:
    path = os.path.normpath(folder / name)
    return path == str(folder) or path.startswith(str(folder) + os.sep)


def unpack(archive: Path, folder: Path) -> None:
    """A tar archive into a folder, which nothing of it leaves. Raises Refused."""
    try:
        with tarfile.open(str(archive)) as opened:
            if hasattr(tarfile, "fully_trusted_filter"):
                # Looked at below; older versions have no filter of their own.
                opened.extraction_filter = tarfile.fully_trusted_filter
            for member in opened.getmembers():
                beside = str(Path(member.name).parent / member.linkname)
                target = member.linkname if member.islnk() else beside
                linked = member.issym() or member.islnk()
                if not _stays_inside(folder, member.name) or (linked and not _stays_inside(folder, target)):
                    raise Refused(f"{archive.name}: {member.name} leads out of the folder; pack it without that")
                if not (member.isfile() or member.isdir() or linked):
                    raise Refused(
                        f"{archive.name}: {member.name} is neither file, folder nor link; pack it without that"
                    )
                member.mode = member.mode & 0o777 | (0o700 if member.isdir() else 0o600)
                member.uid, member.gid = os.getuid(), os.getgid()
                opened.extract(member, str(folder), set_attrs=not linked)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise Refused(
            f"{archive.name} cannot be unpacked ({error}); it has to be a tar archive, such as .tar.gz"
        ) from error


def prepare(setup: Setup) -> Path:
    """The source in its folder; the path of what is started. Raises Refused."""
    for folder in (setup.source, setup.work / "home", setup.work / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    archive = setup.launch / "source.tar.gz"
    if setup.url:
        name = setup.url.split("?")[0].rstrip("/").rpartition("/")[2] or "source"
        archive = setup.work / name
        fetch(setup.url, setup.sha256 or "", archive)
    if archive.name.endswith(".py"):
        shutil.copyfile(str(archive), str(setup.source / archive.name))
    else:
        unpack(archive, setup.source)
    entry = setup.source / setup.entry
    if not entry.is_file():
        raise Refused(f"the source has no file {setup.entry}; name one that it has")
    return entry
