"""Files from their publishers' sites, each held against the publisher's checksum."""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.error
import urllib.request
from collections.abc import Collection
from pathlib import Path

from gpu_burnin.errors import GpuBurninError

REACH_TIMEOUT_S = 5


def fetch_verified(url: str, expected_sha256: str) -> bytes:
    """Download `url`; raises GpuBurninError when it does not answer or its SHA-256 is another."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            data: bytes = answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise GpuBurninError(
            f"{url} cannot be downloaded ({error}): check the network, or put the file into the cache"
        ) from None
    got = hashlib.sha256(data).hexdigest()
    if got != expected_sha256:
        raise GpuBurninError(
            f"{url} has SHA-256 {got}, its publisher says {expected_sha256}: do not use it, try another network"
        )
    return data


def reachable(url: str) -> bool:
    """Whether a site answers."""
    try:
        with urllib.request.urlopen(url, timeout=REACH_TIMEOUT_S):
            return True
    except (urllib.error.URLError, OSError):
        return False


def published_sum(url: str, name: str) -> str:
    """The checksum that the publisher's file gives for `name`: a bare hex string or `sum  name` lines."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, OSError) as error:
        raise GpuBurninError(f"{url} cannot be downloaded ({error}): check the network, and run again") from None
    for line in text.splitlines():
        words = line.split()
        if len(words) == 1 or (len(words) > 1 and words[1].lstrip("*").endswith(name)):
            return str(words[0])
    raise GpuBurninError(f"{url} has no checksum for {name}: the release is incomplete, choose another version")


def unpack(target: Path, names: Collection[str], archive: bytes) -> None:
    """The programs of these names out of an archive, whatever their folder in it."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            if Path(member.name).name in names and member.isfile():
                file = tar.extractfile(member)
                if file:
                    place(target / Path(member.name).name, file.read())


def place(path: Path, data: bytes) -> None:
    """A program."""
    path.write_bytes(data)
    path.chmod(0o755)
