"""The steps of each node's repairs, in a file on the controller: a machine that is off can keep none."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.repair.ladder import Step
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json, read_text, write_atomic

SCHEMA = "muster-repair/v1"
# A node of many repairs: the oldest steps go.
MOST_STEPS = 200


@dataclass(frozen=True)
class Ledger:
    """All steps of one node, oldest first."""

    node: str
    steps: tuple[Step, ...] = ()
    schema: str = SCHEMA

    def add(self, step: Step) -> Ledger:
        """With one more step."""
        return replace(self, steps=(*self.steps, step)[-MOST_STEPS:])

    def amend(self, step: Step) -> Ledger:
        """With another last step."""
        return replace(self, steps=(*self.steps[:-1], step))


def path_of(directory: Path, node: str) -> Path:
    """The file of one node."""
    return directory / f"{node}.json"


def read(directory: Path, node: str) -> Ledger:
    """A node's ledger, empty where none was written. Raises GpuBurninError for one that cannot be used."""
    path = path_of(directory, node)
    try:
        ledger = from_json(Ledger, parse_json(read_text(path)))
    except FileNotFoundError:
        return Ledger(node)
    except (OSError, ValueError, Misfit) as error:
        raise GpuBurninError(
            f"{node}: {path} cannot be read ({error}), so that nobody knows which rungs were climbed; repair it or "
            "move it away"
        ) from error
    if (ledger.node, ledger.schema) != (node, SCHEMA):
        raise GpuBurninError(f"{node}: {path} is of {ledger.node} ({ledger.schema}); move it away")
    return ledger


def write(directory: Path, ledger: Ledger) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    path = path_of(directory, ledger.node)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, json.dumps(to_json(ledger), indent=1).encode() + b"\n")
    except OSError as error:
        raise GpuBurninError(
            f"{ledger.node}: {path} cannot be written ({error.strerror}); nothing is done without it"
        ) from error
