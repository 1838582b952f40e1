"""The rounds of a run: disjoint, of everyone, of bounded number, and what bad results do to them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpu_burnin.fabric.claim import Cause, Part
from gpu_burnin.fabric.model import Fabric, Kind, Outcome, Purpose, Round, Settings, State, Test, Through
from gpu_burnin.fleet.fabric.claims import claims, cleared_nodes, undecided_nodes, untested_nodes
from gpu_burnin.fleet.fabric.cost import forecast
from gpu_burnin.fleet.fabric.planner import next_round
from gpu_burnin.fleet.fabric.run import run
from tests.bench.fabric.draw import OF_A_NODE, many
from tests.bench.fabric.simulate import Fault, Simulation, site, usual_rates


def quiet(fabric: Fabric, *faults: Fault, **bad: object) -> Simulation:
    """Without noise: what is wrong always shows, and nothing else does."""
    return Simulation(fabric, faults, random.Random(1), false_fail=0, false_pass=0, **bad)  # type: ignore[arg-type]


def rounds_of(fabric: Fabric, executor: Simulation, settings: Settings | None = None) -> tuple[State, list[Round]]:
    made: list[Round] = []
    state, _ = run(State(fabric, settings or Settings()), executor, lambda one, _: made.append(one))
    return state, made


def chosen_tests(rounds: Sequence[Round], chosen: Callable[[Test], bool]) -> list[Test]:
    return [test for made in rounds for test in made.tests if chosen(test)]


@pytest.mark.parametrize("nodes", [2, 3, 5, 9, 16, 41, 130])
@pytest.mark.parametrize("bad", [0, 1, 3])
def test_no_node_is_in_two_tests_of_a_round_and_none_is_left_out(nodes: int, bad: int) -> None:
    fabric = site(nodes, leaf=8, rails=2, leaves_of_spine=3)
    faults = list(many(random.Random(nodes), fabric, OF_A_NODE, min(bad, nodes)))
    executor = Simulation(fabric, faults, random.Random(bad))
    state, rounds = rounds_of(fabric, executor)
    for made in rounds:
        members = Counter(name for test in made.tests for name in test.members)
        assert max(members.values()) == 1
    assert {name for test in rounds[0].tests for name in test.members} | set(_alone(fabric)) == set(fabric.by_name)
    assert untested_nodes(state) == {}
    assert len({test.id for made in rounds for test in made.tests}) == state.tests
    assert state.rounds < 60


def _alone(fabric: Fabric) -> list[str]:
    return [names[0] for names in fabric.leaves.values() if len(names) == 1]


def test_a_sound_fleet_costs_what_was_said_before_it_began() -> None:
    fabric = site(96, rails=8)
    for through in Through:
        settings = Settings(through=through)
        state, rounds = rounds_of(fabric, quiet(fabric), settings)
        cost = forecast(fabric, settings)
        assert state.rounds == len(rounds) == cost.rounds
        assert state.node_s == pytest.approx(cost.node_s)


def test_a_plan_for_7500_nodes_is_there_in_5_seconds() -> None:
    fabric = site(7500)
    began_s = time.process_time()
    cost, first = forecast(fabric, Settings()), next_round(State(fabric))
    assert time.process_time() - began_s < 5
    assert isinstance(first, Round) and len(first.tests) == 3750 and cost.rounds < 20


def test_a_suspect_is_tested_with_three_proven_partners_and_named_alone() -> None:
    fabric = site(16, leaf=16, rails=4)
    state, rounds = rounds_of(fabric, quiet(fabric, Fault(Cause(Part.NODE, "gpu-0005"))))
    probes = chosen_tests(rounds, lambda test: test.suspect == "gpu-0005")
    suspects = {test.suspect for test in chosen_tests(rounds, lambda test: test.purpose is Purpose.PROBE)}
    assert suspects == {"gpu-0004", "gpu-0005", "gpu-0006"}
    assert len({test.members for test in probes}) == len(probes) == 3
    [claim] = claims(state)
    assert claim.causes == (Cause(Part.NODE, "gpu-0005"),) and claim.nodes == ("gpu-0005",)
    assert cleared_nodes(state) == ("gpu-0004", "gpu-0006")


def test_a_proven_partner_is_never_blamed() -> None:
    """Those with whom the bad one failed later have no failure of their own."""
    fabric = site(16, leaf=16, rails=4)
    state, rounds = rounds_of(fabric, quiet(fabric, Fault(Cause(Part.NODE, "gpu-0005"))))
    for test in chosen_tests(rounds, lambda test: test.suspect == "gpu-0005"):
        (partner,) = set(test.members) - {"gpu-0005"}
        assert (state.nodes[partner].failures, dict(state.nodes[partner].probes)) == (0, {})


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_where_all_fail_nobody_is_named(nodes: int) -> None:
    fabric = site(nodes, rails=2)
    faults = [Fault(Cause(Part.NODE, node.name)) for node in fabric.nodes]
    state, rounds = rounds_of(fabric, quiet(fabric, *faults))
    [claim] = claims(state)
    assert {Cause(Part.NODE, name) for name in fabric.by_name} < set(claim.causes)
    assert claim.sure is (nodes == 8), "of many nodes of one leaf, the leaf comes first"
    assert set(undecided_nodes(state)) == set(fabric.by_name) and len(rounds) < 20


def test_one_node_has_nothing_to_be_tested_with() -> None:
    state, rounds = rounds_of(site(1), quiet(site(1)))
    assert rounds == [] and untested_nodes(state) == {"gpu-0001": "there is no other node"}


def test_a_node_alone_in_its_leaf_is_tested_with_other_leaves() -> None:
    fabric = site(33, leaf=16, rails=1, leaves_of_spine=4)
    state, rounds = rounds_of(fabric, quiet(fabric, Fault(Cause(Part.NODE, "gpu-0033"))))
    assert "gpu-0033" not in {name for test in rounds[0].tests for name in test.members}
    [claim] = claims(state)
    assert claim.causes[0] == Cause(Part.NODE, "gpu-0033") and Cause(Part.LEAF, "leaf-3") in claim.causes
    fewer, _ = rounds_of(fabric, quiet(fabric), Settings(through=Through.NODES))
    assert untested_nodes(fewer) == {"gpu-0033": "it is alone in its leaf, and is tested with other leaves"}


def test_nodes_without_a_leaf_are_tested_in_pairs_and_no_switch_is_named() -> None:
    fabric = Fabric(tuple(replace(node, leaf="") for node in site(12, rails=2).nodes))
    state, rounds = rounds_of(fabric, quiet(fabric, Fault(Cause(Part.NODE, "gpu-0004"))))
    assert {test.kind for made in rounds for test in made.tests} == {Kind.PAIR, Kind.RAIL}
    assert [claim.causes for claim in claims(state)] == [(Cause(Part.NODE, "gpu-0004"),)]
    assert forecast(fabric, Settings()).rounds == 2
    every, _ = rounds_of(fabric, quiet(fabric, *(Fault(Cause(Part.NODE, node.name)) for node in fabric.nodes)))
    [claim] = claims(every)
    assert not claim.sure and {cause.part for cause in claim.causes} == {Part.NODE}


def test_a_reboot_in_mid_test_is_no_failure_and_the_test_comes_again() -> None:
    fabric = site(8, leaf=8, rails=1)
    state, rounds = rounds_of(fabric, quiet(fabric, reboots={1: "gpu-0003"}))
    again = chosen_tests(rounds, lambda test: test.purpose is Purpose.CATCH_UP)
    assert {test.suspect for test in again} == {"gpu-0003", "gpu-0004"}
    assert claims(state) == () and untested_nodes(state) == {}


def test_another_version_is_no_failure_and_is_told() -> None:
    fabric = site(8, leaf=8, rails=1)
    state, rounds = rounds_of(fabric, quiet(fabric, versions={"gpu-0003": "0.9"}))
    assert claims(state) == () and len(rounds) < 12
    [(name, why)] = untested_nodes(state).items()
    assert name == "gpu-0003" and "0.9 on gpu-0003" in why


def test_a_silent_node_is_named_and_its_partners_are_not() -> None:
    fabric = site(16, leaf=16, rails=4)
    state, _ = rounds_of(fabric, quiet(fabric, silent=frozenset({"gpu-0007"})))
    [claim] = claims(state)
    assert claim.causes[0] == Cause(Part.NODE, "gpu-0007") and claim.found == "silent"
    assert "gpu-0007 did not answer" in claim.evidence


def test_a_firewall_between_leaves_is_named_as_that() -> None:
    fabric = site(32, leaf=8, rails=2, leaves_of_spine=4)
    rule = Cause(Part.RULE, "between leaf-1 and leaf-2")
    state, _ = rounds_of(fabric, quiet(fabric, Fault(rule, Outcome.UNREACHABLE)))
    [claim] = claims(state)
    assert claim.causes == (rule, Cause(Part.PATH, "leaf-1 and leaf-2")) and claim.found == "unreachable"
    assert claim.sentence.startswith("firewall or route between leaf-1 and leaf-2: unreachable")


def test_no_traffic_between_any_leaves_blames_no_leaf_alone() -> None:
    fabric = site(24, leaf=8, rails=2, leaves_of_spine=4)
    state, _ = rounds_of(fabric, quiet(fabric, Fault(Cause(Part.SPINE, "spine-1"), Outcome.UNREACHABLE)))
    [claim] = claims(state)
    assert claim.causes[0] == Cause(Part.RULE, "between all leaves") and not claim.sure


def test_another_mtu_is_told_as_that() -> None:
    fabric = site(16, leaf=16, rails=4)
    state, _ = rounds_of(fabric, quiet(fabric, Fault(Cause(Part.NODE, "gpu-0002"), Outcome.MTU)))
    [claim] = claims(state)
    assert claim.sentence == "node gpu-0002: large messages are lost"


@pytest.mark.parametrize(("part", "first"), [(Part.NIC, Part.NIC), (Part.CABLE, Part.CABLE)])
def test_a_loopback_tells_a_nic_from_its_cable(part: Part, first: Part) -> None:
    fabric = site(16, leaf=16, rails=4)
    state, _ = rounds_of(fabric, quiet(fabric, Fault(Cause(part, "gpu-0002", 3))))
    [claim] = claims(state)
    assert claim.causes[0] == Cause(first, "gpu-0002", 3)
    assert (Cause(Part.PORT, "gpu-0002", 3) in claim.causes) is (part is Part.CABLE)


def test_a_slow_leaf_is_slow_against_the_fleet_and_not_against_itself() -> None:
    fabric = site(128, leaf=16, rails=2, leaves_of_spine=4)
    state, _ = rounds_of(fabric, quiet(fabric, Fault(Cause(Part.LEAF, "leaf-3"), Outcome.OK)))
    [claim] = claims(state)
    assert claim.causes == (Cause(Part.LEAF, "leaf-3"),) and claim.found == "slow" and len(claim.nodes) == 16


def test_few_peers_are_not_enough_to_call_one_slow_but_an_earlier_run_is() -> None:
    fabric = site(4, rails=2)
    slow = Fault(Cause(Part.NODE, "gpu-0001"), Outcome.OK)
    assert claims(rounds_of(fabric, quiet(fabric, slow))[0]) == ()
    [claim] = claims(rounds_of(fabric, quiet(fabric, slow), Settings(usual=usual_rates(2)))[0])
    assert claim.causes[0] == Cause(Part.NODE, "gpu-0001")


def test_a_path_that_carries_half_the_load_is_told_by_its_halves() -> None:
    fabric = site(32, leaf=8, rails=1, leaves_of_spine=4)
    ends = frozenset({"leaf-1", "leaf-2"})

    class Congested(Simulation):
        """What leaf-1 and leaf-2 send each other is slow when all their nodes do."""

        def _scope(self, test: Test, scope: int, near: Sequence[Fault]) -> tuple[Outcome, float]:
            outcome, rate = super()._scope(test, scope, near)
            crowded = set(test.units) == ends and len(test.members) == 16
            return outcome, rate * (0.5 if crowded else 1)

    settings = Settings(usual=usual_rates(1))
    state, _ = rounds_of(fabric, Congested(fabric, (), random.Random(1), 0, 0), settings)
    [claim] = claims(state)
    assert claim.causes == (Cause(Part.PATH, "leaf-1 and leaf-2"),)
    assert "carries a part of the load" in claim.evidence[-1]


@pytest.mark.parametrize("part", [Part.NODE, Part.UPLINK])
@pytest.mark.parametrize("rounds", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("nodes", [2, 5, 40])
def test_results_that_come_no_more_end_the_run(nodes: int, rounds: int, part: Part) -> None:
    """All nodes or leaves are bad, so that each kind of test that follows a failure has begun by then."""
    fabric = site(nodes, leaf=8, rails=1, leaves_of_spine=2)
    answers = quiet(fabric, *(Fault(Cause(part, name)) for name in [*fabric.by_name, *fabric.leaves]))
    state, end = run(State(fabric), lambda made: answers(made) if made.number <= rounds else ())
    assert end.why == "" and state.rounds < 60


def test_results_that_never_come_end_the_run() -> None:
    fabric = site(40, leaf=8, rails=2)
    state, end = run(State(fabric), lambda _: ())
    assert end.why == "" and state.rounds < 30 and claims(state) == ()
    assert set(untested_nodes(state).values()) == {"no member has answered"}
