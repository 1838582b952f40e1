"""Synthetic fleets: the slow and the drifting are found, the healthy of any shape are not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from gpu_burnin.fleet.baseline.judge import ALL_GPUS, ANY_SLOT, LEAST_SHARE, Judged
from gpu_burnin.fleet.baseline.rates import Taken, keep
from tests.support.rate_fleets import NOW, RATES, SETTING, SHAPES, Fleet, judged, kept, kept_weekly, name

# A few rates say as much of one look as all do, in less time.
FEW = tuple(RATES)[6:9]


@pytest.mark.parametrize("shape", SHAPES)
def test_of_a_healthy_fleet_nobody_is_named_whatever_its_spread(shape: str, tmp_path: Path) -> None:
    found = judged(kept(tmp_path / "rates", Fleet(300, gpus=4, spread=0.01, shape=shape, rates=FEW)))
    assert found.tests > 300 * 4 * len(FEW) and not found.slow and not found.drifts


def test_a_gpu_that_is_3_percent_slow_of_500_nodes_is_found(tmp_path: Path) -> None:
    fleet = Fleet(500, gpus=4, spread=0.002, noise=0.001, rates=FEW)
    fleet.own[42, 3, 1] = -0.03
    (slow,) = judged(kept(tmp_path / "rates", fleet)).slow
    assert slow.card == fleet.card(42, 3) and slow.cell.rate == FEW[1] and slow.cell.spread.peers == 500
    assert slow.lost == pytest.approx(0.03, abs=0.004) and slow.mads is not None and slow.mads > 10
    assert slow.value < slow.cell.spread.median * (1 - (slow.cell.share or 1))


def test_3_of_a_hundred_slow_nodes_of_500_are_all_found_and_nobody_else(tmp_path: Path) -> None:
    fleet = Fleet(500, gpus=1, spread=0.002, noise=0.001, rates=FEW)
    fleet.own[:15] -= 0.03
    found = judged(kept(tmp_path / "rates", fleet))
    assert {one.card.uuid for one in found.slow} == {fleet.card(host, 0).uuid for host in range(15)}


def test_a_node_whose_gpus_are_all_3_percent_slow_is_found_where_one_of_them_could_be_healthy(tmp_path: Path) -> None:
    fleet = Fleet(300, spread=0.005, rates=FEW)
    fleet.own[77] = -0.03
    slow = judged(kept(tmp_path / "rates", fleet)).slow
    whole = [one for one in slow if one.card.slot == ALL_GPUS]
    assert {one.cell.rate for one in whole} == {*FEW} and len({one.host for one in slow}) == 1
    assert slow == tuple(whole), "each of its GPUs alone could be healthy"


def test_what_all_gpus_of_a_node_measure_together_is_one_value_of_it_and_not_eight(tmp_path: Path) -> None:
    """The bus bandwidth of a collective is the same on all GPUs of a node."""
    fleets = [Fleet(60, rates=FEW[:1], spread=0.01, noise=0.0, seed=seed) for seed in (1, 1)]
    fleets[1].own[:] = fleets[1].own[:, :1]
    shares = [judged(kept(tmp_path / str(n), fleet)).cells[0].share or 0 for n, fleet in enumerate(fleets)]
    assert shares[1] > 1.25 * shares[0], "eight times as many values know more of their tail"


def test_slots_of_different_speed_are_no_fault(tmp_path: Path) -> None:
    slots = np.array([0.0, 0, 0, 0, -0.05, -0.05, 0, -0.2])
    found = judged(kept(tmp_path / "rates", Fleet(200, slots=slots, rates=FEW)))
    assert not found.slow
    speeds = {c.slot: c.spread.median for c in found.cells if c.rate == FEW[0] and c.slot.endswith(".0")}
    assert len(speeds) == 8 and max(speeds.values()) / min(speeds.values()) > 1.2


def test_a_small_fleet_compares_its_slots_together_and_names_none_of_a_slow_slot(tmp_path: Path) -> None:
    slots = np.array([0.0, 0, 0, 0, 0, 0, 0, -0.2])
    found = judged(kept(tmp_path / "rates", Fleet(12, slots=slots, rates=FEW)))
    assert {cell.slot for cell in found.cells if cell.share is not None} == {ANY_SLOT} and not found.slow


def test_a_slot_that_spreads_wider_gets_more_room(tmp_path: Path) -> None:
    fleet = Fleet(200, spread=0.002, noise=0.0, rates=FEW)
    fleet.own[:, 7] *= 4
    found = judged(kept(tmp_path / "rates", fleet))
    shares = {cell.slot: cell.share for cell in found.cells if cell.rate == FEW[0]}
    assert (shares["0000:08:00.0"] or 0) > 2 * (shares["0000:01:00.0"] or 1) and not found.slow


def test_only_what_is_alike_is_compared(tmp_path: Path) -> None:
    rows = (Fleet(100, rates=FEW), Fleet(100, rates=FEW, first=100, setting=replace(SETTING, driver="570.1")))
    rows[1].own -= 0.3  # another driver, another speed
    found = judged(kept(tmp_path / "rates", *rows))
    assert not found.slow and {cell.setting.driver for cell in found.cells} == {SETTING.driver, "570.1"}


def test_too_few_peers_are_told_and_not_compared(tmp_path: Path) -> None:
    few = Fleet(3, rates=FEW)
    few.own[0, 0, 0] = -0.5
    found = judged(kept(tmp_path / "rates", few))
    assert not found.tests and not found.slow and found.cells and all(cell.share is None for cell in found.cells)
    # 24 GPUs are too few, and so they are beside many of another kind.
    more = judged(kept(tmp_path / "more", few, Fleet(60, first=50, rates=FEW, setting=replace(SETTING, level="quick"))))
    assert more.tests and {cell.setting.level for cell in more.cells if cell.share is None} == {"standard"}
    assert not judged(kept(tmp_path / "most", Fleet(60, rates=FEW)), least=1000).tests


def test_less_than_a_percent_is_not_told_however_sure_it_is(tmp_path: Path) -> None:
    fleet = Fleet(200, spread=0.0, noise=0.0, rates=FEW)
    fleet.own[5, 5, 0] = -0.9 * LEAST_SHARE
    fleet.own[6, 5, 0] = -1.5 * LEAST_SHARE
    (slow,) = judged(kept(tmp_path / "rates", fleet)).slow
    assert slow.card == fleet.card(6, 5) and slow.mads is None, "nobody else differs"


def drifting(
    per_week: float, weeks: int, path: Path, noise: float, noise_shape: str = "normal"
) -> tuple[Fleet, Judged]:
    """A fleet of which one GPU loses so much a week."""
    fleet = Fleet(150, gpus=3, rates=FEW[:2], spread=0.01, noise=noise, noise_shape=noise_shape)
    fleet.own[9, 2, 1] = 0.01  # faster than most to begin with: how it is says nothing yet

    def change(week: int) -> None:
        fleet.own[9, 2, 1] -= per_week if week else 0

    return fleet, judged(kept_weekly(path, fleet, weeks, change))


@pytest.mark.parametrize(
    ("noise", "before", "weeks"), [(0.002, 3, 4), pytest.param(0.005, 6, 10, marks=pytest.mark.slow)]
)
def test_half_a_percent_a_week_is_found_after_weeks(noise: float, before: int, weeks: int, tmp_path: Path) -> None:
    _, early = drifting(0.005, before + 1, tmp_path / "early", noise=noise)
    assert not early.drifts
    fleet, found = drifting(0.005, weeks + 1, tmp_path / "late", noise=noise)
    (drift,) = found.drifts
    assert drift.card == fleet.card(9, 2) and drift.rate == FEW[1] and not found.slow
    assert drift.per_week == pytest.approx(-0.005, abs=0.0015) and (drift.points, drift.weeks) == (weeks + 1, weeks)
    assert drift.lost == pytest.approx(0.005 * weeks, abs=0.01) and drift.mads is not None and drift.mads > 7


@pytest.mark.parametrize("shape", ["normal", "skewed to slow", "laplace", "rounded"])
@pytest.mark.slow
def test_healthy_weeks_have_no_drift(shape: str, tmp_path: Path) -> None:
    assert not drifting(0.0, 8, tmp_path / shape, 0.004, shape)[1].drifts


def test_what_the_whole_fleet_loses_with_a_driver_is_no_drift(tmp_path: Path) -> None:
    fleet = Fleet(60, gpus=2, rates=FEW)

    def change(week: int) -> None:
        if week == 4:
            fleet.setting = replace(SETTING, driver="590.1")
            fleet.own -= 0.1

    found = judged(kept_weekly(tmp_path / "rates", fleet, 9, change))
    assert not found.drifts and not found.slow


def test_a_gpu_keeps_its_line_when_it_moves_to_another_node(tmp_path: Path) -> None:
    fleet = Fleet(60, gpus=3, rates=FEW[:2], noise=0.001)
    moved = []
    for week in range(9):
        fleet.own[9, 2, 1] -= 0.005
        points = fleet.points(NOW - timedelta(weeks=8 - week))
        if week >= 4:  # the GPUs of two hosts change places
            one, other = points[9].point, points[10].point
            points[9], points[10] = (
                replace(points[9], point=replace(one, rates=other.rates)),
                replace(points[10], point=replace(other, rates=one.rates)),
            )
            moved = [name(10)]
        keep(tmp_path / "rates", points, NOW, Taken())
    (drift,) = judged(tmp_path / "rates").drifts
    assert drift.points == 9 and moved == ["gpu-0010"] and drift.card.uuid == fleet.card(9, 2).uuid
