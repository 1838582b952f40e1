"""What the run is about and how far each host is, in files on the controller, written before each step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from gpu_burnin.api.record import Ask
from gpu_burnin.fleet.roll.documents import SCHEMA, read, write
from gpu_burnin.system.codec import to_json

_RUN = "run.json"
_HOSTS = "hosts"


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


def entries(directory: Path) -> dict[str, Entry]:
    """The newest entry of each host. Raises GpuBurninError for one that cannot be used."""
    return {path.stem: read_entry(directory, path.stem) for path in sorted((directory / _HOSTS).glob("*.json"))}


def read_entry(directory: Path, node: str) -> Entry:
    """Raises GpuBurninError."""
    return read(Entry, directory / _HOSTS / f"{node}.json")


def write_entry(directory: Path, entry: Entry) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    write(directory / _HOSTS / f"{entry.node}.json", to_json(entry))


def read_run(directory: Path) -> Run:
    """The newest run. Raises GpuBurninError."""
    return read(Run, directory / _RUN)


def write_run(directory: Path, run: Run) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    write(directory / _RUN, to_json(run))
