"""What the views of one test come to, and from when on a rate is slow."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gpu_burnin.fabric.model import (
    ALL,
    Found,
    Judged,
    Kind,
    Outcome,
    Purpose,
    RailView,
    Result,
    Settings,
    SignedView,
    Test,
    View,
)
from gpu_burnin.fleet.fabric.judge import judge_round, slow_limit
from tests.bench.fabric.simulate import site

FABRIC = site(4, rails=2)
PAIR = Test(1, Kind.PAIR, Purpose.PAIRS, ("gpu-0001", "gpu-0002"), ("gpu-0001", "gpu-0002"))
PROBE = replace(PAIR, kind=Kind.RAIL, purpose=Purpose.PROBE, suspect="gpu-0001", rails=(0, 1))


def view(member: str, outcome: Outcome = Outcome.OK, *rails: RailView, version: str = "1") -> SignedView:
    return SignedView(View(1, member, version, outcome, 4e11, rails))


def judged(test: Test, *views: SignedView, rebooted: tuple[str, ...] = ()) -> Judged:
    [one], _ = judge_round(FABRIC, Settings(), [test], [Result(1, views, rebooted)], {})
    return one


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (Outcome.OK, Outcome.OK, Found.PASS),
        (Outcome.OK, Outcome.WRONG, Found.WRONG),
        (Outcome.STALLED, Outcome.WRONG, Found.WRONG),
        (Outcome.STALLED, Outcome.UNREACHABLE, Found.UNREACHABLE),
        (Outcome.MTU, Outcome.STALLED, Found.MTU),
    ],
)
def test_the_gravest_view_counts(first: Outcome, second: Outcome, found: Found) -> None:
    assert judged(PAIR, view("gpu-0001", first), view("gpu-0002", second)).found is found


def test_a_member_without_a_view_is_silent() -> None:
    one = judged(PAIR, view("gpu-0001"))
    assert (one.found, one.why) == (Found.SILENT, "gpu-0002 did not answer")


@pytest.mark.parametrize(("there", "found"), [("gpu-0002", Found.SILENT), ("gpu-0001", Found.SPOILED)])
def test_a_partner_that_is_silent_says_nothing_of_the_suspect(there: str, found: Found) -> None:
    one = judged(PROBE, view(there))
    assert set(one.by_scope.values()) == {found}


@pytest.mark.parametrize(
    ("views", "rebooted", "why"),
    [
        ((), (), "no member has answered"),
        ((view("gpu-0001"),), ("gpu-0002",), "gpu-0002 rebooted in the middle of it"),
        (
            (view("gpu-0001"), view("gpu-0002", version="2")),
            (),
            "its members run other versions: 1 on gpu-0001; 2 on gpu-0002",
        ),
    ],
)
def test_what_spoils_a_test_is_told(views: tuple[SignedView, ...], rebooted: tuple[str, ...], why: str) -> None:
    one = judged(PAIR, *views, rebooted=rebooted)
    assert (one.found, one.why) == (Found.SPOILED, why)


def test_a_result_that_did_not_come_is_inconclusive() -> None:
    [one], _ = judge_round(FABRIC, Settings(), [PAIR], [], {})
    assert one.found is Found.SPOILED


def test_each_rail_has_its_own_and_one_that_a_member_left_out_is_inconclusive() -> None:
    good, bad = RailView(0, Outcome.OK, 1e11, True), RailView(1, Outcome.WRONG, 1e11, False)
    one = judged(PROBE, view("gpu-0001", Outcome.WRONG, good, bad), view("gpu-0002", Outcome.OK, good))
    assert one.by_scope == {ALL: Found.WRONG, 0: Found.PASS, 1: Found.SPOILED}
    assert one.loopback_failed == (("gpu-0001", 1),) and ("gpu-0001", 0) in one.loopback_passed


def test_slow_is_a_tenth_under_the_median_or_more_where_rates_spread() -> None:
    rng = random.Random(1)
    narrow = [rng.gauss(100, 0.5) for _ in range(100)]
    wide = [rng.gauss(100, 5) for _ in range(100)]
    assert slow_limit(narrow, Settings()) == pytest.approx(90, abs=0.5)
    limit = slow_limit(wide, Settings())
    assert limit is not None and 60 < limit < 80
    assert slow_limit(narrow[:7], Settings()) is None


def test_a_third_of_slow_ones_does_not_move_the_limit() -> None:
    rng = random.Random(1)
    rates = [rng.gauss(100, 1) for _ in range(20)] + [60.0] * 10
    limit = slow_limit(rates, Settings())
    assert limit is not None and limit > 75
