"""Nodes and their places, rounds of tests, and what members sign of them: values that cross the border to an executor.

An executor takes a Round and gives a Result for each of its tests. How it meets the members is its own matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from gpu_burnin.api.fabric_view import Outcome as Outcome
from gpu_burnin.api.fabric_view import RailView as RailView
from gpu_burnin.api.rendezvous import Kind as Kind
from gpu_burnin.api.rendezvous import Nic as Nic


@dataclass(frozen=True, slots=True)
class Node:
    """A node and where it stands. `model` is that of its GPUs: rates are held against those of the same."""

    name: str
    leaf: str
    rack: str = ""
    spine: str = ""
    feed: str = ""
    model: str = ""
    nics: tuple[Nic, ...] = ()

    @property
    def rails(self) -> tuple[int, ...]:
        """The rails on which it has a NIC."""
        return tuple(sorted({nic.rail for nic in self.nics}))


@dataclass(frozen=True)
class Fabric:
    """The nodes that are to be tested."""

    nodes: tuple[Node, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Each node."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def leaves(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes of each leaf, in the order in which they were given; under "" those without one."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            found.setdefault(node.leaf, []).append(node.name)
        return {leaf: tuple(names) for leaf, names in found.items()}

    @cached_property
    def spine_of(self) -> Mapping[str, str]:
        """The spine of each leaf: that of its first node."""
        return {leaf: self.by_name[names[0]].spine for leaf, names in self.leaves.items()}


class Purpose(StrEnum):
    """Why a test is run."""

    PAIRS = "pairs"
    CATCH_UP = "catch-up"
    PROBE = "probe"
    CONTROL = "control"
    AMONG = "among suspects"
    LEAF = "leaf"
    HALVES = "halves of a leaf"
    XOR = "across leaves"
    LEAF_PROBE = "leaf probe"
    LEAF_AMONG = "among suspect leaves"
    PATH = "path"
    QUARTERS = "halves of two leaves"


@dataclass(frozen=True, slots=True)
class Test:
    """One collective. `units` are what it is about: nodes, or leaves.

    `suspect` is the one of them that a failure counts against; "" where it counts against all. `rails` are those that
    are tested one by one after all together.
    """

    __test__ = False  # not pytest's

    id: int
    kind: Kind
    purpose: Purpose
    members: tuple[str, ...]
    units: tuple[str, ...]
    suspect: str = ""
    rails: tuple[int, ...] = ()


@dataclass(frozen=True)
class Round:
    """Tests that share no node, and so run side by side."""

    number: int
    tests: tuple[Test, ...]


@dataclass(frozen=True)
class End:
    """No test is left. `why` says so where it is for another reason."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What one member of a test has found itself: all rails together, and each rail that was tested alone."""

    test: int
    member: str
    version: str
    outcome: Outcome
    bytes_per_s: float | None = None
    rails: tuple[RailView, ...] = ()


@dataclass(frozen=True, slots=True)
class SignedView:
    """A view with its member's signature. The executor verifies it; here it is kept."""

    view: View
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """All views of a test that came in time. `rebooted` are members whose boot id is another than when it began.

    `absent` are members that could not take part for a reason that is none of the fabric's, each with it; `refused` are
    those whose view was not taken for theirs: they are silent.
    """

    test: int
    views: tuple[SignedView, ...]
    rebooted: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


class Through(StrEnum):
    """How far a plan goes."""

    NODES = "nodes"
    LEAVES = "leaves"
    SPINES = "spines"


@dataclass(frozen=True)
class Settings:
    """How a plan is made and judged. The times are assumptions, by which the cost is computed; `pair_s`, `group_s` and
    `size_bytes` are what `muster fabric run` has the members do.

    `pairings`: so often each node is tested with another one of its leaf.

    A suspect is named after `enough` failures with proven partners, and cleared after as many passes. A rate is slow
    `slow_share` under its peers' median, or more where they spread wider; of fewer than `least_peers` nothing is said.
    `usual` has rates of an earlier run by what is alike in them: where peers are few, or most of them slow.
    """

    through: Through = Through.SPINES
    every_pair_of_leaves: bool = False
    pairings: int = 2
    enough: int = 3
    most_retries: int = 3
    most_rounds: int = 400
    slow_share: float = 0.10
    least_peers: int = 8
    controls: int = 8
    usual: Mapping[str, float] = field(default_factory=dict)
    start_s: float = 20.0
    pair_s: float = 30.0
    group_s: float = 45.0
    rail_s: float = 10.0
    size_bytes: int = 64 << 20


# All rails together; a rail's own number is 0 or more.
ALL = -1


class Found(StrEnum):
    """What a test comes to; of failures the gravest of its members' first."""

    WRONG = "wrong data"
    MTU = "large messages are lost"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    STALLED = "stalled"
    SLOW = "slow"
    SPOILED = "inconclusive"
    PASS = "pass"


@dataclass(frozen=True, slots=True)
class Judged:
    """A test that was run. `by_scope`: ALL, and each rail alone. `why` says what spoiled it, or who was silent."""

    test: Test
    by_scope: Mapping[int, Found]
    bytes_per_s: float | None = None
    why: str = ""
    loopback_failed: tuple[tuple[str, int], ...] = ()
    loopback_passed: tuple[tuple[str, int], ...] = ()

    @property
    def found(self) -> Found:
        """All rails together."""
        return self.by_scope[ALL]


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a node, a leaf, a leaf under load, or a path between two leaves.

    `passes`, `failures` and `spoiled` are of tests with partners who were not proven, and `earlier` counts failures
    before it was cleared and failed anew; `probes` has passes and failures
    by scope with proven ones, and `partners` who they were; `among` those with each other suspect; `as_partner` those
    in which it was the proven one, in its leaf. `causes` counts what failures were, by scope; `tests` has their ids.
    """

    passes: int = 0
    failures: int = 0
    spoiled: int = 0
    earlier: int = 0
    probes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    among: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    as_partner: tuple[int, int] = (0, 0)
    partners: tuple[str, ...] = ()
    causes: Mapping[tuple[int, Found], int] = field(default_factory=dict)
    tests: tuple[int, ...] = ()
    why: str = ""
    loopback: Mapping[int, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """Everything that rounds have shown so far. `references` are the rates that others are held against."""

    fabric: Fabric
    settings: Settings = field(default_factory=Settings)
    rounds: int = 0
    tests: int = 0
    node_tests: int = 0
    node_s: float = 0.0
    by_purpose: Mapping[Purpose, int] = field(default_factory=dict)
    nodes: Mapping[str, Standing] = field(default_factory=dict)
    groups: Mapping[str, Standing] = field(default_factory=dict)
    leaves: Mapping[str, Standing] = field(default_factory=dict)
    paths: Mapping[tuple[str, str], Standing] = field(default_factory=dict)
    # By leaf, or by pair of leaves: the members of each part, and what it came to.
    parts: Mapping[tuple[str, ...], tuple[tuple[tuple[str, ...], Found], ...]] = field(default_factory=dict)
    references: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
