"""What the run is about and how far each host is, in files on the controller, written before each step."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from gpu_burnin.api.record import Ask
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json, read_text, write_atomic

SCHEMA = "muster-driver-upgrade/v1"
_RUN = "run.json"
_HOSTS = "hosts"
_LOCK = "lock.json"
_T = TypeVar("_T", "Run", "Entry", "Lock")


class Step(StrEnum):
    """What was begun last."""

    DRAIN = "drain"
    DRIVER = "driver"
    TEST = "test"
    ADMIT = "admit"


class Outcome(StrEnum):
    """How it ended. Given back: nothing was done to the host, and it works on as before."""

    UNDER_WAY = "under way"
    DONE = "done"
    GIVEN_BACK = "given back"
    FAILED = "failed"


@dataclass(frozen=True)
class Asked:
    """An ask that is ours: `kind` is quarantine or repair."""

    kind: str
    ask: Ask


@dataclass(frozen=True)
class Entry:
    """One host. `before` and `wanted` are driver versions; `run` is the id of the run that it is of.

    `asks` are all that may stand in its NodeAdmission for us: each is here before it is there.
    """

    node: str
    run: str
    before: str
    wanted: str
    started_at: str
    step: Step = Step.DRAIN
    outcome: Outcome = Outcome.UNDER_WAY
    why: str = ""
    asks: tuple[Asked, ...] = ()
    ended_at: str = ""
    schema: str = SCHEMA

    @property
    def open(self) -> bool:
        """Whether the host is out of work for us: a run was lost, or has failed on it."""
        return self.outcome in (Outcome.UNDER_WAY, Outcome.FAILED)

    def ours(self, kind: str, ask: Ask | None) -> bool:
        """Whether an ask is one of ours."""
        return ask is not None and Asked(kind, ask) in self.asks

    def end(self, outcome: Outcome, why: str, at: str) -> Entry:
        """With its end."""
        return replace(self, outcome=outcome, why=why, ended_at=at)


@dataclass(frozen=True)
class Left:
    """A host of the run that is not touched, and why."""

    node: str
    why: str
    as_asked: bool = False


@dataclass(frozen=True)
class Run:
    """One call of the playbook: `hosts` in their order, `batches` how many of them at a time."""

    id: str
    wanted: str
    hosts: tuple[str, ...]
    batches: tuple[int, ...]
    left: tuple[Left, ...] = ()
    schema: str = SCHEMA


@dataclass(frozen=True)
class Owner:
    """A process that nothing else is taken for: its machine, the boot, its id, and when it began in clock ticks."""

    machine: str
    boot_id: str
    pid: int
    began_ticks: int


@dataclass(frozen=True)
class Lock:
    """Who runs what, since when, in which process. `what` goes on from who, such as "upgrades drivers"."""

    who: str
    since: str
    owner: Owner
    what: str = "upgrades drivers"
    schema: str = SCHEMA


def entries(directory: Path) -> dict[str, Entry]:
    """The newest entry of each host. Raises GpuBurninError for one that cannot be used."""
    return {path.stem: read_entry(directory, path.stem) for path in sorted((directory / _HOSTS).glob("*.json"))}


def read_entry(directory: Path, node: str) -> Entry:
    """Raises GpuBurninError."""
    return _read(Entry, directory / _HOSTS / f"{node}.json")


def write_entry(directory: Path, entry: Entry) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    _write(directory / _HOSTS / f"{entry.node}.json", to_json(entry))


def read_run(directory: Path) -> Run:
    """The newest run. Raises GpuBurninError."""
    return _read(Run, directory / _RUN)


def write_run(directory: Path, run: Run) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    _write(directory / _RUN, to_json(run))


def lock_path(directory: Path) -> Path:
    """Where the lock of a run is."""
    return directory / _LOCK


def read_lock(directory: Path) -> Lock | None:
    """The lock, None where nobody has it. Raises GpuBurninError."""
    return _read(Lock, lock_path(directory)) if lock_path(directory).exists() else None


def write_lock(directory: Path, lock: Lock) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    _write(lock_path(directory), to_json(lock))


def _read(kind: type[_T], path: Path) -> _T:
    try:
        found = from_json(kind, parse_json(read_text(path)))
    except (OSError, ValueError, Misfit) as error:
        raise GpuBurninError(
            f"{path} cannot be read ({error}), so nobody knows what was begun; repair it, or move it away and look at "
            "`muster status`"
        ) from error
    if found.schema != SCHEMA:
        raise GpuBurninError(f"{path} is of schema {found.schema}; move it away")
    return found


def _write(path: Path, document: Any) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document, indent=1).encode() + b"\n")
    except OSError as error:
        raise GpuBurninError(f"{path} cannot be written ({error.strerror}); nothing is done without it") from error
