"""Proofs that end before the timetable renews them: few of a fleet that is tested, many of one that is not."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from gpu_burnin.admission.decide import node_ttl_s
from gpu_burnin.admission.schedule.ends import ends_soon, late_s
from gpu_burnin.admission.schedule.pick import pick
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.api.record import Proof
from gpu_burnin.system.clock import rfc3339
from tests.support.schedule_rows import DAY_S, NOW, a_row, ago

ASKED = Proof()
# Of the nodes, for an hour: the alert MusterProofsEnd.
ALERT_SHARE, ALERT_FOR_S = 0.1, 3600


def test_a_healthy_new_fleet_whose_tests_are_all_due_in_one_hour_raises_no_alert() -> None:
    rules, rng = TestRules(nodes=1, share=1, extended_every_s=0), random.Random(1)
    # As 1,000 nodes, 8 places and tests of 330 s with what is around them: eleven hours until all are tested.
    proofs, test_s, now_s, worst = dict.fromkeys((f"gpu-{n}" for n in range(25)), 0.0), 1600, 6 * DAY_S, 0
    while min(proofs.values()) == 0:
        now = NOW + timedelta(seconds=now_s)
        ends = (rfc3339(NOW + timedelta(seconds=at_s + node_ttl_s(n, 7 * DAY_S))) for n, at_s in proofs.items())
        worst = max(worst, sum(ends_soon(end, ASKED, rules, now.timestamp()) for end in ends))
        rows = [a_row(name, proofs={"standard": ago(-at_s)}) for name, at_s in proofs.items()]
        (choice,) = pick(rows, rules, now, rng)
        assert choice.level == "standard"
        now_s += test_s
        proofs[choice.name] = now_s
    assert 0 < worst <= ALERT_SHARE * len(proofs)


def test_a_fleet_whose_tests_do_not_happen_raises_it_before_the_first_proof_ends() -> None:
    ends_s = sorted(node_ttl_s(f"gpu-{number}", ASKED.max_age_s) for number in range(1000))
    fires_s = ends_s[int(ALERT_SHARE * len(ends_s))] - late_s(TestRules(), ASKED) + ALERT_FOR_S
    assert 6 * DAY_S < fires_s < ends_s[0]


@pytest.mark.parametrize(
    ("rules", "asked", "days"),
    [
        (TestRules(), Proof(), 0.15),
        (TestRules(standard_every_s=5 * DAY_S), Proof(), 0.65),
        (TestRules(), Proof(max_age_s=30 * DAY_S), 1),
        # The extended test renews it too; nothing else does.
        (TestRules(standard_every_s=0, extended_every_s=6 * DAY_S), Proof(), 0.15),
        (TestRules(), Proof("quick", 1.2 * DAY_S), 0.04),
        # The timetable leaves nothing, or has no such test.
        (TestRules(standard_every_s=6.5 * DAY_S), Proof(), 1),
        (TestRules(standard_every_s=0, extended_every_s=0), Proof(), 1),
        (TestRules(), Proof("made-up"), 1),
    ],
)
def test_a_test_is_late_when_half_of_what_its_timetable_leaves_is_over(
    rules: TestRules, asked: Proof, days: float
) -> None:
    assert late_s(rules, asked) == pytest.approx(days * DAY_S)


def test_a_node_without_a_proof_has_none_that_ends() -> None:
    assert not ends_soon("", ASKED, TestRules(), NOW.timestamp())
    assert ends_soon(ago(1), ASKED, TestRules(), NOW.timestamp())
