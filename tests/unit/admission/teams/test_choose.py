"""Which nodes become a team's, which it gives back, and what is said when there are too few."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from gpu_burnin.admission.teams.choose import Choice, Move, Wanted, choose
from gpu_burnin.admission.teams.places import FleetNode
from gpu_burnin.api.record import Place

MODEL, OTHER = "h100-sxm5-80gb", "h200-sxm"
ALL = 1000


def node(name: str, team: str = "", *, free: bool = True, model: str = MODEL, gpus: int = 8) -> FleetNode:
    """Its name says where it stands: a leaf, a rack, a number, as a-1-05."""
    leaf, rack, _ = name.split("-")
    return FleetNode(name, model, gpus, Place(rack=f"{leaf}{rack}", leaf=leaf), team, free)


def rack(leaf_and_rack: str, count: int, team: str = "", **more: bool) -> list[FleetNode]:
    return [node(f"{leaf_and_rack}-{number:02d}", team, **more) for number in range(count)]


def carried_out(nodes: Iterable[FleetNode], choice: Choice) -> list[FleetNode]:
    teams = {move.name: move.team for move in choice.moves}
    return [replace(one, team=teams.get(one.name, one.team)) for one in nodes]


def gpus_of(nodes: Iterable[FleetNode]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for one in nodes:
        found[one.team, one.model] += one.gpus
    return found


def moved(nodes: Iterable[FleetNode], wanted: Wanted, most: int = ALL) -> dict[str, str]:
    return {move.name: move.team for move in choose(nodes, wanted, most).moves}


def test_nothing_is_wanted_and_nothing_moves() -> None:
    assert choose(rack("a-1", 4), {}, ALL) == Choice()
    assert moved([*rack("a-1", 2, "audio"), *rack("a-2", 4)], {"audio": {MODEL: 16}}) == {}


@pytest.mark.parametrize("gpus", [0, 7, 8, 15, 16, 17, 64])
def test_a_team_never_gets_more_than_it_wants(gpus: int) -> None:
    assert len(moved(rack("a-1", 6), {"audio": {MODEL: gpus}})) == min(6, gpus // 8)


def test_only_nodes_of_the_model_are_taken() -> None:
    nodes = [node("a-1-00", model=OTHER), node("a-1-01", model=""), node("a-1-02", gpus=0), node("a-1-03")]
    assert moved(nodes, {"audio": {MODEL: 64}}) == {"a-1-03": "audio"}


def test_a_node_that_is_not_free_is_neither_taken_nor_given_back() -> None:
    busy = [*rack("a-1", 2, free=False), *rack("a-2", 2, "audio", free=False), node("a-3-00")]
    assert moved(busy, {"vision": {MODEL: 64}}) == {"a-3-00": "vision"}
    assert moved(busy, {}) == {}


def test_what_is_there_is_kept() -> None:
    """Though another place would be nearer."""
    nodes = [node("a-1-00", "audio"), node("b-1-00", "audio"), *rack("c-1", 8)]
    assert moved(nodes, {"audio": {MODEL: 16}}) == {}


def test_the_place_with_most_of_the_team_comes_first_then_its_leaf() -> None:
    nodes = [*rack("a-1", 8), node("b-1-00", "audio"), node("b-1-01"), node("b-2-00"), node("b-2-01")]
    assert list(moved(nodes, {"audio": {MODEL: 16}})) == ["b-1-01"]
    assert list(moved(nodes, {"audio": {MODEL: 24}})) == ["b-1-01", "b-2-00"]


def test_a_new_team_begins_where_most_is_free_and_fills_racks() -> None:
    nodes = [*rack("a-1", 3), *rack("b-1", 2), *rack("b-2", 4), *rack("c-1", 5, free=False)]
    assert list(moved(nodes, {"audio": {MODEL: 32}})) == [f"b-2-0{number}" for number in range(4)]
    assert [name[:3] for name in moved(nodes, {"audio": {MODEL: 48}})] == ["b-1"] * 2 + ["b-2"] * 4


def test_nodes_whose_place_nobody_says_are_near_nothing() -> None:
    unplaced = [FleetNode(f"n-{number}", MODEL, 8, free=True) for number in range(6)]
    assert list(moved([*unplaced, *rack("a-1", 2)], {"audio": {MODEL: 16}})) == ["a-1-00", "a-1-01"]
    assert list(moved(unplaced, {"audio": {MODEL: 16}})) == ["n-0", "n-1"]


def test_a_team_that_wants_less_gives_back_where_it_has_fewest() -> None:
    nodes = [*rack("a-1", 3, "audio"), node("a-2-00", "audio"), node("b-1-00", "audio")]
    assert moved(nodes, {"audio": {MODEL: 32}}) == {"b-1-00": ""}
    assert moved(nodes, {"audio": {MODEL: 24}}) == {"a-2-00": "", "b-1-00": ""}


def test_of_nodes_of_different_size_the_ones_that_fit_go() -> None:
    nodes = [node("a-1-00", "audio", gpus=8), node("a-1-01", "audio", gpus=4)]
    assert moved(nodes, {"audio": {MODEL: 8}}) == {"a-1-01": ""}
    # Never more than is wanted, so it has less where no node fits.
    nodes = [node("a-1-00", "audio"), node("a-1-01", "audio"), node("a-2-00", gpus=4)]
    first = carried_out(nodes, choose(nodes, {"audio": {MODEL: 12}}, ALL))
    assert gpus_of(first)["audio", MODEL] == 12 and moved(first, {"audio": {MODEL: 12}}) == {}


def test_a_team_that_is_gone_gives_back_what_is_idle_and_the_rest_later() -> None:
    nodes = [node("a-1-00", "audio"), node("a-1-01", "audio", free=False)]
    assert moved(nodes, {"vision": {}}) == {"a-1-00": ""}
    assert moved(nodes, {"vision": {MODEL: 16}}) == {"a-1-00": "vision"}
    later = [replace(one, free=True) for one in nodes]
    assert moved(later, {}) == {"a-1-00": "", "a-1-01": ""}


def test_a_model_that_is_wanted_no_more_is_given_back() -> None:
    assert moved([node("a-1-00", "audio", model=OTHER)], {"audio": {MODEL: 8}}) == {"a-1-00": ""}
    assert moved([node("a-1-00", "audio")], {"audio": {MODEL: 0}}) == {"a-1-00": ""}


def test_so_many_move_at_once_and_the_others_wait() -> None:
    choice = choose(rack("a-1", 8), {"audio": {MODEL: 64}}, 3)
    assert (len(choice.moves), choice.waiting) == (3, 5)
    assert choose(rack("a-1", 8), {"audio": {MODEL: 64}}, 0) == replace(choice, moves=(), waiting=8)


def test_a_shortage_is_told_with_its_figures() -> None:
    nodes = [node("a-1-00", "audio"), node("a-1-01"), *rack("a-2", 3, free=False)]
    nodes += rack("a-3", 2, "vision", free=False)
    audio, vision = choose(nodes, {"audio": {MODEL: 64}, "vision": {MODEL: 16}}, ALL).shares
    assert (audio.gpus, audio.planned, audio.wanted) == (8, 16, 64)
    assert audio.shortage == (
        f"audio lacks 48 of 64 GPUs of {MODEL}: no node is idle and ready, "
        "5 of the model are busy, shut or another team's"
    )
    assert vision.shortage == ""
    (odd,) = choose(rack("a-1", 2), {"audio": {MODEL: 12}}, ALL).shares
    assert odd.shortage.startswith(f"audio lacks 4 of 12 GPUs of {MODEL}: 1 idle nodes have more GPUs each")


def a_fleet(rng: random.Random) -> list[FleetNode]:
    found = []
    for leaf in "abc":
        for number in range(rng.randint(1, 4)):
            found += rack(f"{leaf}-{number}", rng.randint(1, 6))
    sizes = rng.choice([[8], [8], [4, 8]])
    return [replace(one, model=rng.choice([MODEL, MODEL, OTHER]), gpus=rng.choice(sizes)) for one in found]


def a_wish(rng: random.Random) -> dict[str, dict[str, int]]:
    sizes = [0, 4, 8, 20, 32, 64]
    teams = rng.sample(["audio", "vision", "text"], rng.randint(0, 3))
    return {team: {model: rng.choice(sizes) for model in (MODEL, OTHER)} for team in teams}


def changed(rng: random.Random, nodes: list[FleetNode]) -> list[FleetNode]:
    """Work begins and ends, nodes go into repair, come, and go."""
    found = [replace(one, free=not one.free) if rng.random() < 0.2 else one for one in nodes]
    if rng.random() < 0.1:
        found.pop(rng.randrange(len(found)))
    if rng.random() < 0.1:
        found.append(replace(node(f"{rng.choice('abc')}-9-{rng.randrange(10**6)}"), model=rng.choice([MODEL, OTHER])))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_no_busy_node_moves_and_no_team_gets_more_than_it_wants(seed: int) -> None:
    rng = random.Random(seed)
    nodes, wanted = a_fleet(rng), a_wish(rng)
    for _ in range(30):
        nodes, wanted = changed(rng, nodes), a_wish(rng) if rng.random() < 0.15 else wanted
        before, by_name, most = gpus_of(nodes), {one.name: one for one in nodes}, rng.randint(0, 4)
        choice = choose(nodes, wanted, most)
        assert len(choice.moves) <= most and all(by_name[move.name].free for move in choice.moves)
        assert all(move.team != by_name[move.name].team for move in choice.moves)
        after = carried_out(nodes, choice)
        for (team, model), gpus in gpus_of(after).items():
            target = wanted.get(team, {}).get(model, 0)
            assert not team or gpus <= max(target, before[team, model])
        nodes = after
    # Once nothing else changes it comes to an end, at which nothing that could be had is missing.
    nodes = [replace(one, free=True) for one in nodes]
    for _ in range(len(nodes) + 1):
        choice = choose(nodes, wanted, 3)
        if not choice.moves:
            break
        nodes = carried_out(nodes, choice)
    assert not choice.moves
    have = gpus_of(nodes)
    for share in choice.shares:
        assert share.gpus == share.planned == have[share.team, share.model] <= share.wanted
        sizes = [one.gpus for one in nodes if one.model == share.model and not one.team]
        assert all(size > share.wanted - share.gpus for size in sizes)
        assert bool(share.shortage) == (share.gpus < share.wanted)
    assert all(wanted.get(one.team, {}).get(one.model, 0) for one in nodes if one.team)


def test_the_order_of_the_nodes_does_not_matter() -> None:
    nodes, wanted = a_fleet(random.Random(1)), {"audio": {MODEL: 40}, "vision": {MODEL: 24}}
    mixed = random.Random(2).sample(nodes, len(nodes))
    assert choose(nodes, wanted, 5) == choose(mixed, wanted, 5)


@pytest.mark.slow
@pytest.mark.parametrize("placed", [True, False])
def test_a_fleet_of_7500_nodes_is_looked_at_in_seconds(placed: bool) -> None:
    nodes = [
        FleetNode(f"n{i}", MODEL, 8, Place(f"r{i // 8}", f"l{i // 64}") if placed else Place(), free=True)
        for i in range(7500)
    ]
    began_s = time.process_time()
    choice = choose(nodes, {"audio": {MODEL: 16000}, "vision": {MODEL: 8000}}, 1500)
    assert (len(choice.moves), choice.waiting) == (1500, 1500)
    assert time.process_time() - began_s < 10.0
    assert Move("n0", "audio") in choice.moves
