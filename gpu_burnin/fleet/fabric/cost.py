"""What tests cost: seconds, rounds and node-minutes, by the times that the settings assume. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_burnin.fabric.model import Fabric, Kind, Round, Settings, Test, Through
from gpu_burnin.fabric.standing import PROVEN_PASSES
from gpu_burnin.fleet.fabric.pairing import xor_keys

# A leaf of fewer is a pair, which was tested.
LEAST_GROUP = 3


@dataclass(frozen=True)
class Stage:
    """Rounds of one kind: how many, how long they take, how many nodes are in them for how long together."""

    name: str
    rounds: int
    seconds: float
    node_s: float


@dataclass(frozen=True)
class Cost:
    """What a plan costs where nothing fails, and what each node that fails costs more, about."""

    stages: tuple[Stage, ...]
    more_rounds: int
    more_node_s: float

    @property
    def rounds(self) -> int:
        """All rounds where nothing fails."""
        return sum(stage.rounds for stage in self.stages)

    @property
    def seconds(self) -> float:
        """How long they take, one after the other."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def node_s(self) -> float:
        """Seconds of nodes at test."""
        return sum(stage.node_s for stage in self.stages)


def seconds_of(test: Test, settings: Settings) -> float:
    """How long a test keeps its members, as the settings assume."""
    whole = settings.pair_s if test.kind in (Kind.PAIR, Kind.RAIL) else settings.group_s
    return settings.start_s + whole + settings.rail_s * len(test.rails)


def seconds_of_round(made: Round, settings: Settings) -> float:
    """As long as its longest test."""
    return max((seconds_of(test, settings) for test in made.tests), default=0.0)


def forecast(fabric: Fabric, settings: Settings) -> Cost:
    """The cost before it begins."""
    leaves = {leaf: names for leaf, names in fabric.leaves.items() if leaf}
    rails = _single_rails(fabric)
    pair_s = settings.start_s + settings.pair_s
    group_s = settings.start_s + settings.group_s + settings.rail_s * rails
    paired = sum(len(names) for names in fabric.leaves.values() if len(names) > 1)
    stages = [_stage("pairs in each leaf", settings.pairings if paired else 0, pair_s, paired)]
    if settings.through is not Through.NODES:
        large = [len(names) for names in leaves.values() if len(names) >= LEAST_GROUP]
        stages.append(_stage("whole leaves, by rail", 1 if large else 0, group_s, sum(large)))
    if settings.through is Through.SPINES:
        keys = xor_keys(len(leaves), PROVEN_PASSES, every_pair=settings.every_pair_of_leaves)
        met = sum(_meeting(tuple(map(len, leaves.values())), key) for key in keys)
        stages.append(Stage("pairs of leaves", len(keys), len(keys) * group_s, met * group_s))
    probe_s = settings.start_s + settings.pair_s + settings.rail_s * rails
    # It, and the partner of each of its pairs: each is tested again with as many proven partners.
    suspects = 1 + settings.pairings
    return Cost(tuple(stages), settings.enough, suspects * settings.enough * 2 * probe_s)


def _stage(name: str, rounds: int, seconds: float, nodes: int) -> Stage:
    return Stage(name, rounds, rounds * seconds, rounds * seconds * nodes)


def _single_rails(fabric: Fabric) -> int:
    """How many rails are tested one by one; of a single rail that says no more."""
    most = max((len(node.rails) for node in fabric.nodes), default=0)
    return most if most > 1 else 0


def _meeting(sizes: Iterable[int], key: int) -> int:
    known = tuple(sizes)
    return sum(size for index, size in enumerate(known) if index ^ key < len(known))
