"""The file of a run: its nodes, how it is planned, and every round with its results. It can be gone on with."""

from __future__ import annotations

import importlib.resources
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import Fabric, Node, Result, Round, Settings, State, View
from gpu_burnin.fleet.fabric.advance import advance
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json, read_bytes, write_atomic
from gpu_burnin.system.prose import listed
from gpu_burnin.system.quantities import count

SCHEMA = "muster-fabric-run/v1"
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Done:
    """A round and what came back."""

    round: Round
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Run:
    """All of it. `id` is its UUID, which stands in what members sign; `left` are nodes that were left out, and why."""

    schema: str
    nodes: tuple[Node, ...]
    settings: Settings = field(default_factory=Settings)
    rounds: tuple[Done, ...] = ()
    id: str = ""
    left: Mapping[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> tuple[str, ...]:
        """The views that were not taken for their member's, a sentence each."""
        results = (result for done in self.rounds for result in done.results)
        return tuple(f"test {one.test}: {name}: {why}" for one in results for name, why in one.refused.items())


def begin(fabric: Fabric, settings: Settings) -> Run:
    """A run without a round."""
    return Run(SCHEMA, fabric.nodes, settings, id=str(uuid.uuid4()))


def read(path: Path) -> Run:
    """The file. Raises GpuBurninError for one that cannot be read or does not agree with itself."""
    try:
        made = from_json(Run, parse_json(read_bytes(path, MOST_BYTES)))
    except FileNotFoundError:
        raise GpuBurninError(f"{path} does not exist; `muster fabric plan --output` begins one") from None
    except (OSError, Misfit, ValueError) as error:
        raise GpuBurninError(f"{path} is no file of `muster fabric plan --output`: {error}") from error
    if made.schema != SCHEMA:
        raise GpuBurninError(f"{path} is {made.schema}, and this muster reads {SCHEMA}; use the muster that wrote it")
    if why := _disagreement(made):
        raise GpuBurninError(f"{path}: {why}; take the file as `muster fabric` wrote it")
    return made


def write(path: Path, made: Run) -> None:
    """Write it whole. Raises GpuBurninError where it cannot be written; the file of before stays."""
    try:
        write_atomic(path, json.dumps(to_json(made), ensure_ascii=False).encode(), mode=0o600)
    except OSError as error:
        raise GpuBurninError(
            f"the run cannot be written to {path} ({error.strerror}); make room or give it rights there, or name "
            "another file"
        ) from error


def read_results(path: Path) -> tuple[Result, ...]:
    """The results of one round, a list. Raises GpuBurninError."""
    try:
        return from_json(tuple[Result, ...], json.loads(read_bytes(path, MOST_BYTES)))
    except (OSError, Misfit, ValueError) as error:
        raise GpuBurninError(f"{path} is no list of results: {error}") from error


def results_schema() -> str:
    """The JSON Schema of what read_results reads, as text."""
    return (importlib.resources.files("gpu_burnin.fleet.fabric") / "schema" / "results-v1.json").read_text()


def with_round(made: Run, done: Round, results: Sequence[Result]) -> Run:
    """With one round more. Raises GpuBurninError for results of other tests or members."""
    members = {test.id: set(test.members) for test in done.tests}
    for result in results:
        if result.test not in members:
            raise GpuBurninError(f"test {result.test} is none of round {done.number}; give the results of that round")
        for signed in result.views:
            if signed.view.member not in members[result.test] or signed.view.test != result.test:
                raise GpuBurninError(
                    f"{signed.view.member}: its view of test {signed.view.test} stands under test {result.test}, "
                    "in which it is no member; give each view under its own test"
                )
            if any(rate is not None and not 0 < rate < math.inf for rate in _rates(signed.view)):
                raise GpuBurninError(
                    f"{signed.view.member}: a bytes_per_s of test {result.test} is no rate; give one above 0, or null"
                )
    return replace(made, rounds=(*made.rounds, Done(done, tuple(results))))


def refuse_incomplete(done: Round, results: Sequence[Result]) -> None:
    """Results that say nothing of a test, not even that nobody answered. Raises GpuBurninError."""
    named = {result.test for result in results}
    if missing := [f"test {test.id}" for test in done.tests if test.id not in named]:
        raise GpuBurninError(
            f"round {done.number} has {count(len(done.tests), 'test')}, and the results say nothing of "
            f"{listed(missing)}; give an entry for each test, with empty views where nobody answered"
        )


def _rates(view: View) -> list[float | None]:
    return [view.bytes_per_s, *(rail.bytes_per_s for rail in view.rails)]


def state_of(made: Run) -> State:
    """What its rounds have shown."""
    state = State(Fabric(made.nodes), made.settings)
    for done in made.rounds:
        state = advance(state, done.round, done.results)
    return state


def _disagreement(made: Run) -> str:
    """What a file that was changed by hand may have wrong; "" where nothing is."""
    if not made.nodes:
        return "it has no nodes"
    names = {node.name for node in made.nodes}
    if len(names) < len(made.nodes):
        return "a node stands twice in nodes"
    for done in made.rounds:
        used: set[str] = set()
        for test in done.round.tests:
            if not test.members or not set(test.members) <= names:
                return f"test {test.id} has members that are none of its nodes"
            if used & set(test.members):
                return f"round {done.round.number} has {min(used & set(test.members))} in two tests"
            used |= set(test.members)
    return ""
