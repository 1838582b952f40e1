"""The age of the fleet's proofs, and the simulation against what is known by arithmetic."""

from __future__ import annotations

import json
import math
import random

import pytest

from gpu_burnin.admission.schedule.pick import Row
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.api.record import State, Use
from gpu_burnin.fleet.coverage.coverage import Coverage, as_json, as_text, coverage
from gpu_burnin.fleet.coverage.simulate import TEST_S, prospect
from tests.support.schedule_rows import DAY_S, NOW, a_row, ago

# Everything is due, and there is a place for everybody.
OPEN = TestRules(nodes=10000, share=1, random_share=0, quick_every_s=3600, standard_every_s=0, extended_every_s=0)


def in_use(number: int, rng: random.Random, mean_busy_s: float, idle_share: float) -> Row:
    """A node as the chain has it after long: busy or idle, for an exponential time."""
    busy = rng.random() > idle_share
    mean_s = mean_busy_s if busy else mean_busy_s * idle_share / (1 - idle_share)
    since_s = min(rng.expovariate(1 / mean_s), 89 * DAY_S)
    known_s = 90 * DAY_S - since_s
    use = Use(ago(90 * DAY_S), ago(since_s), busy, idle_s=known_s * idle_share, busy_s=known_s * (1 - idle_share))
    return a_row(f"gpu-{number:04}", idle=not busy, use=use)


def chance(rows: list[Row], rules: TestRules, within_s: float, level: str = "quick") -> tuple[float, float, float]:
    found = prospect(rows, rules, NOW, within_s, seed=1, runs=5)
    assert found is not None
    return found.chances[level].mean, found.chances[level].low, found.chances[level].high


def test_an_idle_fleet_is_tested_and_a_busy_one_is_not() -> None:
    idle = [a_row(f"gpu-{n}", use=Use(ago(DAY_S), ago(DAY_S), busy=False)) for n in range(20)]
    busy = [a_row(f"gpu-{n}", idle=False, use=Use(ago(DAY_S), ago(DAY_S), busy=True)) for n in range(20)]
    assert chance(idle, OPEN, DAY_S) == (1, 1, 1)
    assert chance(busy, OPEN, DAY_S) == (0, 0, 0)


def test_places_bound_how_many_nodes_are_tested() -> None:
    rows = [a_row(f"gpu-{n:03}", use=Use(ago(DAY_S), ago(DAY_S), busy=False)) for n in range(200)]
    rules = TestRules(nodes=2, share=1, random_share=0, quick_every_s=DAY_S, standard_every_s=0, extended_every_s=0)
    within_s = 50.5 * TEST_S["quick"]
    mean, _, high = chance(rows, rules, within_s)
    assert (mean, high) == (100 / 200, 100 / 200)


def test_hours_bound_when_nodes_are_tested() -> None:
    rows = [a_row(use=Use(ago(DAY_S), ago(DAY_S), busy=False))]
    rules = TestRules(hours=("20:00-21:00",), extended_every_s=0)
    assert chance(rows, rules, 7.9 * 3600) == (0, 0, 0)
    assert chance(rows, rules, 9 * 3600) == (1, 1, 1)


def test_extended_tests_owed_since_a_repair_leave_room_for_the_others() -> None:
    use, proofs = Use(ago(90 * DAY_S), ago(9 * DAY_S), busy=False), {"extended": ago(9 * DAY_S), "standard": ago(DAY_S)}
    rows = [a_row(f"gpu-{n}", use=use, proofs=proofs, repaired_at=ago(60)) for n in range(20)]
    rules = TestRules(nodes=1, share=1, random_share=0)
    assert chance(rows, rules, DAY_S / 2) == (1, 1, 1)
    # All quick ones have taken half an hour.
    assert chance(rows, rules, DAY_S / 2, "extended")[1:] == (5 / 20, 5 / 20)
    known = as_json(coverage(rows, rules, NOW, DAY_S, 1, ""))["nodes"][0]["next"]
    assert known["extended"] == ago(60)


