"""Whose turn a test is: idle nodes, the oldest proof first, a seeded random share, within the budgets."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpu_burnin.admission.schedule.pick import Row, due_of, overdue, pick, row_of
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.api.record import NodeAdmission, Request, State, Status, Transition, Use
from tests.support.schedule_rows import DAY_S, NOW, a_row, ago

# Only quick, nothing drawn: what is not under test stays out of the way.
QUICK = TestRules(nodes=2, share=1, random_share=0, standard_every_s=0, extended_every_s=0)


def picked(rows: list[Row], rules: TestRules = QUICK, now: datetime = NOW, seed: int = 1) -> list[tuple[str, str]]:
    return [(choice.name, choice.level) for choice in pick(rows, rules, now, random.Random(seed))]


def test_the_oldest_proof_comes_first_as_far_as_there_are_places() -> None:
    rows = [a_row("b", 3 * DAY_S), a_row("a", 2 * DAY_S), a_row("c", 4 * DAY_S), a_row("young", 3600)]
    assert picked(rows) == [("c", "quick"), ("b", "quick")]
    (first, _) = pick(rows, QUICK, NOW, random.Random(1))
    assert first.why == "quick test by age: its last such proof is 4 d old"


@pytest.mark.parametrize(
    "change",
    [
        {"idle": False},
        {"state": State.HELD},
        {"state": State.SUSPECT},
        {"state": State.NEW},
        {"running": True},
        {"asked_at": ago(599)},
    ],
)
def test_a_node_that_is_busy_or_not_ready_or_just_asked_is_left(change: dict[str, object]) -> None:
    assert picked([a_row()]) == [("gpu-1", "quick")]
    assert picked([a_row(**change)]) == []


def test_a_busy_node_is_asked_again() -> None:
    assert picked([a_row(asked_at=ago(600))]) == [("gpu-1", "quick")]


def test_tests_that_run_take_places() -> None:
    rows = [a_row("a"), a_row("b"), a_row("c", running=True)]
    assert picked(rows) == [("a", "quick")]
    assert picked([*rows, a_row("d", running=True)]) == []


def test_the_share_is_of_the_whole_fleet() -> None:
    rows = [a_row(f"gpu-{number:03}", state=State.READY if number < 10 else State.HELD) for number in range(100)]
    assert len(picked(rows, replace(QUICK, nodes=50, share=0.04))) == 4


def test_no_test_begins_outside_its_hours() -> None:
    assert picked([a_row()], replace(QUICK, hours=("00:00-12:00",))) == []
    assert picked([a_row()], replace(QUICK, hours=("12:00-13:00",))) == [("gpu-1", "quick")]


@pytest.mark.parametrize(
    ("proofs", "level"),
    [
        ({"extended": 3600}, None),
        ({"extended": 2 * DAY_S}, "quick"),
        ({"extended": 7 * DAY_S}, "standard"),
        ({"extended": 31 * DAY_S, "standard": DAY_S / 2}, "extended"),
        ({"extended": 20 * DAY_S, "standard": 7 * DAY_S, "quick": DAY_S / 2}, "standard"),
        ({}, "extended"),
    ],
)
def test_the_deepest_level_that_is_due(proofs: dict[str, float], level: str | None) -> None:
    row = a_row(proofs={name: ago(age_s) for name, age_s in proofs.items()})
    due = due_of(row, TestRules(random_share=0), NOW.timestamp())
    assert (due[0].level if due else None) == level


def test_a_level_of_period_nought_never_comes() -> None:
    assert picked([a_row(age_s=400 * DAY_S)], replace(QUICK, quick_every_s=0)) == []


def test_a_deep_test_does_not_take_its_node_s_turn() -> None:
    deep = a_row("deep", proofs={"extended": ago(31 * DAY_S), "quick": ago(3 * DAY_S)})
    rows = [a_row("lately", 2 * DAY_S, "extended"), deep]
    assert picked(rows, TestRules(nodes=1, share=1, random_share=0)) == [("deep", "extended")]


def test_after_repair_an_extended_test_is_due_behind_what_is_due_by_its_period() -> None:
    repaired = a_row(proofs={"extended": ago(5 * DAY_S)}, repaired_at=ago(DAY_S))
    assert picked([repaired], TestRules(random_share=0)) == [("gpu-1", "quick")]
    renewed = replace(repaired, proofs={**repaired.proofs, "quick": ago(60)})
    (choice,) = pick([renewed], TestRules(random_share=0), NOW, random.Random(1))
    assert (choice.level, choice.why) == ("extended", "extended test after repair: its last such proof is 5 d old")
    proven = replace(renewed, proofs={"extended": ago(DAY_S / 2)})
    assert picked([proven], TestRules(random_share=0)) == []
    old = replace(repaired, proofs={"extended": ago(31 * DAY_S)})
    assert picked([old], TestRules(random_share=0)) == [("gpu-1", "extended")]


def test_a_fleet_that_was_repaired_as_a_whole_keeps_its_other_proofs_young() -> None:
    rules = TestRules(nodes=1, share=1, random_share=0)
    proofs = {f"gpu-{n}": {"extended": ago(9 * DAY_S), "standard": ago(3 * DAY_S + 600 * n)} for n in range(15)}
    now, oldest_s, tested = NOW, 0.0, Counter[str]()
    while tested["extended"] < len(proofs):
        rows = [a_row(name, proofs=has, repaired_at=ago(60)) for name, has in proofs.items()]
        for name, level in picked(rows, rules, now):
            now += timedelta(seconds=7200 if level == "extended" else 90)
            proofs[name] = {**proofs[name], level: now.isoformat()}
            tested[level] += 1
        # The first hours renew what is old already.
        if now - NOW > timedelta(hours=3):
            youngest = (max(datetime.fromisoformat(at) for at in has.values()) for has in proofs.values())
            oldest_s = max(oldest_s, *((now - one).total_seconds() for one in youngest))
    assert now - NOW < timedelta(hours=32) and oldest_s < DAY_S + 2 * 7200


def test_first_extended_tests_of_a_new_fleet_spread_over_a_period() -> None:
    use = Use(ago(0), ago(0), busy=False)
    rows = [a_row(f"gpu-{number}", proofs={"standard": ago(0)}, use=use) for number in range(1000)]
    rules = TestRules(random_share=0, quick_every_s=0, standard_every_s=0)
    when = [NOW.timestamp() + day * DAY_S for day in (3, 15, 27, 30.1)]
    due = [sum(bool(due_of(row, rules, moment)) for row in rows) for moment in when]
    assert 50 < due[0] < 150 and 400 < due[1] < 600 and 850 < due[2] < 950 and due[3] == 1000


def test_a_share_of_the_tests_comes_at_any_moment_of_its_period() -> None:
    rules = replace(QUICK, random_share=0.25)
    rows = [a_row(f"gpu-{number}", age_s=0) for number in range(4000)]
    due = [sum(bool(due_of(row, rules, NOW.timestamp() + share * DAY_S)) for row in rows) for share in (0.5, 0.99, 1)]
    assert 400 < due[0] < 600 and 900 < due[1] < 1100 and due[2] == 4000


def test_a_share_of_the_places_is_drawn_and_the_same_seed_draws_the_same() -> None:
    rows = [a_row(f"gpu-{number:03}", (300 - number) * DAY_S) for number in range(200)]
    rules = replace(QUICK, nodes=1, random_share=0.25)
    drawn = Counter(picked(rows, rules, seed=seed)[0][0] for seed in range(400))
    assert 270 < drawn["gpu-000"] < 330 and len(drawn) > 60
    assert picked(rows, rules, seed=5) == picked(rows, rules, seed=5)
    assert any("drawn at random" in pick(rows, rules, NOW, random.Random(seed))[0].why for seed in range(20))


def test_no_node_is_chosen_twice() -> None:
    names = [
        name for name, _ in picked([a_row(f"gpu-{n}") for n in range(50)], replace(QUICK, nodes=50, random_share=0.5))
    ]
    assert len(names) == len(set(names)) == 50


def test_a_proof_whose_time_cannot_be_read_has_its_node_tested() -> None:
    assert picked([a_row(proofs={"quick": "yesterday"})]) == [("gpu-1", "quick")]


def test_a_node_that_was_never_idle_within_its_age_is_told() -> None:
    busy = {"idle": False, "use": Use(ago(90 * DAY_S), ago(3 * DAY_S), busy=True)}
    always, lately = a_row("always", 4 * DAY_S, **busy), a_row("lately", 5 * DAY_S, **busy)
    rows = [always, replace(lately, proofs={"quick": ago(6 * DAY_S)}), a_row("young", 3600, **busy), a_row("idle")]
    # `lately` has been busy for 3 days and was due for 5: it had its idle moment.
    (only,) = overdue([*rows, replace(always, name="held", state=State.HELD)], QUICK, NOW)
    assert (only.name, only.level, only.due_at) == ("always", "quick", NOW - 3 * timedelta(days=1))
    assert only.why == "busy since 2026-03-07T12:00:00.000Z; its quick test is due for 3 d"


def test_a_row_of_the_ledger() -> None:
    transitions = (
        Transition("2026-03-01T00:00:00Z", "repairing", "testing", "", ""),
        Transition("2026-03-02T00:00:00Z", "testing", "ready", "", ""),
    )
    status = Status(State.READY, proofs={"quick": ago(5)}, transitions=transitions)
    row = row_of(NodeAdmission("gpu-1", status=status), idle=True, asked_at="x")
    assert row == Row("gpu-1", State.READY, True, {"quick": ago(5)}, None, "x", "2026-03-01T00:00:00Z", False)
    asked = replace(status, request=Request("1", "quick", ago(1), "why"))
    assert row_of(NodeAdmission("gpu-1", status=asked), idle=True).running
    assert row_of(NodeAdmission("gpu-1", status=status), idle=True, chosen=True).running
