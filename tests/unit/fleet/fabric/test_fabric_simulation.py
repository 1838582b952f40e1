"""Faults that are known, with noise, against what is named: a small version of `python -m tests.bench.fabric`."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from gpu_burnin.fabric.claim import Cause, Part
from gpu_burnin.fabric.model import Fabric, Settings, Through
from gpu_burnin.fleet.fabric import planner
from tests.bench.fabric.draw import OF_A_LEAF, OF_A_NODE, fault, many
from tests.bench.fabric.simulate import Fault, Outcomes, simulate, site, usual_rates

SITES = {
    "leaves of 16": site(64, leaf=16, rails=4, leaves_of_spine=2),
    "odd leaves": site(41, leaf=8, rails=1, leaves_of_spine=2, odd=True),
    "a node in each leaf": site(17, leaf=1, rails=1, leaves_of_spine=4),
}


def runs_of(fabric: Fabric, faults: Sequence[Fault], seeds: range, settings: Settings | None = None) -> list[Outcomes]:
    return [simulate(fabric, faults, seed, settings) for seed in seeds]


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("part", [*OF_A_NODE, *OF_A_LEAF])
def test_a_fault_of_each_kind_is_named_and_nothing_else(name: str, part: Part) -> None:
    fabric = SITES[name]
    rails = len(fabric.nodes[0].rails)
    settings = Settings(usual=usual_rates(rails), every_pair_of_leaves=part is Part.RULE)
    for seed in range(2):
        rng = random.Random(f"{name} {part} {seed}")
        made = simulate(fabric, [fault(rng, fabric, part)], seed, settings)
        assert (made.named, made.false) == (1, ())


@pytest.mark.parametrize(("nodes", "narrowed"), [(2, 1), (3, 0)])
def test_two_nodes_are_not_told_apart_and_three_are(nodes: int, narrowed: int) -> None:
    fabric = site(nodes, rails=2)
    for made in runs_of(fabric, [Fault(Cause(Part.NODE, "gpu-0002"))], range(5)):
        assert (made.narrowed, made.named, made.false) == (narrowed, 1 - narrowed, ())


def test_clean_fleets_have_no_false_name() -> None:
    for fabric in SITES.values():
        for made in runs_of(fabric, (), range(10)):
            assert (made.false, made.left) == ((), 0)


def test_one_bad_node_of_a_hundred_each_is_found_in_a_large_fleet() -> None:
    fabric = site(500, rails=4)
    faults = list(many(random.Random(7), fabric, OF_A_NODE, 5))
    made = simulate(fabric, faults, 7, Settings(through=Through.NODES))
    assert (made.named, made.first, made.false) == (5, 5, ())
    # Of 500 nodes two tests each, and three or so of each of 15 suspects: not every pair.
    assert made.node_tests < 1250


def test_without_the_rule_of_proven_partners_sound_nodes_would_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = site(16, leaf=16, rails=1)
    faults = [Fault(Cause(Part.NODE, f"gpu-000{number}")) for number in (1, 2, 3)]
    settings = Settings(through=Through.NODES)
    assert not any(made.false for made in runs_of(fabric, faults, range(5), settings))

    def anyone(self: planner._Partners, name: str) -> str:
        had = self.state.nodes[name].partners
        leaf = self.state.fabric.leaves[self.state.fabric.by_name[name].leaf]
        return next(other for other in leaf if other != name and other not in had)

    monkeypatch.setattr(planner._Partners, "take", anyone)
    assert all(made.false for made in runs_of(fabric, faults, range(5), settings))


def test_with_one_failure_to_name_there_would_be_false_names() -> None:
    """What three of five are for: noise alone names nobody."""
    fabric = site(256, rails=1)
    hasty = Settings(through=Through.NODES, enough=1)
    noise = {"false_fail": 0.02}
    assert sum(len(simulate(fabric, (), seed, hasty, **noise).false) for seed in range(10)) > 0
    careful = Settings(through=Through.NODES)
    assert sum(len(simulate(fabric, (), seed, careful, **noise).false) for seed in range(10)) == 0


def test_more_pairings_find_more_of_what_comes_and_goes() -> None:
    fabric = site(128, rails=1)
    faults = list(many(random.Random(3), fabric, OF_A_NODE, 8, share=0.2))

    def noticed(pairings: int) -> int:
        settings = Settings(through=Through.NODES, pairings=pairings)
        return sum(made.named + made.doubtful for made in runs_of(fabric, faults, range(6), settings))

    few, many_ = noticed(2), noticed(12)
    assert few < many_ and many_ > 0.8 * 6 * 8