@pytest.mark.parametrize("idle_share", [0.1, 0.5])
@pytest.mark.slow
def test_use_is_estimated_from_what_was_seen(idle_share: float) -> None:
    rng = random.Random(7)
    rows = [in_use(number, rng, DAY_S, idle_share) for number in range(3000)]
    within_s = 12 * 3600.0
    # A node is not tested if it is busy now and stays so; the test of one that turns idle late ends too late.
    expected = 1 - (1 - idle_share) * math.exp(-(within_s - TEST_S["quick"]) / DAY_S)
    mean, low, high = chance(rows, OPEN, within_s)
    assert mean == pytest.approx(expected, abs=0.03)
    assert low < mean < high


@pytest.mark.slow
def test_a_node_never_seen_idle_for_a_short_time_may_be_idle_one_day() -> None:
    rng = random.Random(7)
    others = [in_use(number, rng, 6 * 3600, 0.5) for number in range(100)]
    found = prospect(
        [*others, a_row("new", idle=False, use=Use(ago(3600), ago(3600), busy=True))], OPEN, NOW, 3 * DAY_S, 1, runs=20
    )
    assert found is not None and found.nodes == 101
    (name, probability), *_ = found.least
    assert name == "new" and 0.1 < probability < 1


def test_the_same_seed_says_the_same() -> None:
    rng = random.Random(7)
    rows = [in_use(number, rng, DAY_S, 0.3) for number in range(50)]
    first, again, other = (prospect(rows, TestRules(), NOW, DAY_S, seed, runs=3) for seed in (1, 1, 2))
    assert first == again != other


def made(rows: list[Row], rules: TestRules = TestRules()) -> Coverage:  # noqa: B008
    return coverage(rows, rules, NOW, 7 * DAY_S, 1, "/etc/muster/admitter.yaml")


def mixed() -> list[Row]:
    rng = random.Random(7)
    busy = Use(ago(90 * DAY_S), ago(9 * DAY_S), busy=True)
    return [
        *(in_use(number, rng, DAY_S, 0.3) for number in range(30)),
        a_row("gpu-old", 9 * DAY_S, "standard", idle=False, use=busy),
        a_row("gpu-deep", 2 * DAY_S, "extended"),
        a_row("gpu-held", proofs={}, state=State.HELD),
        a_row("gpu-blind", use=None),
    ]


def test_ages_are_counted_by_level_and_a_deeper_proof_counts() -> None:
    quick, standard, extended = made(mixed()).ages
    assert (quick.young, quick.older, quick.never, quick.oldest) == (0, 33, 1, "gpu-old")
    assert (standard.young, standard.older, standard.never, standard.oldest) == (1, 1, 32, "gpu-old")
    assert (extended.young, extended.older, extended.never, extended.oldest) == (1, 0, 33, "gpu-deep")


def test_the_text_fits_and_says_what_was_not_observed() -> None:
    text = as_text(made(mixed()), 80)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for words in (
        "34 nodes. Age of proof",
        "Never idle since their test was due:",
        "gpu-old: busy since 2026-03-01T12:00:00.000Z; its quick test is due for 8 d",
        "Budgets (/etc/muster/admitter.yaml): 1 of 34 nodes at a time",
        "By 20 simulations (seed 1;",
        "Not observed: how long nodes are idle or busy at a time",
        "the use of 1 ready node, which is not in it",
        "what becomes of 1 node that is not ready",
    ):
        assert words in flat, words


def test_without_any_use_nothing_is_said_of_the_time_to_come() -> None:
    found = made([a_row(use=None)])
    assert found.prospect is None and "Nothing can be said of the time to come" in as_text(found, 80)
    no_begin = made([a_row(use=Use(ago(DAY_S), ago(DAY_S), busy=False))])
    assert "each was left as it is now" in " ".join(as_text(no_begin, 80).split())


@pytest.mark.slow
def test_json_holds_every_node() -> None:
    found = json.loads(json.dumps(as_json(made(mixed())), allow_nan=False))
    assert len(found["nodes"]) == 34 and found["schema"] == "muster-coverage/v1"
    assert found["nodes"][30]["age_s"] == {"quick": 9 * DAY_S, "standard": 9 * DAY_S, "extended": None}
    assert found["prospect"]["chances"]["quick"]["low"] <= found["prospect"]["chances"]["quick"]["mean"]
    assert found["never_idle"][0]["name"] == "gpu-old" and found["budgets"]["from"] == "/etc/muster/admitter.yaml"
    never = as_json(made(mixed(), TestRules(extended_every_s=0)))
    assert never["levels"][2]["period_s"] is None and "extended" not in never["nodes"][0]["next"]
