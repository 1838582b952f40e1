"""The limit under which no healthy value lies: how often one does, and what is found all the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from gpu_burnin.fleet.baseline import FALSE_NAMES, LEAST_PEERS
from gpu_burnin.fleet.baseline.spread import MAD_TO_SIGMA, Spread, lower_limit, spread_of
from tests.support.rate_fleets import SHAPES

Draw = Callable[[np.random.Generator, tuple[int, ...]], npt.NDArray[np.float64]]
LOOKS = 400
GROUPS: dict[str, Draw] = {
    **SHAPES,
    "two speeds": lambda rng, size: rng.normal(size=size) - 6 * (rng.random(size) < 0.5),
    "one of eight slower": lambda rng, size: rng.normal(size=size) - 6 * (rng.random(size) < 0.125),
    "in coarse steps": lambda rng, size: np.round(rng.normal(size=size) / 2) * 2,
}


def names_per_look(draw: Draw, number: int, looks: int = LOOKS) -> float:
    """How many values lie under the limit of a look that allows one."""
    rng = np.random.default_rng(20261122)
    found = 0
    for _ in range(looks):
        values = draw(rng, (number,))
        limit = lower_limit(values, number, false_names=1.0)
        assert limit is not None
        found += int((values < limit).sum())
    return found / looks


@pytest.mark.slow
@pytest.mark.parametrize("number", [40, 500, 4000])
@pytest.mark.parametrize("shape", GROUPS)
def test_healthy_values_are_named_no_more_often_than_is_said(shape: str, number: int) -> None:
    # With names that come by chance, the mean of 400 looks that allow one is under 1 + 4 / sqrt(400).
    assert names_per_look(GROUPS[shape], number, LOOKS if number < 4000 else 100) < 1.2


def test_the_bound_is_used_up_where_the_tail_is_exponential_and_broken_by_power_laws() -> None:
    # A limit that named nobody, ever, would keep the bound too.
    assert names_per_look(SHAPES["skewed to slow"], 500) > 0.5
    assert names_per_look(lambda rng, size: rng.standard_t(2, size), 500) > 2, "the assumption that is documented"


@pytest.mark.parametrize("planted", [1, 5, 15])
def test_slow_ones_do_not_hide_each_other(planted: int) -> None:
    values = np.random.default_rng(3).normal(1, 0.003, 500)
    values[:planted] -= 0.03 + 0.009  # their own place in the spread may be three sigmas up
    limit = lower_limit(values, 500 * 17)
    assert limit is not None and values[:planted].max() < limit < values[planted:].min()


def test_more_values_make_the_limit_no_wider_in_sigmas() -> None:
    rng = np.random.default_rng(4)
    away = [-(lower_limit(rng.normal(size=n), 1_000_000) or 0.0) for n in (LEAST_PEERS, 500, 60_000)]
    assert away[0] > away[1] > away[2] and 7 < away[2] < 9, "in sigmas; a normal tail would allow 5.6"


def test_values_that_are_all_the_same_leave_no_room() -> None:
    values = np.full(500, 100.0)
    assert lower_limit(values, 500) == 100.0
    values[7] = 97.0
    assert lower_limit(values, 500) == 100.0, "one value is no step in which values come"


def test_rounded_values_get_the_room_that_rounding_took() -> None:
    rounded = np.array([100.0] * 470 + [99.0] * 15 + [101.0] * 15)
    limit = lower_limit(rounded, 500)
    assert limit is not None and limit < 98, "a second step down may be the next value of a narrow spread"


def test_too_few_values_say_nothing() -> None:
    assert lower_limit(np.ones(LEAST_PEERS - 1), 100) is None
    assert lower_limit(np.ones(LEAST_PEERS), 100) is not None
    with pytest.raises(ValueError, match="no spread"):
        spread_of(np.zeros(0))


def test_a_spread_is_median_and_mad() -> None:
    assert spread_of(np.array([1.0, 2, 3, 4, 100])) == Spread(3.0, 1.0, 5)
    assert Spread(3.0, 1.0, 5).robust_sigma == MAD_TO_SIGMA
    assert 0 < FALSE_NAMES < 0.05
