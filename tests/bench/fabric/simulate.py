"""A fabric whose faults are known: an executor for its rounds, and whether the claims name what is there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpu_burnin.fabric.claim import Cause, Claim, Part
from gpu_burnin.fabric.model import (
    ALL,
    Fabric,
    Nic,
    Node,
    Outcome,
    RailView,
    Result,
    Round,
    Settings,
    SignedView,
    State,
    Test,
    View,
)
from gpu_burnin.fleet.fabric.claims import claims, cleared_nodes, undecided_nodes, untested_nodes
from gpu_burnin.fleet.fabric.judge import key_of
from gpu_burnin.fleet.fabric.run import run

FALSE_FAIL, FALSE_PASS = 0.002, 0.02
# A share of the healthy rate that one test differs from the next by, and what a slow part leaves of it.
JITTER, SLOW = 0.02, 0.6
RATE = 4e11


@dataclass(frozen=True)
class Fault:
    """A fault. `outcome` OK: it is slow. `share`: of the tests through it, in so many it shows; 1 is a constant one."""

    cause: Cause
    outcome: Outcome = Outcome.WRONG
    share: float = 1.0

    def touches(self, fabric: Fabric, test: Test, scope: int) -> bool:
        """Whether a test, all rails of it or one, goes through what is faulty."""
        part, name, rail = self.cause.part, self.cause.name, self.cause.rail
        if rail is not None and scope not in (ALL, rail):
            return False
        if part in (Part.NODE, Part.NIC, Part.CABLE, Part.PORT):
            return name in test.members
        leaves = {fabric.by_name[member].leaf for member in test.members}
        if part is Part.LEAF:
            return name in leaves
        if len(leaves) < 2:
            return False
        if part is Part.UPLINK:
            return name in leaves
        if part is Part.SPINE:
            return name in {fabric.spine_of[leaf] for leaf in leaves}
        return set(name.removeprefix("between ").split(" and ")) <= leaves


@dataclass
class Simulation:
    """The executor. `silent` members never answer; `reboots` and `versions` are of the round, or of the member."""

    fabric: Fabric
    faults: Sequence[Fault]
    rng: random.Random
    false_fail: float = FALSE_FAIL
    false_pass: float = FALSE_PASS
    silent: frozenset[str] = frozenset()
    reboots: dict[int, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of: dict[str, list[Fault]] = {}
        for fault in self.faults:
            for name in _reached(self.fabric, fault.cause):
                self._of.setdefault(name, []).append(fault)

    def __call__(self, made: Round) -> Iterator[Result]:
        for test in made.tests:
            yield self._result(made, test)

    def _result(self, made: Round, test: Test) -> Result:
        if (gone := self.reboots.get(made.number)) in test.members and gone:
            return Result(test.id, (), (gone,))
        near = list({id(fault): fault for name in test.members for fault in self._of.get(name, ())}.values())
        outcome, rate = self._scope(test, ALL, near)
        found = [(rail, *self._scope(test, rail, near)) for rail in test.rails]
        failed = {(f.cause.name, f.cause.rail) for f in near if f.cause.part is Part.NIC and f.share == 1}
        views = tuple(
            SignedView(
                View(
                    test.id,
                    member,
                    self.versions.get(member, "1.0"),
                    outcome,
                    rate,
                    tuple(RailView(rail, what, speed, (member, rail) not in failed) for rail, what, speed in found),
                )
            )
            for member in test.members
            if member not in self.silent
        )
        return Result(test.id, views)

    def _scope(self, test: Test, scope: int, near: Sequence[Fault]) -> tuple[Outcome, float]:
        draw = self.rng.random
        rate = RATE * (1 + self.rng.gauss(0, JITTER)) / (1 if scope == ALL else max(1, len(test.rails)))
        outcome = Outcome.OK
        for fault in near:
            if fault.touches(self.fabric, test, scope) and draw() < fault.share * (1 - self.false_pass):
                if fault.outcome is Outcome.OK:
                    rate *= SLOW
                else:
                    outcome = fault.outcome
        if outcome is Outcome.OK and draw() < self.false_fail:
            outcome, rate = (Outcome.WRONG, rate) if draw() < 0.5 else (outcome, rate * SLOW)
        return outcome, rate


@dataclass(frozen=True)
class Outcomes:
    """What a run has made of the faults that are there: named, narrowed to some causes, or missed; and false names.

    `first` are those whose cause stands first in its claim; `doubtful` those of nodes that were cleared.
    """

    faults: int
    named: int
    first: int
    narrowed: int
    missed: int
    false: tuple[Claim, ...]
    left: int
    rounds: int
    node_tests: int
    node_minutes: float
    doubtful: int


def site(nodes: int, *, leaf: int = 32, rails: int = 8, leaves_of_spine: int = 8, odd: bool = False) -> Fabric:
    """A fabric of so many nodes. `odd`: its leaves have an odd number, and the last what is left."""
    size = leaf - 1 if odd and leaf > 2 else leaf
    made = []
    for number in range(nodes):
        of = number // size
        made.append(
            Node(
                f"gpu-{number + 1:04}",
                f"leaf-{of + 1}",
                rack=f"r{number // 4 + 1}",
                spine=f"spine-{of // leaves_of_spine + 1}",
                model="H200",
                nics=tuple(Nic(rail, f"10.{rail}.{number // 250}.{number % 250 + 1}") for rail in range(rails)),
            )
        )
    return Fabric(tuple(made))


def simulate(
    fabric: Fabric,
    faults: Sequence[Fault],
    seed: int,
    settings: Settings | None = None,
    **noise: float,
) -> Outcomes:
    """One whole run."""
    executor = Simulation(fabric, faults, random.Random(seed), **noise)  # type: ignore[arg-type]
    state, _ = run(State(fabric, settings or Settings()), executor)
    return compare(state, faults)


def compare(state: State, faults: Sequence[Fault]) -> Outcomes:
    """The claims against the truth."""
    made = claims(state)
    there = {fault.cause for fault in faults}
    named = {cause for claim in made if claim.sure for cause in claim.causes}
    narrowed = _with_links({cause for claim in made for cause in claim.causes}, there) - named
    first = {claim.causes[0] for claim in made if claim.sure}
    return Outcomes(
        len(there),
        len(there & named),
        len(there & first),
        len(there & narrowed),
        len(there - named - narrowed),
        tuple(claim for claim in made if not there & _with_links(set(claim.causes), there)),
        len(undecided_nodes(state)) + len(untested_nodes(state)),
        state.rounds,
        state.node_tests,
        state.node_s / 60,
        len({cause.name for cause in there - named - narrowed} & set(cleared_nodes(state))),
    )


def usual_rates(rails: int, model: str = "H200") -> dict[str, float]:
    """What an earlier run would have shown of this site."""
    levels = ("pair of 2", "pair of 3", "group", "leaves")
    of_scope = {ALL: RATE, 0: RATE / rails}
    return {
        key_of(level, scope, [model], across=across): rate
        for level in levels
        for scope, rate in of_scope.items()
        for across in (False, True)
    }


def _with_links(causes: set[Cause], there: set[Cause]) -> set[Cause]:
    """With the links of nodes that a claim leaves open: a node stands for them there."""
    nodes = {cause.name for cause in causes if cause.part is Part.NODE and cause.rail is None}
    return causes | {cause for cause in there if cause.part in (Part.NIC, Part.CABLE) and cause.name in nodes}


def _reached(fabric: Fabric, cause: Cause) -> Sequence[str]:
    """The nodes whose tests may go through a part."""
    if cause.part in (Part.NODE, Part.NIC, Part.CABLE, Part.PORT):
        return (cause.name,)
    if cause.part is Part.SPINE:
        return [node.name for node in fabric.nodes if node.spine == cause.name]
    leaves = cause.name.removeprefix("between ").split(" and ")
    return [name for leaf in leaves for name in fabric.leaves.get(leaf, ())]
