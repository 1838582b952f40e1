"""Fetch files whose SHA-256 is known and put them in place as a whole or not at all.

Standard library only: this runs on the hosts.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, os_error
from ansible_collections.muster.fleet.plugins.module_utils.host import files

# Options of the modules that fetch from a mirror.
MIRROR_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "url": {"type": "str", "required": True},
    "checksums": {"type": "dict", "required": True},
    "timeout_s": {"type": "float", "default": 30.0},
}
_MODE = 0o755
_CHUNK_BYTES = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
# A server that answers, but not to HEAD (RFC 9110, sections 15.5.6 and 15.6.2): GET may well work.
_HEAD_REFUSED = (405, 501)
_NO_ANSWER = (urllib.error.URLError, http.client.HTTPException, OSError, ValueError)


@dataclass(frozen=True)
class Advice:
    """How an error names what the user gave, and what to do.

    `wanted`: where the right SHA-256 stands, before its digits; {name} is the file's. `other_sum`: when the file has
    another one. `not_there`: when the server answers that it has no such file. `no_answer`: when none answers.
    """

    wanted: str
    other_sum: str
    not_there: str
    no_answer: str


OF_MIRROR = Advice(
    wanted="kube_binaries_checksums[{name}] is",
    other_sum="correct the checksum or the mirror",
    not_there="check kube_binaries_url",
    no_answer="check kube_binaries_url",
)


def request_problems(names: Sequence[str], checksums: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Why this cannot even be tried (a missing or malformed checksum, a path as name), each with what to do."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            yield f"'{name}' is not a plain file name", "give the name alone, without a folder"
        elif name not in checksums:
            yield f"kube_binaries_checksums has no entry for {name}", f"add its SHA-256 (`sha256sum {name}`)"
        elif not _SHA256.fullmatch(str(checksums[name])):
            yield (
                f"kube_binaries_checksums[{name}] is not a SHA-256: {checksums[name]}",
                f"give its 64 hexadecimal digits (`sha256sum {name}`)",
            )


def check_request(names: Sequence[str], checksums: Mapping[str, object]) -> None:
    """Raises FleetError for the first of request_problems."""
    for problem in request_problems(names, checksums):
        raise FleetError("; ".join(problem))


def file_sha256(path: str) -> str | None:
    """Digest of a regular file; None when there is none."""
    if not Path(path).is_file():
        return None
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def needs_mode(path: str, mode: int) -> bool:
    """Whether the file has other permissions or is not root's (or the caller's)."""
    info = Path(path).stat()
    return stat.S_IMODE(info.st_mode) != mode or info.st_uid != os.geteuid()


def have(given: Mapping[str, Any], names: Sequence[str], directory: str, *, act: bool) -> tuple[list[str], list[str]]:
    """Bring every binary that is missing or wrong: the names of those that were fetched, and of those made ours to run.

    `given` has the MIRROR_OPTIONS. All checksums are looked at before the first download. Raises FleetError, OSError.
    """
    check_request(names, given["checksums"])
    installed: list[str] = []
    permitted: list[str] = []
    for name in names:
        path = str(Path(directory, name))
        if file_sha256(path) != given["checksums"][name].lower():
            installed.append(name)
            if act:
                url = f"{given['url'].rstrip('/')}/{name}"
                install(url, path, given["checksums"][name], _MODE, given["timeout_s"])
        elif needs_mode(path, _MODE):
            permitted.append(name)
            if act:
                os.chown(path, 0, 0)
                Path(path).chmod(_MODE)
    return installed, permitted


def install(url: str, path: str, sha256: str, mode: int, timeout_s: float, advice: Advice = OF_MIRROR) -> None:
    """Download `url` next to `path`, compare, set the mode, sync and rename.

    `timeout_s` is for each wait on the network. Raises FleetError; `path` is then as it was.
    """
    target = Path(path)
    wanted = sha256.lower()
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with files.replacing(target) as stream:
            digest = hashlib.sha256()
            for chunk in _download(url, target.parent, timeout_s, advice):
                digest.update(chunk)
                stream.write(chunk)
            if digest.hexdigest() != wanted:
                raise FleetError(
                    f"{url} has SHA-256 {digest.hexdigest()}, but {advice.wanted.format(name=target.name)} {wanted}; "
                    f"{advice.other_sum}"
                )
            os.fchmod(stream.fileno(), mode)
    except OSError as error:
        # What the network does is a FleetError already.
        raise FleetError(f"{url} cannot be put into {target.parent}: {os_error(error)}") from None


def _download(url: str, folder: Path, timeout_s: float, advice: Advice) -> Iterator[bytes]:
    """The bytes of `url`, all of them. Raises FleetError, before the first one where `folder` has no room for them."""
    try:
        response = urllib.request.urlopen(url, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        raise FleetError(f"{url} answers HTTP {error.code} {error.reason}; {advice.not_there}") from None
    except _NO_ANSWER as error:
        raise FleetError(f"{url} cannot be fetched: {_reason(error)}; {advice.no_answer}") from None
    with response:
        length = response.headers.get("Content-Length")
        size = int(length) if length and length.isdecimal() else None
        free = shutil.disk_usage(folder).free
        if size is not None and size > free:
            raise FleetError(
                f"{url} has {size >> 20} MiB, and {folder} has {free >> 20} MiB free; make room on its file system"
            )
        received, cut, why = 0, False, ""
        try:
            while chunk := response.read(_CHUNK_BYTES):
                received += len(chunk)
                yield chunk
        except http.client.IncompleteRead as error:
            received, cut = received + len(error.partial), True
        except _NO_ANSWER as error:
            cut, why = True, f" ({_reason(error)})"
    if cut or (size is not None and received != size):
        of_size = "" if size is None else f" of {size}"
        raise FleetError(f"{url} broke off after {received}{of_size} bytes{why}; run again")


def mirror_fault(url: str, names: Sequence[str], checksums: Mapping[str, str], directory: str, timeout_s: float) -> str:
    """Why the mirror cannot give this host what it lacks, in one sentence; empty when it can.

    One HEAD request, for the first name, of at most `timeout_s` per wait. What is installed and right already needs
    no mirror; digests are taken only when the mirror does not answer, so that a good one costs nothing else.
    """
    if not (url and names):
        return ""
    base = url.rstrip("/")
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{base}/{names[0]}", method="HEAD"), timeout=timeout_s):
            return ""
    except urllib.error.HTTPError as error:
        if error.code in _HEAD_REFUSED:
            return ""
        fault = f"the mirror {base} answers HTTP {error.code} {error.reason} for {names[0]}"
    except _NO_ANSWER as error:
        fault = f"the mirror {base} cannot be reached: {_reason(error)}"
    wanted = {str(Path(directory, name)): str(checksums.get(name, "")).lower() for name in names}
    return fault if any(file_sha256(path) != sha256 for path, sha256 in wanted.items()) else ""


def _reason(error: Exception) -> object:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
