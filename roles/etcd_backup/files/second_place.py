"""The second place of etcd's snapshots: a directory on another host over SFTP, or a folder of a bucket.

Standard library only; the sftp and rclone clients do the work.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

_CHUNK_BYTES = 1 << 20


class BackupError(Exception):
    """Why there is no backup: one sentence that names the file or host and what to do, without a full stop."""


class Place(Protocol):
    """Where the copies go."""

    def names(self) -> list[str]:
        """All names there. Raises BackupError."""

    def put(self, source: Path, name: str) -> None:
        """Copy a file there. Raises BackupError."""

    def sha256(self, name: str) -> str:
        """SHA-256 of the file as it is read back. Raises BackupError."""

    def rename(self, name: str, new: str) -> None:
        """Give a file its name. Raises BackupError."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove files. Raises BackupError."""


def run(argv: Sequence[str], told: str, stdin: str = "") -> str:
    """The output of a command that must succeed. Raises BackupError: what was `told`, and its last line."""
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BackupError(f"{told}: {argv[0]} cannot be run ({error.strerror})") from None
    if done.returncode != 0:
        raise BackupError(f"{told}: {last_line(done.stderr) or f'{argv[0]} ended with {done.returncode}'}")
    return done.stdout


def last_line(text: str) -> str:
    """The last line that says something.

    That sftp then closed the connection does not, nor the numbers of a request to S3, if anything else was said.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Connection closed", "status code:"))]
    return (telling or lines or [""])[-1]


class SftpPlace:
    """A directory on another host, with the sftp client: its key need not be allowed anything but SFTP."""

    def __init__(self, place: Mapping[str, Any], work: Path) -> None:
        self.place = place
        self.work = work

    def names(self) -> list[str]:
        listed = self._batch(f"@ls -1 {self._at('')}").splitlines()
        return [line.strip().rsplit("/", 1)[-1] for line in listed if line.strip()]

    def put(self, source: Path, name: str) -> None:
        # -f: the far side flushes the file to its disk before it answers.
        self._batch(f'@put -f "{source}" {self._at(name)}')

    def sha256(self, name: str) -> str:
        copy = self.work / f"{name}.read-back"
        try:
            self._batch(f'@get {self._at(name)} "{copy}"')
            return sha256_of(copy)
        finally:
            copy.unlink(missing_ok=True)

    def rename(self, name: str, new: str) -> None:
        self._batch(f"@rename {self._at(name)} {self._at(new)}")

    def delete(self, names: Sequence[str]) -> None:
        self._batch("\n".join(f"@rm {self._at(name)}" for name in names))

    def _at(self, name: str) -> str:
        return f'"{self.place["directory"]}/{name}"'

    def _batch(self, commands: str) -> str:
        place = self.place
        options = {
            "BatchMode": "yes", "IdentitiesOnly": "yes", "IdentityFile": place["key"], "ConnectTimeout": "20",
            "ServerAliveInterval": "15", "StrictHostKeyChecking": "yes", "UserKnownHostsFile": place["known_hosts"],
            "Port": str(place["port"]),
        }  # fmt: skip
        argv = ["sftp", "-q", "-F", "none", "-b", "-"]
        for key, value in options.items():
            argv += ["-o", f"{key}={value}"]
        told = f"the second place {place['host']}:{place['directory']} failed"
        return run([*argv, f"{place['user']}@{place['host']}"], told, commands + "\n")


class BucketPlace:
    """A folder of a bucket, with rclone; its secrets are in rclone's configuration file."""

    def __init__(self, place: Mapping[str, Any]) -> None:
        self.place = place

    def names(self) -> list[str]:
        return [line for line in self._rclone("lsf", "--files-only", self._at("")).splitlines() if line]

    def put(self, source: Path, name: str) -> None:
        self._rclone("copyto", str(source), self._at(name))

    def sha256(self, name: str) -> str:
        with subprocess.Popen(
            self._argv("cat", self._at(name)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as client:
            assert client.stdout is not None
            digest = hash_stream(client.stdout)
        if client.returncode != 0:
            raise BackupError(f"the second place {self.place['path']} does not give {name} back")
        return digest

    def rename(self, name: str, new: str) -> None:
        self._rclone("moveto", self._at(name), self._at(new))

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._rclone("deletefile", self._at(name))

    def _at(self, name: str) -> str:
        return f"second-place:{self.place['path']}/{name}"

    def _rclone(self, *words: str) -> str:
        return run(self._argv("--retries", "1", *words), f"the second place {self.place['path']} failed")

    def _argv(self, *words: str) -> list[str]:
        # Without the second rclone makes the bucket before each copy, which a key for one folder may not.
        return ["rclone", "--config", str(self.place["config"]), "--s3-no-check-bucket", "--log-format", "", *words]


def hash_stream(stream: IO[bytes]) -> str:
    """SHA-256 of what is left of a stream."""
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hash_stream(stream)


def connect(place: Mapping[str, Any], work: Path) -> Place:
    """The place of the configuration; `work` is a directory for a copy that is read back."""
    return SftpPlace(place, work) if place["kind"] == "sftp" else BucketPlace(place)
