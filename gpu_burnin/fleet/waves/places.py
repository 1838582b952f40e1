"""Workers of a roll: other machines on which its shards run, reached by ssh(1) with a pinned host key."""

from __future__ import annotations

import hashlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves.workers import Workers, workers
from gpu_burnin.system.codec import Misfit, from_json
from gpu_burnin.system.files import parse_json
from gpu_burnin.system.prose import printable

_FORM = re.compile(r"(?P<login>(?:[\w.-]+@)?[\w.-]+)(?::(?P<port>\d{1,5}))?(?:=(?P<most>[1-9]\d{0,3}))?")
_MOST_S = 60
# Each of both, standard output and error: what is more is no answer.
_MOST_ANSWER_BYTES = 64 << 10
# Silence of the other side after which ssh gives up: four times this.
_ALIVE_S = 15
_PROGRAM = "gpu_burnin.fleet.waves.far"
_CODE = ("roles", "playbooks", "collections", "tools")


@dataclass(frozen=True)
class Place:
    """A worker: the login and port, the key for it ("" for ssh's own), and the file with its pinned host key."""

    login: str
    port: int
    key: str
    known_hosts: str

    @property
    def name(self) -> str:
        """How it is named to people."""
        return self.login if self.port == 22 else f"{self.login}:{self.port}"


@dataclass(frozen=True)
class Machine:
    """What a worker says of itself: the digest of its code, and what it has."""

    code: str
    cores: int
    free_bytes: int
    files: int
    home: str


def parse(text: str, key: str, known_hosts: Path) -> tuple[Place, int | None]:
    """`[USER@]HOST[:PORT][=SHARDS]`: the worker, and how many shards it is given at most. Raises GpuBurninError."""
    found = _FORM.fullmatch(text)
    if found is None or not 0 < int(found["port"] or 22) < 65536 or text.startswith("-"):
        raise GpuBurninError(f"--worker {text!r} is no worker; give it as [USER@]HOST[:PORT][=SHARDS]")
    most = int(found["most"]) if found["most"] else None
    return Place(found["login"], int(found["port"] or 22), key, str(known_hosts)), most


def each(texts: Sequence[str], key: str, known_hosts: Path) -> list[tuple[Place, int | None]]:
    """Workers as `parse` has them. Raises GpuBurninError, also where one is given twice, which bears no more for it."""
    found = [parse(text, key, known_hosts) for text in texts]
    names = [place.name for place, _ in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise GpuBurninError(f"the worker {twice} is given twice; give it once")
    return found


def command(place: Place, project: str, *words: str) -> list[str]:
    """ssh(1) that runs Muster of the same path there. Nothing is forwarded, and no unknown host key is believed."""
    options = {
        "BatchMode": "yes",
        "ForwardAgent": "no",
        "ClearAllForwardings": "yes",
        "ControlMaster": "no",
        "ControlPath": "none",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "UserKnownHostsFile": place.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "ConnectTimeout": str(_ALIVE_S),
        "ServerAliveInterval": str(_ALIVE_S),
        "ServerAliveCountMax": "4",
    }
    there = f"cd {shlex.quote(project)} && exec {shlex.join([sys.executable, '-m', _PROGRAM, *words])}"
    return [
        "ssh", "-T", "-p", str(place.port), *(["-i", place.key] if place.key else []),
        *(word for name, value in options.items() for word in ("-o", f"{name}={value}")), place.login, there,
    ]  # fmt: skip


def ask(place: Place, project: str, *words: str) -> str:
    """What a short command there prints. Raises GpuBurninError."""
    # Whatever it prints fills neither memory nor disk.
    limited = ["prlimit", f"--fsize={_MOST_ANSWER_BYTES}", *command(place, project, *words)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            code = subprocess.run(
                limited, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=_MOST_S, check=False
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"not within {_MOST_S} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
            raise GpuBurninError(f"the worker {place.name} does not answer ({why})") from error
        answer, errors = (_text(file) for file in (out, err))
    if code != 0:
        said = "; ".join(printable(line) for line in errors.splitlines()[-3:] if line.strip())
        if code == -signal.SIGXFSZ:
            said = f"it answered with more than {_MOST_ANSWER_BYTES} bytes"
        raise GpuBurninError(
            f"the worker {place.name} cannot be used ({said or f'it ended with {code}'}); it needs its host "
            f"key in {place.known_hosts}, a login by key, and Muster in {project} with {sys.executable}"
        )
    return answer


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def look(place: Place, project: Path) -> Machine:
    """What a worker is. Raises GpuBurninError, also where its code is another than this one's."""
    text = ask(place, str(project), "look", str(project))
    try:
        machine = from_json(Machine, parse_json(text))
    except (ValueError, Misfit) as error:
        why = printable(str(error))
        raise GpuBurninError(f"the worker {place.name} gave an answer that cannot be read ({why})") from error
    if machine.code != (mine := code(project)):
        there = printable(machine.code)
        raise GpuBurninError(
            f"the worker {place.name} has another version: {project} and {sys.executable} have the code "
            f"{there} there and {mine} here; bring the same checkout and the same requirements to both"
        )
    return machine


def bear(machine: Machine, shard_hosts: int, most: int | None, place: Place) -> Workers:
    """How many shards a worker bears, by the bounds of local ones. Raises GpuBurninError where it bears none."""
    try:
        return workers(shard_hosts, machine.cores, machine.free_bytes, machine.files, None, most)
    except GpuBurninError as error:
        raise GpuBurninError(f"the worker {place.name}: {error}") from error


def code(project: Path) -> str:
    """What tells one version from another: a digest of all code that a shard runs, and the versions below it."""
    found = hashlib.sha256()
    below = [f"python {sys.version_info[:2]}", *(f"{one} {version(one)}" for one in ("ansible-core", "ansible-runner"))]
    found.update("\n".join(below).encode())
    package = Path(__file__).parents[2]
    for root, base in ((package, package), *((project / name, project) for name in _CODE)):
        for path in _files(root):
            found.update(f"\n{path.relative_to(base)}\n".encode() + path.read_bytes())
    for path in sorted([*project.glob("*.yml"), project / "ansible.cfg"]):
        found.update(path.read_bytes() if path.is_file() else b"")
    return f"{version('gpu-burnin')}-{found.hexdigest()[:16]}"


def _files(root: Path) -> Iterator[Path]:
    ends: Sequence[str] = (".py", ".yml", ".yaml", ".j2", ".json", ".cfg", ".toml", ".txt", ".sh")
    return iter(sorted(p for p in root.rglob("*") if p.suffix in ends and p.is_file() and "__pycache__" not in p.parts))
