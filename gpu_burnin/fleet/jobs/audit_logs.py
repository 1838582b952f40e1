"""The lines of API servers' audit logs that are of one namespace: on their hosts over SSH, or in copies."""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import paramiko

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.model import SshError, Target
from gpu_burnin.fleet.ssh import connect
from gpu_burnin.system import known_hosts as kh

# Where role kube_apiserver has it written, with those that were rotated beside it.
FOLDER, PATTERN = "/var/log/kubernetes", "audit*.log*"
# No request of people is longer; what is left of such a line is passed over as no entry.
_MOST_LINE_BYTES = 4 << 20
_SILENCE_S = 300.0
# grep: none found.
_NONE_FOUND = 1


class NotRead(GpuBurninError):
    """A log that could not be read to its end: said beside what the others have."""


def of_host(target: Target, known: kh.KnownHosts, namespace: str, since: datetime) -> Iterator[bytes]:
    """What the host's logs have of a namespace, filtered there: a fleet writes gigabytes. Raises NotRead."""
    sudo = [] if target.user == "root" else ["sudo", "-n"]
    command = shlex.join([*sudo, *_command(namespace, since)])
    try:
        with connect(target, known) as connection:
            channel = connection.transport.open_session(timeout=_SILENCE_S)
            try:
                channel.settimeout(_SILENCE_S)
                channel.exec_command(command)
                yield from _lines(channel.makefile("rb"))
                said = channel.makefile_stderr("rb").read(4096).decode("utf-8", "replace").strip()
                code = channel.recv_exit_status()
            finally:
                channel.close()
    except (SshError, paramiko.SSHException, EOFError, OSError) as error:
        raise NotRead(f"{target.name}: the audit log cannot be read ({error})") from error
    if said or code not in (0, _NONE_FOUND):
        raise NotRead(f"{target.name}: the audit log cannot be read to its end ({said or f'exit code {code}'})")


def of_file(path: Path, namespace: str) -> Iterator[bytes]:
    """The same of a copy, also .gz. Raises NotRead."""
    mark = _mark(namespace).encode()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from (line for line in _lines(file) if mark in line)
    except (OSError, EOFError) as error:
        raise NotRead(f"{path}: the audit log cannot be read ({error})") from error


def _command(namespace: str, since: datetime) -> list[str]:
    """The newest part of a log that was rotated is as old as its file."""
    newer = ["-newermt", f"@{int(since.timestamp())}"]
    found = ["find", FOLDER, "-maxdepth", "1", "-type", "f", "-name", PATTERN, *newer]
    return [*found, "-exec", "zgrep", "--no-filename", "--text", "--fixed-strings", _mark(namespace), "{}", "+"]


def _mark(namespace: str) -> str:
    return f'"namespace":"{namespace}"'


def _lines(file: object) -> Iterator[bytes]:
    while line := file.readline(_MOST_LINE_BYTES):  # type: ignore[attr-defined]
        yield line
